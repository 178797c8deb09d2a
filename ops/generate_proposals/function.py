"""GenerateProposals in standard ONNX operators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx

from roiline.ops.box_coding import write_clip, write_decode
from roiline.ops.nodes import LAST, FunctionWriter
from roiline.ops.suppression import (
    LOWEST,
    write_far_corners,
    write_longest,
    write_nms,
    write_rows_of,
    write_single_empty_box,
    write_slots,
)


def write_generate_proposals(_inputs: int, attributes: Mapping[str, Any]) -> onnx.FunctionProto:
    """Returns the function body for the given attributes."""
    w = FunctionWriter()
    images, height, width = w.dims("scores", 0, 2, 3)
    flat = w.reshape(w.op("Transpose", "scores", perm=(0, 2, 3, 1)), images, -1)
    (candidates,) = w.dims(flat, 1)
    best, index = _select(w, flat, candidates, attributes["pre_nms_top_n"])
    if attributes["logits"]:
        best = w.op("Sigmoid", best)
    anchors = _anchors_at(w, index, width)
    deltas = _deltas_at(w, index, images, height, width)
    boxes = write_decode(
        w,
        anchors,
        deltas,
        size_offset=attributes["size_offset"],
        corner_offset=attributes["corner_offset"],
        delta_clip=attributes["delta_clip"],
    )
    boxes = write_clip(
        w, boxes, w.unsqueeze(w.columns("im_info", 0, 2, axis=1), 1), size_offset=attributes["size_offset"]
    )
    fits = _large_and_inside(w, boxes, attributes)
    if attributes["score_thresh"] > 0:
        fits = w.op("And", fits, w.op("GreaterOrEqual", best, w.scalar(attributes["score_thresh"])))
    best = w.op("Where", fits, best, w.scalar(-np.inf))
    boxes, best, count = _suppress(w, boxes, best, images, attributes)
    w.rename(boxes, "boxes")
    w.rename(best, "kept_scores")
    w.rename(count, "count")
    names = ("scores", "deltas", "im_info", "anchors", "stride")
    return w.finish("GenerateProposals", names, ("boxes", "kept_scores", "count"))


def _select(w: FunctionWriter, flat: str, candidates: str, top_n: int) -> tuple[str, str]:
    """Returns the best scores (N, K) and their flat (y, x, anchor) indices."""
    wanted = w.op("Min", candidates, w.ints(top_n)) if top_n > 0 else candidates
    best, index = w.multi("TopK", flat, wanted, names=(None, None), axis=1, largest=1, sorted=1)
    return best, index


def _anchors_at(w: FunctionWriter, index: str, width: str) -> str:
    """Returns the anchors (N, K, 4) at flat indices; only the chosen ones are placed."""
    (per_cell,) = w.dims("anchors", 0)
    cell = w.op("Div", index, per_cell)
    x = w.cast(w.op("Mod", cell, width), np.float32)
    y = w.cast(w.op("Div", cell, width), np.float32)
    across = w.unsqueeze(w.op("Mul", x, w.columns("stride", 1, 2, axis=0)), 2)
    down = w.unsqueeze(w.op("Mul", y, w.columns("stride", 0, 1, axis=0)), 2)
    base = w.op("Gather", "anchors", w.op("Mod", index, per_cell), axis=0)
    return w.op("Add", w.concat(across, down, across, down, axis=2), base)


def _deltas_at(w: FunctionWriter, index: str, images: str, height: str, width: str) -> str:
    """Returns the deltas (N, K, 4) at flat indices."""
    (per_cell,) = w.dims("anchors", 0)
    by_anchor = w.reshape("deltas", images, per_cell, 4, height, width)
    rows = w.reshape(
        w.op("Transpose", by_anchor, perm=(0, 3, 4, 1, 2)), images, w.op("Mul", w.op("Mul", height, width), per_cell), 4
    )
    return w.op("GatherND", rows, w.unsqueeze(index, 2), batch_dims=1)


def _large_and_inside(w: FunctionWriter, boxes: str, attributes: Mapping[str, Any]) -> str:
    """Returns which boxes (N, K, 4) are large enough and have their centre in the picture, (N, K)."""
    low, high = w.columns(boxes, 0, 2), w.columns(boxes, 2, 4)
    sides = w.op("Sub", high, low)
    scale = w.unsqueeze(w.columns("im_info", 2, 3, axis=1), 1)
    in_network = attributes["min_size_in_network"]
    measured = sides if in_network else w.op("Div", sides, scale)
    if attributes["size_offset"]:
        measured = w.op("Add", measured, w.scalar(attributes["size_offset"]))
    least = attributes["min_size"] if in_network else max(attributes["min_size"], 1.0)
    smallest = w.op("Mul", w.scalar(least), scale) if in_network else w.scalar(least)
    sides = measured if in_network else w.op("Mul", measured, scale)
    centres = w.op("Add", low, w.op("Div", sides, w.scalar(2.0)))
    height, width = w.columns("im_info", 0, 1, axis=1), w.columns("im_info", 1, 2, axis=1)
    size_xy = w.unsqueeze(w.concat(width, height, axis=1), 1)
    fits = w.op("And", w.op("GreaterOrEqual", measured, smallest), w.op("Less", centres, size_xy))
    if attributes["min_side"]:
        longer = w.op("GreaterOrEqual", w.op("Sub", high, low), w.scalar(attributes["min_side"]))
        fits = w.op("And", fits, longer)
    fails = w.op("ReduceMax", w.cast(w.op("Not", fits), np.int64), w.ints(2), keepdims=0)
    return w.op("Equal", fails, w.integer(0))


def _suppress(
    w: FunctionWriter, boxes: str, scores: str, images: str, attributes: Mapping[str, Any]
) -> tuple[str, str, str]:
    """Returns what NMS leaves of (N, K) candidates, padded, with the counts (N,)."""
    post = attributes["post_nms_top_n"]
    far_corners = write_far_corners(w, boxes, attributes["size_offset"])
    if attributes["one_empty_box"]:
        scores = write_single_empty_box(w, far_corners, scores)
    image, index = write_nms(
        w,
        far_corners,
        scores,
        threshold=attributes["nms_thresh"],
        inclusive=bool(attributes["nms_inclusive"]),
        limit=w.ints(post if post > 0 else LAST),
        score_floor=LOWEST,
    )
    kept = w.concat(w.unsqueeze(image, 1), w.unsqueeze(index, 1), axis=1)
    slots, count = write_slots(w, image, images)
    longest = write_longest(w, count)
    padded_boxes = w.op("ScatterND", w.full(0.0, images, longest, w.ints(4)), slots, write_rows_of(w, boxes, kept))
    padded_scores = w.op("ScatterND", w.full(-np.inf, images, longest), slots, write_rows_of(w, scores, kept))
    return padded_boxes, padded_scores, count
