// SuppressionMask: bit t of word w of a row is set where the row's box suppresses box 64 w + t, which comes later and has its label.
#include "kernel_sources/overlap.cuh"

DEVICE void mask_word(const Arguments& k, Index item) {
  const int words = (k.entries + 63) / 64;
  const int row = (int)item % k.entries, word = (int)item / k.entries % words;
  const Index list = (int)item / k.entries / words;
  const int* labels = k.labels + list * k.entries;
  const float* boxes = k.boxes + list * k.entries * 4;
  const OverlapRule rule = {k.threshold, k.plus_one, k.inclusive, k.one_empty_box};
  const int label = labels[row], first = most(word * 64, row + 1), end = least(word * 64 + 64, k.entries);
  u64 bits = 0;
  if (label != 0) {
    const Box own = load_box(boxes + 4 * row);
    for (int other = first; other < end; ++other)
      if (labels[other] == label && suppresses(own, load_box(boxes + 4 * (Index)other), rule)) bits |= 1ull << (other & 63);
  }
  k.mask[(list * k.entries + row) * words + word] = (long long)bits;
}
