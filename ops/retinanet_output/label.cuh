// LabelCandidates: which candidates of a picture count, as labels (class by class from 1; 0: none) and scores. One block a picture: it
// finds the coarsest level first, each thread over its part of the candidates. Each thread writes its own entries. Host runs with several
// threads cover the barrier; not warps, nor the memory model of a GPU.

DEVICE void label_candidates(const Arguments& k, Index image, Block& block) {
  const long long* levels = k.levels + image * k.entries;
  int* coarsest_of = (int*)block.shared;
  int coarsest = 0;
  for (int i = block.thread; i < k.entries; i += block.threads) coarsest = most(coarsest, (int)levels[i]);
  coarsest_of[block.thread] = coarsest;
  block.barrier();
  for (int thread = 0; thread < block.threads; ++thread) coarsest = most(coarsest, coarsest_of[thread]);
  for (int i = block.thread; i < k.entries; i += block.threads) {
    const Index at = image * k.entries + i;
    const long long label = k.classes[at] - k.first_class + 1;
    const float score = k.scores[at], threshold = levels[i] == coarsest ? k.coarsest_score_thresh : k.score_thresh;
    const bool counts = score > threshold && label >= 1 && label <= k.labels_in_use;
    k.counted_scores[at] = counts ? score : float_of_bits(0xff800000u);
    k.labels[at] = counts ? (int)label : 0;
  }
}
