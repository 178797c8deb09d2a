// ClipFinally: detections clipped to the original picture, in order, without those that have no area then. A row's place is the number
// of rows before it that stay, or, for one that goes, what stays and the number of rows before it that go: each place has one writer.
#include "kernel_sources/boxes.cuh"

DEVICE Box clip_row(const Arguments& k, Index image, int row) {
  const float* size = k.im_size + 2 * image;
  return clip_box(load_box(k.boxes + 4 * (image * k.rows + row)), size[0], size[1], 0.0f);
}

DEVICE bool stays(const Arguments& k, Index image, int row, int count) {
  const Box box = clip_row(k, image, row);
  return row < count && box.x2 > box.x1 && box.y2 > box.y1;
}

// Items are the rows of all pictures, at least one a picture. A count beyond the rows stays as it is: it says that rows are missing.
DEVICE void clip_finally(const Arguments& k, Index item) {
  const int rows = most(k.rows, 1), row = (int)(item % rows);
  const Index image = item / rows;
  const int count = (int)least(k.count[image], (long long)k.rows);
  int before = 0, staying = 0;
  for (int other = 0; other < count; ++other) {
    if (other == row) before = staying;
    staying += stays(k, image, other, count);
  }
  if (row == 0) k.clipped_count[image] = k.count[image] > k.rows ? k.count[image] : staying;
  if (k.rows == 0) return;
  if (row >= count) before = staying;
  const bool own = stays(k, image, row, count);
  const Index target = image * k.rows + (own ? before : staying + row - before);
  store_box(k.clipped_boxes + 4 * target, own ? clip_row(k, image, row) : empty_box());
  k.clipped_scores[target] = own ? k.scores[item] : no_score();
  k.clipped_classes[target] = own ? k.classes[item] : 0;
}
