"""BoxWithNMSLimit: class scores and boxes of all RoIs into detections, as Caffe2's operator of that name makes them.

Inputs: `scores` (T, K) and `boxes` (T, 4K), class 0 is background; with `boxes_have_background` 0 boxes are (T, 4K - 4) and the
background is the last column of the scores; with `class_agnostic` boxes are (T, 4). `batch_splits` (N,) float32 are the rows of each
picture; without them all rows are one picture's.
Outputs: `kept_scores` (D,), `kept_boxes` (D, 4), `classes` (D,) float32, counted from 1 or, where `classes_have_background` is 0, from 0;
`kept_splits` (N,) float32, detections of each picture; `keeps` (D,) int32, rows within their picture; `keeps_size` (N, K) int32,
detections of each picture and class.

Per picture and class: scores above `score_thresh`, NMS that suppresses above `nms_thresh`, at most `max_dets`; then the `max_dets` best
of the picture (<= 0: all), exactly that many. Rows come by picture, class and descending score; ties in the order of rows, and at the
limit the lower class first. `soft_nms` is "", "linear" or "gaussian"; it exists in the numpy form only. `size_offset` is 1 for
`legacy_plus_one`; without it the best of the boxes without area suppresses the others of its class, as in the original.
"""

from __future__ import annotations

from roiline.ops.box_with_nms_limit.function import write_box_with_nms_limit
from roiline.ops.box_with_nms_limit.lowering import LIMIT_KERNELS, lower_box_with_nms_limit
from roiline.ops.box_with_nms_limit.reference import box_with_nms_limit
from roiline.ops.operator import Operator

BOX_WITH_NMS_LIMIT = Operator(
    name="BoxWithNMSLimit",
    inputs=("scores", "boxes", "batch_splits?"),
    outputs={
        "kept_scores": ("float32", 1),
        "kept_boxes": ("float32", 2),
        "classes": ("float32", 1),
        "kept_splits": ("float32", 1),
        "keeps": ("int32", 1),
        "keeps_size": ("int32", 2),
    },
    attributes={
        "score_thresh": 0.05,
        "nms_thresh": 0.3,
        "max_dets": 100,
        "class_agnostic": 0,
        "boxes_have_background": 1,
        "classes_have_background": 1,
        "size_offset": 1.0,
        "soft_nms": "",
        "soft_nms_sigma": 0.5,
        "soft_nms_score_thresh": 0.001,
    },
    reference=box_with_nms_limit,
    function=write_box_with_nms_limit,
    kernels=LIMIT_KERNELS,
    lower=lower_box_with_nms_limit,
)
