// How many RoIs each picture has; a block counts those of one picture. RoIs of padding are none's.
DEVICE void count_rois(const Arguments& k, Index image, Block& block) {
  int* total = (int*)block.shared;
  if (block.thread == 0) *total = 0;
  block.barrier();
  int mine = 0;
  for (Index row = block.thread; row < k.rows; row += block.threads)
    mine += (k.columns == 5 ? k.rois[row * 5] : 0.0f) == (float)image;
  add_atomically(total, mine);
  block.barrier();
  if (block.thread == 0) k.roi_batch_splits[image] = (float)*total;
}
