// SplitCandidates: every row and class into a candidate: box, score, and label 1, or label 0 and no score where the row is beyond its
// picture's or the score is not above the threshold.
#include "kernel_sources/boxes.cuh"

// Items are (picture, class, row of the picture's part); the rows of picture i are the i-th of equal parts.
DEVICE void split_candidate(const Arguments& k, Index item) {
  const Index image = item / k.entries / k.columns, place = item % k.entries, row = image * k.entries + place;
  const int column = (int)(item / k.entries % k.columns), background = k.boxes_have_background ? 1 : 0;
  const float score = k.scores[row * (k.columns + 1) + column + background];
  const bool candidate = (float)place < k.batch_splits[image] && score > k.score_thresh;
  const Index block = k.class_agnostic ? 0 : column + background;
  const Box box = load_box(k.boxes + row * k.box_columns + 4 * block);
  store_box(k.candidates + 4 * item, candidate ? box : empty_box());
  k.candidate_scores[item] = candidate ? score : no_score();
  k.labels[item] = candidate ? 1 : 0;
}
