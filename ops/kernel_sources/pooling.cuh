// What all RoI pools share: which map a RoI is pooled from, and which output an item is.
//
// `Arguments` of a pool has `rois` (T, 5), `features[]` (N, C, H_l, W_l), `images`, `channels`, `heights[]`, `widths[]`, `scales[]`,
// `least_ratios[]` (ascending; the ratio of a side to the canonical scale that reaches each level), `canonical_scale`, `size_offset` and
// `ratio_epsilon`. A RoI with an image index that is not one (-1: padding) is on no map.

struct RoIMap {
  const features_t* cells;  // all channels of the RoI's image; null for a RoI on no map
  int height, width;
  float scale;
};

DEVICE RoIMap map_of_roi(const Arguments& k, const float* roi) {
  RoIMap map = {nullptr, 0, 0, 0.0f};
  if (!(roi[0] >= 0.0f && roi[0] < (float)k.images)) return map;
  const float area = (roi[3] - roi[1] + k.size_offset) * (roi[4] - roi[2] + k.size_offset);
  const float ratio = sqrtf(fmaxf(area, 0.0f)) / k.canonical_scale + k.ratio_epsilon;
  map = {k.features[0], k.heights[0], k.widths[0], k.scales[0]};
  // The level is found by comparisons in a loop that unrolls: an array indexed at run time would live in slow memory.
#if ON_DEVICE
#pragma unroll
#endif
  for (int level = 1; level < features_count; ++level)
    if (ratio >= k.least_ratios[level])
      map = {k.features[level], k.heights[level], k.widths[level], k.scales[level]};
  map.cells += (Index)roi[0] * k.channels * map.height * map.width;
  return map;
}

// One output element (RoI, channel, bin row, bin column) of `bins_down` x `bins_across` bins.
struct Bin {
  int roi, channel, row, column;
};

DEVICE Bin bin_of_item(Index item, int channels, int bins_down, int bins_across) {
  u32 rest = (u32)item;  // items fit 31 bits, and 32-bit division is several times faster
  Bin bin;
  bin.column = (int)(rest % (u32)bins_across);
  rest /= (u32)bins_across;
  bin.row = (int)(rest % (u32)bins_down);
  rest /= (u32)bins_down;
  bin.channel = (int)(rest % (u32)channels);
  bin.roi = (int)(rest / (u32)channels);
  return bin;
}

// A cell of a map as a whole number; what is not a number, or far off any map, is kept in a range where sums do not overflow.
DEVICE int whole_cell(float position) { return (int)fminf(fmaxf(position, -1e8f), 1e8f); }
