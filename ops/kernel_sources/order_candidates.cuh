// OrderCandidates: candidates in visiting order.
#include "kernel_sources/boxes.cuh"

DEVICE void order_candidate(const Arguments& k, Index item) {
  const Index from = item / k.entries * k.entries + k.order[item];
  store_box(k.ordered_boxes + 4 * item, load_box(k.boxes + 4 * from));
  k.ordered_scores[item] = k.scores[from];
  k.ordered_labels[item] = k.labels[from];
}
