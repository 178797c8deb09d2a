"""NMS per class and picture over a flat list of RoIs, as ONNX nodes.

ONNX's operator wants one dense group of boxes a picture and class. Only what scores above the threshold is decoded and placed there,
so the cost follows the candidates and not RoIs times classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from roiline.ops.nodes import NodeWriter
from roiline.ops.suppression import LOWEST, write_far_corners, write_nms, write_rows_of, write_single_empty_box


@dataclass(frozen=True, slots=True)
class Candidates:
    """Names the scores above a threshold: their `row` (M,) and `column` (M,) in the matrix, as one `places` (M, 2), and `scores` (M,)."""

    places: str
    row: str
    column: str
    scores: str


@dataclass(frozen=True, slots=True)
class KeptBoxes:
    """Names what NMS keeps: `image`, `column` (the class's), `index` (the row within its picture), `scores`, all (P,), `boxes` (P, 4)."""

    image: str
    column: str
    index: str
    boxes: str
    scores: str


def write_candidates(w: NodeWriter, scores: str, threshold: float) -> Candidates:
    """Finds the entries of scores (T, C) above a threshold."""
    above = w.op("Greater", scores, w.scalar(threshold))
    places = w.op("Transpose", w.op("NonZero", above), perm=(1, 0))
    row, column = (w.squeeze(w.columns(places, axis, axis + 1), 1) for axis in (0, 1))
    return Candidates(places, row, column, write_rows_of(w, scores, places))


def write_class_nms(
    w: NodeWriter,
    candidates: Candidates,
    boxes: str,
    slots: str,
    *,
    images: str,
    columns: str,
    longest: str,
    threshold: float,
    inclusive: bool,
    plus_one: float,
    limit: str,
    one_empty_box: bool,
    in_row_order: bool,
    later_first: bool = False,
) -> KeptBoxes:
    """Writes NMS over boxes (M, 4) of the candidates; picture by picture, class by class, `limit` a class.

    `slots` (T, 2) are (picture, position within it) of the score rows, `longest` the largest number of rows of a picture. Within a
    class what is kept comes in the order of its rows, or else by descending score. Of equal scores the earlier row wins, or the later.
    """
    slot = w.op("Gather", slots, candidates.row, axis=0)
    group = w.op("Add", w.op("Mul", w.columns(slot, 0, 1), columns), w.unsqueeze(candidates.column, 1))
    position = w.columns(slot, 1, 2)
    groups, rows = w.op("Mul", images, columns), w.op("Max", longest, w.ints(1))
    last = w.op("Sub", rows, w.ints(1))
    visited = w.concat(group, w.op("Sub", last, position) if later_first else position, axis=1)
    dense_scores = w.op("ScatterND", w.full(-np.inf, groups, rows), visited, candidates.scores)
    far_corners = write_far_corners(w, boxes, plus_one)
    dense_boxes = w.op("ScatterND", w.full(0.0, groups, rows, w.ints(4)), visited, far_corners)
    place = w.concat(group, position, axis=1)
    if one_empty_box:
        dense_scores = write_single_empty_box(w, dense_boxes, dense_scores)
    group, index = write_nms(
        w,
        dense_boxes,
        dense_scores,
        threshold=threshold,
        inclusive=inclusive,
        limit=limit,
        score_floor=LOWEST,
    )
    if later_first:
        index = w.op("Sub", last, index)
    if in_row_order:
        group, index = _sort_by_row(w, group, index, rows)
    kept = w.concat(w.unsqueeze(group, 1), w.unsqueeze(index, 1), axis=1)
    source = w.op(
        "ScatterND", w.op("Expand", w.integer(0), w.concat(groups, rows)), place, w.range(w.op("Shape", candidates.row))
    )
    source = write_rows_of(w, source, kept)
    image, column = w.op("Div", group, columns), w.op("Mod", group, columns)
    return KeptBoxes(
        image, column, index, w.op("Gather", boxes, source, axis=0), w.op("Gather", candidates.scores, source, axis=0)
    )


def _sort_by_row(w: NodeWriter, group: str, index: str, rows: str) -> tuple[str, str]:
    """Returns groups and indices (P,) sorted by group, then index."""
    key = w.op("Add", w.op("Mul", group, rows), index)
    key, _ = w.multi("TopK", key, w.op("Shape", key), names=(None, None), axis=0, largest=0, sorted=1)
    return w.op("Div", key, rows), w.op("Mod", key, rows)
