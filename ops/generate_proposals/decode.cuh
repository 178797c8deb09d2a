// DecodeProposals: the chosen anchors of a picture into clipped boxes, their scores, and whether they are candidates (label 1) or too
// small, outside or below the threshold (label 0). The order of operations is that of the reference.
#include "kernel_sources/boxes.cuh"

DEVICE bool is_large_and_inside(const Arguments& k, const Box& box, const float* info) {
  float width = box.x2 - box.x1, height = box.y2 - box.y1;
  bool large;
  if (k.min_size_in_network) {
    width += k.size_offset;
    height += k.size_offset;
    const float smallest = k.min_size * info[2];
    large = width >= smallest && height >= smallest;
  } else {
    const float original_width = width / info[2] + k.size_offset, original_height = height / info[2] + k.size_offset;
    large = original_width >= k.min_size && original_height >= k.min_size;
    width = original_width * info[2];
    height = original_height * info[2];
  }
  return large && box.x1 + width / 2.0f < info[1] && box.y1 + height / 2.0f < info[0];
}

DEVICE bool is_candidate(const Arguments& k, const Box& box, float score, const float* info) {
  if (!is_large_and_inside(k, box, info)) return false;
  if (k.min_side > 0.0f && !(box.x2 - box.x1 >= k.min_side && box.y2 - box.y1 >= k.min_side)) return false;
  return !(k.score_thresh > 0.0f) || score >= k.score_thresh;
}

DEVICE void decode_proposal(const Arguments& k, Index item) {
  const Index image = item / k.best, cells = (Index)k.height * k.width;
  const int index = k.index[item], anchor = index % k.per_cell, cell = index / k.per_cell;
  const Index plane = image * k.per_cell + anchor;
  const float* info = k.im_info + 3 * image;
  const BoxCoding coding = {k.size_offset, k.corner_offset, k.delta_clip};
  const Box placed = place_anchor(k.anchors + 4 * anchor, cell / k.width, cell % k.width, k.stride);
  const Box decoded = decode_box(placed, load_deltas(k.deltas + 4 * plane * cells, cells, cell), coding);
  const Box box = clip_box(decoded, info[0], info[1], k.size_offset);
  float score = k.scores[plane * cells + cell];
  if (k.logits) score = 1.0f / (1.0f + expf(-score));
  store_box(k.boxes + 4 * item, box);
  k.best_scores[item] = score;
  k.labels[item] = is_candidate(k, box, score, info) ? 1 : 0;
}
