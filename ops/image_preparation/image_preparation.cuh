// PrepareImage: a picture of bytes into network input; one item is one value of one channel.
//
// Where samples lie is computed on the host (in double precision, or as the source framework does) and given per row and column: the
// first of two pixels and the share of the second. What is left is a look-up, three interpolations and a store.
DEVICE float pixel_value(const Arguments& k, int channel, int row, int column) {
  const int stored = k.swap_channels ? 2 - channel : channel;
  return k.values[channel * 256 + k.picture[((Index)row * k.picture_width + column) * 3 + stored]];
}

// OpenCV's way: low + (high - low) * share, rounded once.
DEVICE float step_between(float low, float high, float share) { return fmaf(high - low, share, low); }

// PyTorch's way: a sum of two products.
DEVICE float weigh(float low, float high, float share) { return low * (1.0f - share) + high * share; }

DEVICE void prepare_image(const Arguments& k, Index item) {
  const int x = (int)(item % k.padded_width);
  const int y = (int)(item / k.padded_width % k.padded_height);
  const int channel = (int)(item / k.padded_width / k.padded_height);
  float value = 0.0f;
  if (y < k.height && x < k.width) {
    const int top = k.rows[y], left = k.columns[x];
    const int bottom = least(top + 1, k.picture_height - 1), right = least(left + 1, k.picture_width - 1);
    const float down = k.row_shares[y], across = k.column_shares[x];
    const float upper_left = pixel_value(k, channel, top, left), upper_right = pixel_value(k, channel, top, right);
    const float lower_left = pixel_value(k, channel, bottom, left), lower_right = pixel_value(k, channel, bottom, right);
    value = k.rows_first
                ? weigh(weigh(upper_left, lower_left, down), weigh(upper_right, lower_right, down), across)
                : step_between(step_between(upper_left, upper_right, across),
                               step_between(lower_left, lower_right, across), down);
  }
  k.pixels[item] = value;
}
