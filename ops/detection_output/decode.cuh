// DecodeDetections: every RoI and class into a candidate: its box in original pixels, its score, and label 1, or label 0 and no score
// where the RoI is padding, the score is not above the threshold or the box is too small. The order of operations is the reference's.
#include "kernel_sources/boxes.cuh"

// The box of a class, in the frame that it is decoded in.
DEVICE Box decode_class(const Arguments& k, Index row, int column, const float* info, const float* size) {
  const Box roi = load_box(k.rois + 5 * row + 1);
  const Box proposal = k.network_frame ? roi : divide_box(roi, info[2]);
  if (!k.regress) return proposal;
  const Index first = k.class_agnostic ? k.delta_columns - 4 : 4 * (column + 1);
  const float* delta = k.bbox_pred + row * k.delta_columns + first;
  const Deltas deltas = {delta[0] / k.weights[0], delta[1] / k.weights[1], delta[2] / k.weights[2], delta[3] / k.weights[3]};
  const BoxCoding coding = {k.size_offset, k.corner_offset, k.delta_clip};
  const float* frame = k.network_frame ? info : size;
  return clip_box(decode_box(proposal, deltas, coding), frame[0], frame[1], k.size_offset);
}

DEVICE bool is_large(const Arguments& k, const Box& box) {
  return !(k.smallest_side > 0.0f) || (box.x2 - box.x1 >= k.smallest_side && box.y2 - box.y1 >= k.smallest_side);
}

// Items are (picture, class, row of the picture's part); the rows of picture i are the i-th of equal parts.
DEVICE void decode_detection(const Arguments& k, Index item) {
  const Index image = item / k.entries / k.columns, row = image * k.entries + item % k.entries;
  const int column = (int)(item / k.entries % k.columns);
  const float* info = k.im_info + 3 * image;
  const float* size = k.im_size + 2 * image;
  const float score = k.cls_prob[row * (k.columns + 1) + column + 1];
  const bool counts = k.rois[5 * row] == (float)image && score > k.score_thresh;
  Box box = counts ? decode_class(k, row, column, info, size) : empty_box();
  const bool candidate = counts && is_large(k, box);
  if (k.network_frame) box = stretch_box(box, size[1] / info[1], size[0] / info[0]);
  store_box(k.boxes + 4 * item, box);
  k.scores[item] = candidate ? score : no_score();
  k.labels[item] = candidate ? 1 : 0;
}
