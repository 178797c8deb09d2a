// ScanMask: which boxes of a list stay, in visiting order. One block scans a list, 64 rows (a word) at a time. One thread decides about
// the 64 rows, as each decision depends on those before; then all threads spread what the kept rows suppress over the later words.
//
// Who writes what: `removed` word w by the thread that it falls to in the spreading; `kept` and the scan's own state by thread 0
// between two barriers; the rest of `kept` by the thread that it falls to. Host runs with one thread cover the decisions, runs with
// several the barriers; warps and the memory model of a GPU are covered by neither.
struct ScanState {
  u64 diagonal[64];
  u64 chosen;
  int alive[64];
  int found;
};

// Decides about the rows of one word: keeps what is alive and not suppressed, up to the limit; returns the word of kept rows.
DEVICE u64 choose_rows(ScanState& state, int first, int rows, u64 suppressed, int limit, int* kept) {
  u64 chosen = 0;
  for (int row = 0; row < rows && state.found < limit; ++row) {
    if (!state.alive[row] || (suppressed >> row & 1)) continue;
    kept[state.found++] = first + row;
    chosen |= 1ull << row;
    suppressed |= state.diagonal[row];
  }
  return chosen;
}

DEVICE int lowest_bit(u64 bits) {
#if ON_DEVICE
  return __ffsll((long long)bits) - 1;
#else
  return __builtin_ctzll(bits);
#endif
}

// What the kept rows of a word suppress in another word; `column` is that word of the first of the 64 rows.
DEVICE u64 suppressed_by(u64 chosen, const long long* column, int words) {
  u64 bits = 0;
  for (; chosen != 0; chosen &= chosen - 1) bits |= (u64)column[(Index)lowest_bit(chosen) * words];
  return bits;
}

DEVICE void scan_list(const Arguments& k, Index list, Block& block) {
  const int words = (k.entries + 63) / 64;
  const long long* mask = k.mask + list * k.entries * words;
  const int* labels = k.labels + list * k.entries;
  long long* removed = k.removed + list * words;
  int* kept = k.kept + list * k.limit;
  ScanState& state = *(ScanState*)block.shared;
  for (int word = block.thread; word < words; word += block.threads) removed[word] = 0;
  if (block.thread == 0) state.found = 0;
  block.barrier();
  for (int word = 0; word < words && state.found < k.limit; ++word) {
    const int first = word * 64, rows = least(64, k.entries - first);
    for (int row = block.thread; row < rows; row += block.threads) {
      state.alive[row] = labels[first + row];
      state.diagonal[row] = (u64)mask[(Index)(first + row) * words + word];
    }
    block.barrier();
    if (block.thread == 0) state.chosen = choose_rows(state, first, rows, (u64)removed[word], k.limit, kept);
    block.barrier();
    for (int later = word + 1 + block.thread; later < words; later += block.threads)
      removed[later] |= (long long)suppressed_by(state.chosen, mask + (Index)first * words + later, words);
  }
  for (int place = state.found + block.thread; place < k.limit; place += block.threads) kept[place] = -1;
  if (block.thread == 0) k.kept_count[list] = state.found;
}
