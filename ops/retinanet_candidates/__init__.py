"""RetinaNetCandidates: the dense class probabilities and deltas of all levels into the best boxes of every picture, before any threshold.

Inputs, for L levels, finest first: L tensors `cls_prob...` (N, A*C, h, w), channel a * C + c for C classes without background; L tensors
`bbox_pred...` (N, 4A, h, w), channel 4a + k; `anchors` (L, A, 4) around the first cell, in network-input pixels; `im_info` (N, 3) rows
(height, width, scale) of the network input; `im_size` (N, 2) rows (height, width) of the original picture; where `strides` (L, 2) =
(down, across) pixels a cell are an input, the attribute `strides` only says how many levels there are.
Outputs, level by level and by descending score within a level: `boxes` (N, M, 4) in original pixels, `scores` (N, M), `classes` (N, M)
int64 from `first_class` on, `levels` (N, M) int64 from 0; M is the sum over levels of the smaller of `pre_nms_top_n` and all of them.

Per level: the `pre_nms_top_n` best scores (<= 0: all), anchors shifted by `strides` pixels a cell, decoded in network-input pixels, divided
by the scale, clipped to the picture; without `regress` the anchors themselves are. With `network_frame` boxes are clipped to `im_info`'s
size first, and then brought to original pixels by the ratios of `im_size` to it, across and down apart (torchvision). Without `clip` they
are clipped nowhere (detectron2).
Ties: the lower index in (anchor, class, y, x) order, that of the tensor, wins; the original takes any of them. Since the threshold comes
after, candidates serve every threshold: the best of those above it are the best that are above it.
Here a RetinaNet is cut where a run needs the host (soft-NMS, thresholds of its own): these few rows, not the dense maps.
Source: Detectron's `test_retinanet.im_detect_bbox`, up to its NMS.
"""

from __future__ import annotations

from roiline.ops.operator import Operator
from roiline.ops.retinanet_candidates.function import write_retinanet_candidates
from roiline.ops.retinanet_candidates.lowering import CANDIDATE_KERNELS, lower_retinanet_candidates
from roiline.ops.retinanet_candidates.reference import retinanet_candidates

RETINANET_CANDIDATES = Operator(
    name="RetinaNetCandidates",
    inputs=("cls_prob...", "bbox_pred...", "anchors", "im_info", "im_size", "strides?"),
    outputs={"boxes": ("float32", 3), "scores": ("float32", 2), "classes": ("int64", 2), "levels": ("int64", 2)},
    attributes={
        "strides": None,
        "pre_nms_top_n": None,
        "regress": 1,
        "network_frame": 0,
        "clip": 1,
        "first_class": 1,
        "size_offset": 1.0,
        "corner_offset": 1.0,
        "delta_clip": None,
    },
    reference=retinanet_candidates,
    function=write_retinanet_candidates,
    kernels=CANDIDATE_KERNELS,
    lower=lower_retinanet_candidates,
)
