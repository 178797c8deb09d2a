// GatherLimited: the found slots of all pictures as rows, picture by picture, with the padding after those of the last one.
#include "kernel_sources/boxes.cuh"

// How many rows the pictures before `image` have.
DEVICE Index count_before(const Arguments& k, Index image) {
  Index total = 0;
  for (Index other = 0; other < image; ++other) total += k.found[other];
  return total;
}

DEVICE int count_of_list(const Arguments& k, Index image, int list) {
  int total = 0;
  for (int row = 0; row < k.found[image]; ++row) total += k.slots[image * k.rows + row] / k.entries == list;
  return total;
}

DEVICE void write_row(const Arguments& k, Index image, int row) {
  const int found = k.found[image];
  const bool real = row < found;
  const Index before = count_before(k, image);
  const Index target = real ? before + row : count_before(k, k.images) + image * k.rows - before + row - found;
  const int slot = real ? k.slots[image * k.rows + row] : 0;
  const Index from = image * k.columns * k.entries + slot;
  store_box(k.kept_boxes + 4 * target, real ? load_box(k.boxes + 4 * from) : empty_box());
  k.kept_scores[target] = real ? k.scores[from] : no_score();
  k.classes[target] = real ? (float)(slot / k.entries + k.first_class) : 0.0f;
  k.keeps[target] = real ? k.order[from] : -1;
}

// Items are (picture, row or column): a row of the output, a column of the counts; column 0 is the background's.
DEVICE void gather_limited(const Arguments& k, Index item) {
  const int width = most(k.rows, k.columns + 1), at = (int)(item % width);
  const Index image = item / width;
  if (at == 0) k.kept_splits[image] = (float)k.found[image];
  if (at <= k.columns) k.keeps_size[image * (k.columns + 1) + at] = at == 0 ? 0 : count_of_list(k, image, at - 1);
  if (at < k.rows) write_row(k, image, at);
}
