"""Greedy non-maximum suppression, as numpy and as ONNX nodes, with the row bookkeeping that both need.

Source: Detectron's `nms` (suppresses at IoU >= threshold, widths with + 1) and Caffe2's (only above the threshold); the convention set
says which. Equal scores are visited lower index first.
"""

from __future__ import annotations

import numpy as np

from roiline.core.boxes import box_areas
from roiline.core.structures import Float32, Int64
from roiline.ops.nodes import NodeWriter
from roiline.ops.operator import below

LOWEST = float(np.finfo(np.float32).min)
"""The score floor that lets every score pass but -inf, which marks padding."""


def suppress_boxes(
    boxes: Float32,
    scores: Float32,
    *,
    threshold: float,
    inclusive: bool,
    plus_one: float,
    limit: int = 0,
    one_empty_box: bool = False,
    order: Int64 | None = None,
) -> Int64:
    """Returns the indices of kept boxes (n, 4), by descending score; at most `limit` (<= 0: all).

    Boxes without area do not overlap anything, unless `one_empty_box`: then the first of them suppresses the others. `order` is in which
    order boxes are visited, where another than by score and index is wanted.
    """
    order = np.argsort(-scores, kind="stable") if order is None else order
    areas = box_areas(boxes, plus_one=plus_one)
    offset, level = np.float32(plus_one), np.float32(threshold)
    kept: list[int] = []
    with np.errstate(divide="ignore", invalid="ignore"):
        while order.size and (limit <= 0 or len(kept) < limit):
            best, rest = order[0], order[1:]
            kept.append(int(best))
            low = np.maximum(boxes[best, :2], boxes[rest, :2])
            sides = np.maximum(np.minimum(boxes[best, 2:], boxes[rest, 2:]) - low + offset, np.float32(0))
            shared = sides[:, 0] * sides[:, 1]
            overlap = shared / (areas[best] + areas[rest] - shared)
            suppressed = overlap >= level if inclusive else overlap > level
            order = rest[~(suppressed | (np.isnan(overlap) & one_empty_box))]
    return np.asarray(kept, np.int64)


def pad_rows(groups: list[Float32], fill: float) -> Float32:
    """Stacks N arrays of differing row counts into (N, longest, ...), filled up with `fill`."""
    longest = max((len(rows) for rows in groups), default=0)
    padded = np.full((len(groups), longest, *groups[0].shape[1:]), fill, groups[0].dtype)
    for target, rows in zip(padded, groups, strict=True):
        target[: len(rows)] = rows
    return padded


def write_far_corners(w: NodeWriter, boxes: str, plus_one: float) -> str:
    """Returns boxes (..., 4) with x2 + plus_one and y2 + plus_one: what they cover, for an operator that knows no + 1."""
    return w.op("Add", boxes, w.constant(np.array([0.0, 0.0, plus_one, plus_one], np.float32))) if plus_one else boxes


def write_nms(
    w: NodeWriter, boxes: str, scores: str, *, threshold: float, inclusive: bool, limit: str, score_floor: float
) -> tuple[str, str]:
    """Writes NMS over G independent groups: boxes (G, n, 4), scores (G, n) -> group (M,) and index (M,) of kept boxes.

    Boxes are as `write_far_corners` returns them. Scores at or below `score_floor` never survive. Within a group rows come by
    descending score, ties by index. ONNX's operator suppresses above its threshold: where the convention suppresses at it, the
    threshold is taken one float lower. It also takes corners in either order: boxes must have x1 <= x2 and y1 <= y2, as decoded and
    clipped boxes have.
    """
    level = min(below(threshold) if inclusive else max(threshold, 0.0), 1.0)
    selected = w.op(
        "NonMaxSuppression",
        boxes,
        w.unsqueeze(scores, 1),
        limit,
        w.constant(np.array([level], np.float32)),
        w.constant(np.array([score_floor], np.float32)),
    )
    return w.squeeze(w.columns(selected, 0, 1, axis=1), 1), w.squeeze(w.columns(selected, 2, 3, axis=1), 1)


def write_single_empty_box(w: NodeWriter, boxes: str, scores: str) -> str:
    """Returns scores (G, n) with -inf for every box without area but the best of its group (ties: the first)."""
    sides = w.op("Sub", w.columns(boxes, 2, 4), w.columns(boxes, 0, 2))
    empty = w.op("Equal", w.op("ReduceProd", sides, w.ints(-1), keepdims=0), w.scalar(0.0))
    nothing = w.scalar(-np.inf)
    best = w.op("ArgMax", w.op("Where", empty, scores, nothing), axis=1, keepdims=1)
    (rows,) = w.dims(scores, 1)
    others = w.op("Not", w.op("Equal", w.unsqueeze(w.range(rows), 0), best))
    return w.op("Where", w.op("And", empty, others), nothing, scores)


def write_slots(w: NodeWriter, group: str, group_count: str) -> tuple[str, str]:
    """Returns slots (M, 2) = (group, position within the group) of rows sorted by group (M,), and the counts (groups,)."""
    one_hot = w.op("Equal", w.unsqueeze(group, 1), w.unsqueeze(w.range(group_count), 0))
    counts = w.op("ReduceSum", w.cast(one_hot, np.int64), w.ints(0), keepdims=0)
    starts = w.op("CumSum", counts, w.integer(0), exclusive=1)
    rows = w.range(w.op("Shape", group))
    position = w.op("Sub", rows, w.op("Gather", starts, group, axis=0))
    return w.concat(w.unsqueeze(group, 1), w.unsqueeze(position, 1), axis=1), counts


def write_longest(w: NodeWriter, counts: str) -> str:
    """Returns the largest count as a 1-D tensor."""
    return w.op("ReduceMax", counts, w.ints(0), keepdims=1)


def write_rows_of(w: NodeWriter, tensor: str, slots: str) -> str:
    """Gathers rows (M, ...) of a tensor (G, n, ...) at slots (M, 2)."""
    return w.op("GatherND", tensor, slots)
