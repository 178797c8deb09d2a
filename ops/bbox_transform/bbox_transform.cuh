// BBoxTransform: RoIs and deltas into boxes, and how many RoIs each picture has.
#include "kernel_sources/boxes.cuh"

// One item is one box: RoI item / blocks with its block item % blocks of deltas. RoIs of padding give zeros.
DEVICE void transform_box(const Arguments& k, Index item) {
  const Index row = item / k.blocks;
  const float* roi = k.rois + row * k.columns;
  const float image = k.columns == 5 ? roi[0] : 0.0f;
  Box box = empty_box();
  if (image >= 0.0f && image < (float)k.images) {
    const float *info = k.im_info + (Index)image * 3, *delta = k.deltas + item * 4;
    const float scale = info[2];
    const Deltas deltas = {delta[0] / k.weights[0], delta[1] / k.weights[1], delta[2] / k.weights[2],
                           delta[3] / k.weights[3]};
    box = decode_box(divide_box(load_box(roi + k.columns - 4), scale), deltas,
                     {k.size_offset, k.corner_offset, k.delta_clip});
    box = clip_box(box, floorf(info[0] / scale + 0.5f), floorf(info[1] / scale + 0.5f), k.size_offset);
    if (k.apply_scale) box = stretch_box(box, scale, scale);
  }
  store_box(k.box_out + item * 4, box);
}
