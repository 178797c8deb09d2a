// GatherProposals: what NMS keeps of each picture, padded with zeros and -inf.
#include "kernel_sources/boxes.cuh"

DEVICE void gather_proposal(const Arguments& k, Index item) {
  if (item < k.images) k.count[item] = k.kept_count[item];
  if (item >= (Index)k.images * k.limit) return;
  const Index image = item / k.limit;
  const int row = k.kept[item];
  const Index from = image * k.entries + row;
  store_box(k.boxes + 4 * item, row < 0 ? empty_box() : load_box(k.candidates + 4 * from));
  k.kept_scores[item] = row < 0 ? no_score() : k.scores[from];
}
