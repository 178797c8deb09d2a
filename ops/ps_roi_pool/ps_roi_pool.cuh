// MultiLevelPSRoIPool: one item is one output element, the mean of its bin's cells in the channel of its grid cell.
//
// The mean is taken in double precision, as the reference takes it: bins are small, so this is not what the time goes to.
#include "kernel_sources/pooling.cuh"

struct Cells {
  int low, high;
};

// The cells that one bin touches along one axis, within a map of `size` cells; `last` is the last pixel of the RoI.
DEVICE Cells bin_cells(float first, float last, float scale, int bin, int bins, int size) {
  const float start = roundf(first) * scale, end = (roundf(last) + 1.0f) * scale;
  const float length = fmaxf(end - start, 0.1f) / (float)bins;
  const int low = whole_cell(floorf((float)bin * length + start));
  const int high = whole_cell(ceilf((float)(bin + 1) * length + start));
  return {least(most(low, 0), size), least(most(high, 0), size)};
}

DEVICE void pool_grid(const Arguments& k, Index item) {
  const Bin bin = bin_of_item(item, k.outputs, k.grid, k.grid);
  const float* roi = k.rois + (Index)bin.roi * 5;
  const RoIMap map = map_of_roi(k, roi);
  double sum = 0.0;
  int cells = 0;
  if (map.cells) {
    const Cells x = bin_cells(roi[1], roi[3], map.scale, bin.column, k.grid, map.width);
    const Cells y = bin_cells(roi[2], roi[4], map.scale, bin.row, k.grid, map.height);
    const Index channel = ((Index)bin.channel * k.grid + bin.row) * k.grid + bin.column;
    const features_t* plane = map.cells + channel * map.height * map.width;
    for (int row = y.low; row < y.high; ++row)
      for (int column = x.low; column < x.high; ++column) sum += (double)to_float(plane[(Index)row * map.width + column]);
    cells = most(y.high - y.low, 0) * most(x.high - x.low, 0);
  }
  store(k.pooled + item, (float)(sum / (double)most(cells, 1)));
}
