"""BBoxTransform: RoIs and box deltas into boxes, as Caffe2's operator of that name makes them.

Inputs: `rois` (T, 5) rows (image index, box in network-input pixels), or (T, 4) of one picture; `deltas` (T, 4m), m blocks of
(dx, dy, dw, dh); `im_info` (N, 3) rows (height, width, scale) of the network input.
Outputs: `box_out` (T, 4m), and `roi_batch_splits` (N,) float32, the RoIs of each picture.

RoIs are divided by the scale, decoded with deltas over `weights`, clipped to the whole-numbered size (height, width) / scale rounded
half up, and multiplied by the scale again with `apply_scale`. The size is the padded input's, so boxes may end beyond the picture.
Both offsets are 1 for `legacy_plus_one`, 0 without; the Caffe2 of 2018 keeps `size_offset` 1 and has `corner_offset` 1 only with
`correct_transform_coords`.
"""

from __future__ import annotations

import numpy as np

from roiline.ops.bbox_transform.function import write_bbox_transform
from roiline.ops.bbox_transform.kernel import COUNT_ROIS, TRANSFORM_BOXES, lower_bbox_transform
from roiline.ops.bbox_transform.reference import bbox_transform
from roiline.ops.operator import Operator

BBOX_TRANSFORM = Operator(
    name="BBoxTransform",
    inputs=("rois", "deltas", "im_info"),
    outputs={"box_out": ("float32", 2), "roi_batch_splits": ("float32", 1)},
    attributes={
        "weights": (1.0, 1.0, 1.0, 1.0),
        "apply_scale": 1,
        "size_offset": 1.0,
        "corner_offset": 1.0,
        "delta_clip": float(np.log(1000.0 / 16.0)),
    },
    reference=bbox_transform,
    function=write_bbox_transform,
    kernels=(TRANSFORM_BOXES, COUNT_ROIS),
    lower=lower_bbox_transform,
)
