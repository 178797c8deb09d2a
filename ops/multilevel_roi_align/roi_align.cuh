// MultiLevelRoIAlign: one item is one output element, the mean of its bin's bilinear samples.
//
// Positions are computed in float32 in the order of the original; sums in float32 in the order of ONNX Runtime's RoiAlign.
#include "kernel_sources/pooling.cuh"

// The samples of one bin along one axis: `grid` of them, the i-th at first + (i + 0.5) * size / grid.
struct AxisSamples {
  float first, size;
  int grid;
};

DEVICE AxisSamples axis_samples(float start, float end, int bin, int bins, int sampling_ratio, int half_pixel) {
  const float length = half_pixel ? end - start : fmaxf(end - start, 1.0f);
  AxisSamples axis;
  axis.size = length / (float)bins;
  axis.first = start + (float)bin * axis.size;
  // A bin of more pixels than any picture has is none: the RoI is not finite.
  axis.grid = sampling_ratio > 0 ? sampling_ratio : (axis.size > 0.0f && axis.size < 65536.0f ? (int)ceilf(axis.size) : 0);
  return axis;
}

// The two cells beside a position and the weight of the farther one; false for a position off the map.
struct Neighbours {
  int low, high;
  float fraction;
};

DEVICE bool neighbours_of(float position, int size, Neighbours* between) {
  if (!(position >= -1.0f && position <= (float)size)) return false;
  position = fmaxf(position, 0.0f);
  between->low = (int)position;
  if (between->low >= size - 1) {
    between->low = between->high = size - 1;
    between->fraction = 0.0f;
  } else {
    between->high = between->low + 1;
    between->fraction = position - (float)between->low;
  }
  return true;
}

DEVICE float sample_at(const features_t* plane, int width, const Neighbours& y, const Neighbours& x) {
  const float up = 1.0f - y.fraction, left = 1.0f - x.fraction;
  const features_t *upper = plane + (Index)y.low * width, *lower = plane + (Index)y.high * width;
  return up * left * to_float(upper[x.low]) + up * x.fraction * to_float(upper[x.high]) +
         y.fraction * left * to_float(lower[x.low]) + y.fraction * x.fraction * to_float(lower[x.high]);
}

DEVICE void align_roi(const Arguments& k, Index item) {
  const Bin bin = bin_of_item(item, k.channels, k.bins_down, k.bins_across);
  const float* roi = k.rois + (Index)bin.roi * 5;
  const RoIMap map = map_of_roi(k, roi);
  float sum = 0.0f;
  int samples = 0;
  if (map.cells) {
    const float shift = k.half_pixel ? 0.5f : 0.0f;
    const AxisSamples across = axis_samples(roi[1] * map.scale - shift, roi[3] * map.scale - shift, bin.column,
                                            k.bins_across, k.sampling_ratio, k.half_pixel);
    const AxisSamples down = axis_samples(roi[2] * map.scale - shift, roi[4] * map.scale - shift, bin.row,
                                          k.bins_down, k.sampling_ratio, k.half_pixel);
    const features_t* plane = map.cells + (Index)bin.channel * map.height * map.width;
    samples = down.grid * across.grid;
    for (int row = 0; row < down.grid; ++row) {
      Neighbours y, x;
      if (!neighbours_of(down.first + ((float)row + 0.5f) * down.size / (float)down.grid, map.height, &y)) continue;
      for (int column = 0; column < across.grid; ++column)
        if (neighbours_of(across.first + ((float)column + 0.5f) * across.size / (float)across.grid, map.width, &x))
          sum += sample_at(plane, map.width, y, x);
    }
  }
  store(k.pooled + item, sum / (float)most(samples, 1));
}
