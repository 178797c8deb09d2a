// DecodeRetinaNet: the chosen places of one level into boxes in original pixels, scores, classes and the level. Places are in the order
// of the tensor: (anchor, class, y, x). The order of operations is the reference's.
#include "kernel_sources/boxes.cuh"

DEVICE Box place_in_picture(const Arguments& k, Box box, const float* info, const float* size) {
  if (k.network_frame) {
    if (k.clip) box = clip_box(box, info[0], info[1], k.size_offset);
    return stretch_box(box, size[1] / info[1], size[0] / info[0]);
  }
  box = divide_box(box, info[2]);
  return k.clip ? clip_box(box, size[0], size[1], k.size_offset) : box;
}

DEVICE void decode_retinanet(const Arguments& k, Index item) {
  const Index image = item / k.best, cells = (Index)k.height * k.width;
  const int index = k.index[item], cell = (int)(index % cells), plane = (int)(index / cells);
  const int per_anchor = k.channels / k.per_cell, anchor = plane / per_anchor;
  const float* stride = k.strides + 2 * k.level;
  Box box = place_anchor(k.anchors + 4 * (k.level * k.per_cell + anchor), cell / k.width, cell % k.width, stride);
  if (k.regress) {
    const BoxCoding coding = {k.size_offset, k.corner_offset, k.delta_clip};
    box = decode_box(box, load_deltas(k.bbox_pred + 4 * (image * k.per_cell + anchor) * cells, cells, cell), coding);
  }
  store_box(k.boxes + 4 * item, place_in_picture(k, box, k.im_info + 3 * image, k.im_size + 2 * image));
  k.scores[item] = k.cls_prob[(image * k.channels + plane) * cells + cell];
  k.classes[item] = plane % per_anchor + k.first_class;
  k.levels[item] = k.level;
}
