// RankChunks: the best of a list whose chunks are in descending order. An entry's rank is its place in its own chunk and, by binary
// search, the number of entries of every other chunk that come before it; it stops counting once it is beyond the limit. So the
// cost follows limit x log(entries / limit), not the square of the entries. Ranks are a permutation: each place has one writer.
#include "kernel_sources/ranking.cuh"

DEVICE void rank_entry(const Arguments& k, Index item) {
  const Index list = (int)item / k.entries;
  const int place = (int)item % k.entries, own = place / CHUNK, key = k.keys[item];
  const int* keys = k.keys + list * k.entries;
  int rank = place % CHUNK;
  for (int chunk = 0, start = 0; start < k.entries && rank < k.best; ++chunk, start += CHUNK)
    if (chunk != own) rank += count_above(keys + start, least(CHUNK, k.entries - start), key, chunk < own);
  if (rank < k.best) k.index[list * k.best + rank] = k.order[item];
}
