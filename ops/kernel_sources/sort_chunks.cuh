// SortChunks: each chunk of a list into descending order. One block ranks a chunk by counting: 1024 keys, each against all others.
// Every place of the outputs is written by the one entry that ranks there. Host runs cover the ranking, and with several threads the
// barrier between filling the keys and reading them; not warps, nor the memory model of a GPU.
#include "kernel_sources/ranking.cuh"

DEVICE void sort_chunk(const Arguments& k, Index item, Block& block) {
  const int chunks = (k.entries + CHUNK - 1) / CHUNK;
  const Index list = item / chunks;
  const int start = (int)(item % chunks) * CHUNK, size = least(CHUNK, k.entries - start);
  const float* scores = k.scores + list * k.entries;
  int* keys = (int*)block.shared;
  for (int i = block.thread; i < size; i += block.threads) {
    const int place = start + i;
    keys[i] = order_key(scores[k.later_first ? k.entries - 1 - place : place]);
  }
  block.barrier();
  for (int i = block.thread; i < size; i += block.threads) {
    const int key = keys[i];
    int rank = 0;
    for (int other = 0; other < size; ++other) rank += keys[other] > key || (keys[other] == key && other < i);
    const int place = start + i;
    const Index at = list * k.entries + start + rank;
    k.keys[at] = key;
    k.order[at] = k.later_first ? k.entries - 1 - place : place;
  }
}
