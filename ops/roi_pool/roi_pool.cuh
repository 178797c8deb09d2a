// MultiLevelRoIPool: one item is one output element, the maximum of its bin's cells.
#include "kernel_sources/pooling.cuh"

struct Cells {
  int low, high;
};

// The cells of one bin along one axis, within a map of `size` cells.
DEVICE Cells bin_cells(float start, float end, int bin, int bins, int size) {
  const int first = whole_cell(roundf(start)), last = whole_cell(roundf(end));
  const float length = (float)most(last - first + 1, 1) / (float)bins;
  const int low = whole_cell(floorf((float)bin * length)) + first;
  const int high = whole_cell(ceilf((float)(bin + 1) * length)) + first;
  return {least(most(low, 0), size), least(most(high, 0), size)};
}

DEVICE void pool_roi(const Arguments& k, Index item) {
  const Bin bin = bin_of_item(item, k.channels, k.bins_down, k.bins_across);
  const float* roi = k.rois + (Index)bin.roi * 5;
  const RoIMap map = map_of_roi(k, roi);
  float best = 0.0f;
  if (map.cells) {
    const Cells x = bin_cells(roi[1] * map.scale, roi[3] * map.scale, bin.column, k.bins_across, map.width);
    const Cells y = bin_cells(roi[2] * map.scale, roi[4] * map.scale, bin.row, k.bins_down, map.height);
    const features_t* plane = map.cells + (Index)bin.channel * map.height * map.width;
    bool any = false;
    for (int row = y.low; row < y.high; ++row)
      for (int column = x.low; column < x.high; ++column) {
        const float cell = to_float(plane[(Index)row * map.width + column]);
        if (!any || cell > best || cell != cell) best = cell;
        any = true;
      }
  }
  store(k.pooled + item, best);
}
