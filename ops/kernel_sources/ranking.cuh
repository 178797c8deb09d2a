// Ranking: keys whose order is that of scores, and counting in descending lists.

// Entries that a block ranks at once, by counting.
const int CHUNK = 1024;

// Scores as integers in the same order: both zeros are equal, and what is not a number comes last.
DEVICE int order_key(float score) {
  if (score != score) return -2147483647 - 1;
  if (score == 0.0f) return 0;
  const int bits = (int)bits_of_float(score);
  return bits >= 0 ? bits : bits ^ 0x7fffffff;
}

// How many of a descending list are above a key, or at least the key.
DEVICE int count_above(const int* keys, int size, int key, bool equal_too) {
  int low = 0, high = size;
  while (low < high) {
    const int middle = low + (high - low) / 2;
    const bool above = equal_too ? keys[middle] >= key : keys[middle] > key;
    low = above ? middle + 1 : low;
    high = above ? high : middle;
  }
  return low;
}
