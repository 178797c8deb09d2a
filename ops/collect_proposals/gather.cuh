// GatherCollected: the best proposals of all levels, without what has no finite score. They come by descending score, so those are a
// stretch of the list: after the infinite ones, before the padding.
#include "kernel_sources/boxes.cuh"

// How many of the best (in descending order, what is not a number last) are at least a score.
DEVICE int count_at_least(const float* scores, const int* index, int size, float least_score) {
  int low = 0, high = size;
  while (low < high) {
    const int middle = low + (high - low) / 2;
    const bool reaches = scores[index[middle]] >= least_score;
    low = reaches ? middle + 1 : low;
    high = reaches ? high : middle;
  }
  return low;
}

DEVICE void gather_collected(const Arguments& k, Index item) {
  const Index image = k.best > 0 ? item / k.best : item;
  const float* scores = k.scores + image * k.entries;
  const int* index = k.index + image * k.best;
  const float largest = float_of_bits(0x7f7fffffu);
  const int real = count_at_least(scores, index, k.best, -largest) - count_at_least(scores, index, k.best, -no_score());
  const Index row = k.best > 0 ? item % k.best : 0;
  if (row == 0) k.count[image] = real;
  if (k.best == 0) return;
  const Index from = index[row];
  store_box(k.boxes + 4 * item, row < real ? load_box(k.candidates + 4 * (image * k.entries + from)) : empty_box());
  k.kept_scores[item] = row < real ? scores[from] : no_score();
}
