"""GenerateProposals: objectness and deltas of one feature level into the best proposals of every picture.

Inputs: `scores` (N, A, H, W) after the sigmoid, `deltas` (N, 4A, H, W), `im_info` (N, 3) rows (height, width, scale) of the network
input, `anchors` (A, 4) around the first cell, `stride` (2,) = (down, across) pixels per cell.
Outputs: `boxes` (N, P, 4) in network-input pixels and `kept_scores` (N, P), by descending score, padded with zeros and -inf; `count` (N,)
int64. P is the smaller of the candidates and the limits.

With `logits` scores come before the sigmoid: they are ranked as they are, and the best go through it.
Order of work (Detectron's): the `pre_nms_top_n` best scores (<= 0: all), decode, clip, filter, NMS, the `post_nms_top_n` best (<= 0:
all). A threshold of 1 that is not inclusive suppresses nothing; `one_empty_box` keeps only the best of the boxes without area, as
Caffe2 does without + 1 (their overlap is 0 / 0, which it takes for too much). The filter keeps a box whose sides are at least
`min_size` and whose centre lies in the picture; with `min_size_in_network` the sides are measured against min_size x scale in network
pixels (Caffe2's operator), else in original pixels against max(min_size, 1) (Detectron's Python). It also drops what scores less
than `score_thresh` or has a side shorter than `min_side` network pixels (torchvision). Ties: the lower index in
(y, x, anchor) order wins.
"""

from __future__ import annotations

from roiline.ops.generate_proposals.function import write_generate_proposals
from roiline.ops.generate_proposals.lowering import GENERATE_KERNELS, lower_generate_proposals
from roiline.ops.generate_proposals.reference import generate_proposals
from roiline.ops.operator import Operator

GENERATE_PROPOSALS = Operator(
    name="GenerateProposals",
    inputs=("scores", "deltas", "im_info", "anchors", "stride"),
    outputs={"boxes": ("float32", 3), "kept_scores": ("float32", 2), "count": ("int64", 1)},
    attributes={
        "pre_nms_top_n": None,
        "post_nms_top_n": None,
        "nms_thresh": None,
        "min_size": 0.0,
        "min_size_in_network": 0,
        "min_side": 0.0,
        "score_thresh": 0.0,
        "logits": 0,
        "nms_inclusive": 1,
        "one_empty_box": 0,
        "size_offset": 1.0,
        "corner_offset": 1.0,
        "delta_clip": None,
    },
    reference=generate_proposals,
    function=write_generate_proposals,
    kernels=GENERATE_KERNELS,
    lower=lower_generate_proposals,
)
