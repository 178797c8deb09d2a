"""CollectProposals: the proposals of all levels into the best of each picture.

Inputs: L tensors `boxes...` (N, P_l, 4), then L tensors `scores...` (N, P_l), padded with -inf, finest level first.
Outputs: `boxes` (N, R, 4), `kept_scores` (N, R) by descending score, padded with zeros and -inf, and `count` (N,) int64; R is the
smaller of `post_nms_top_n` (<= 0: no limit) and what there is. There is no NMS across levels. Ties: the finer level, then the lower row.
Source: the collecting half of Detectron's CollectAndDistributeFpnRpnProposals.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx

from roiline.core.structures import Float32, Int64
from roiline.ops.collect_proposals.lowering import COLLECT_KERNELS, lower_collect_proposals
from roiline.ops.nodes import FunctionWriter
from roiline.ops.operator import Operator
from roiline.ops.suppression import pad_rows, write_longest


def collect_proposals(*levels: Float32, post_nms_top_n: int) -> tuple[Float32, Float32, Int64]:
    """Returns boxes (N, R, 4), scores (N, R) and count (N,); see the operator's description."""
    half = len(levels) // 2
    boxes, scores = np.concatenate(levels[:half], axis=1), np.concatenate(levels[half:], axis=1)
    order = np.argsort(-scores, axis=1, kind="stable")
    order = order[:, :post_nms_top_n] if post_nms_top_n > 0 else order
    best = np.take_along_axis(scores, order, axis=1)
    kept = np.take_along_axis(boxes, order[..., None], axis=1)
    count = np.isfinite(best).sum(axis=1).astype(np.int64)
    rows = [(boxes_of[:n], scores_of[:n]) for boxes_of, scores_of, n in zip(kept, best, count, strict=True)]
    return pad_rows([r[0] for r in rows], 0.0), pad_rows([r[1] for r in rows], -np.inf), count


def write_collect_proposals(inputs: int, attributes: Mapping[str, Any]) -> onnx.FunctionProto:
    """Returns the function body for `inputs` / 2 levels."""
    w = FunctionWriter()
    levels = range(inputs // 2)
    boxes = w.concat(*(f"boxes_{level}" for level in levels), axis=1)
    scores = w.concat(*(f"scores_{level}" for level in levels), axis=1)
    (wanted,) = w.dims(scores, 1)
    if attributes["post_nms_top_n"] > 0:
        wanted = w.op("Min", wanted, w.ints(attributes["post_nms_top_n"]))
    best, index = w.multi("TopK", scores, wanted, names=(None, None), axis=1, largest=1, sorted=1)
    real = w.op("Greater", best, w.scalar(-np.inf))
    count = w.op("ReduceSum", w.cast(real, np.int64), w.ints(1), keepdims=0, name="count")
    longest = write_longest(w, count)
    best, index, real = (w.op("Slice", tensor, w.ints(0), longest, w.ints(1)) for tensor in (best, index, real))
    kept = w.op("GatherND", boxes, w.unsqueeze(index, 2), batch_dims=1)
    w.op("Where", w.unsqueeze(real, 2), kept, w.scalar(0.0), name="boxes")
    w.rename(best, "kept_scores")
    names = [f"boxes_{level}" for level in levels] + [f"scores_{level}" for level in levels]
    return w.finish("CollectProposals", names, ("boxes", "kept_scores", "count"))


COLLECT_PROPOSALS = Operator(
    name="CollectProposals",
    inputs=("boxes...", "scores..."),
    outputs={"boxes": ("float32", 3), "kept_scores": ("float32", 2), "count": ("int64", 1)},
    attributes={"post_nms_top_n": None},
    reference=collect_proposals,
    function=write_collect_proposals,
    kernels=COLLECT_KERNELS,
    lower=lower_collect_proposals,
)
