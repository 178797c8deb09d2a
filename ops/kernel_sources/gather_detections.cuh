// GatherDetections: the found slots of each picture as padded detections. The class is the label plus the number of the list: lists of
// one class each have label 1, one list of all classes has a label for each.
#include "kernel_sources/boxes.cuh"

DEVICE void gather_detection(const Arguments& k, Index item) {
  if (item < k.images) k.count[item] = k.found[item];
  if (item >= (Index)k.images * k.rows) return;
  const Index image = item / k.rows;
  const bool real = item % k.rows < k.found[image];
  const int slot = real ? k.slots[item] : 0;
  const Index from = image * k.lists * k.entries + slot;
  store_box(k.kept_boxes + 4 * item, real ? load_box(k.boxes + 4 * from) : empty_box());
  k.kept_scores[item] = real ? k.scores[from] : no_score();
  k.classes[item] = real ? k.labels[from] + slot / k.entries + k.first_class - 1 : 0;
}
