// PadRows: Trim with all rows kept; one item is one value of a row. Rows of padding have image index -1, and zeros.
DEVICE void pad_row(const Arguments& k, Index item) {
  const int column = (int)(item % 5), slot = (int)(item / 5 % k.slots), image = (int)(item / 5 / k.slots);
  const bool real = (long long)slot < k.count[image];
  if (column == 0)
    k.rois[item] = real ? (float)image : -1.0f;
  else
    k.rois[item] = real ? k.boxes[((Index)image * k.slots + slot) * 4 + column - 1] : 0.0f;
}
