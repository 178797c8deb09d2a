"""DetectionOutput: class probabilities and box deltas of all RoIs into the detections of every picture.

Inputs: `rois` (T, 5) rows (image index, box in network-input pixels), image by image; `cls_prob` (T, K), class 0 is background;
`bbox_pred` (T, 4K), or (T, 8) with `class_agnostic`, of which the last four serve every class; `im_info` (N, 3) rows (height, width,
scale) of the network input; `im_size` (N, 2) rows (height, width) of the original picture; `roi_count` (N,), RoIs of each picture.
Outputs: `boxes` (N, D, 4) in original pixels, `scores` (N, D), `classes` (N, D) int64 from 1, padded with 0, -inf and 0; `count` (N,).

RoIs are divided by the scale, decoded with deltas over `bbox_reg_weights`, and clipped to the picture; without `regress` they are only
divided. With `network_frame` they are decoded and clipped to `im_info`'s size first, and then brought to original pixels by the ratios of
`im_size` to it, across and down apart. Boxes with a side below `smallest_side` pixels of the frame that they are decoded in are left out.
Per class: scores above `score_thresh`, NMS at `nms_thresh` (of equal scores the lower RoI first, or the higher with
`later_first`). `max_dets` > 0 keeps what scores at least as much as the max_dets-th best of
the picture (ties may leave more). Rows come class by class and, within a class, in the order of the RoIs. With `ranked` they come by
descending score, exactly `max_dets` at most; ties: the lower RoI, then the lower class. With `final_clip` the boxes that are left are
clipped to the original picture, and those without area are dropped (detectron2).
Source: Detectron's `im_detect_bbox` and `box_results_with_nms_and_limit`; torchvision's and detectron2's inference for the rest.
"""

from __future__ import annotations

from roiline.ops.detection_output.function import write_detection_output
from roiline.ops.detection_output.lowering import DETECTION_KERNELS, lower_detection_output
from roiline.ops.detection_output.reference import (
    box_results,
    decode_detections,
    detection_output,
    limit_detections,
    score_boxes,
    select_detections,
)
from roiline.ops.operator import Operator

DETECTION_OUTPUT = Operator(
    name="DetectionOutput",
    inputs=("rois", "cls_prob", "bbox_pred", "im_info", "im_size", "roi_count"),
    outputs={"boxes": ("float32", 3), "scores": ("float32", 2), "classes": ("int64", 2), "count": ("int64", 1)},
    attributes={
        "score_thresh": None,
        "nms_thresh": None,
        "max_dets": None,
        "bbox_reg_weights": None,
        "class_agnostic": 0,
        "regress": 1,
        "network_frame": 0,
        "smallest_side": 0.0,
        "ranked": 0,
        "later_first": 0,
        "final_clip": 0,
        "nms_inclusive": 1,
        "size_offset": 1.0,
        "corner_offset": 1.0,
        "delta_clip": None,
    },
    reference=detection_output,
    function=write_detection_output,
    kernels=DETECTION_KERNELS,
    lower=lower_detection_output,
)

__all__ = [
    "DETECTION_OUTPUT",
    "box_results",
    "decode_detections",
    "limit_detections",
    "score_boxes",
    "select_detections",
]
