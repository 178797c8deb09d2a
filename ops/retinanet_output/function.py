"""RetinaNetOutput in standard ONNX operators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx

from roiline.ops.final_clip import PaddedDetections, write_final_clip
from roiline.ops.nodes import LAST, FunctionWriter
from roiline.ops.suppression import (
    LOWEST,
    write_far_corners,
    write_longest,
    write_nms,
    write_rows_of,
    write_slots,
)

_KINDS = ("boxes", "scores", "classes")
_NAMES = PaddedDetections(*_KINDS, "count")


def write_retinanet_output(inputs: int, attributes: Mapping[str, Any]) -> onnx.FunctionProto:
    """Returns the function body for the given attributes."""
    w = FunctionWriter()
    columns, max_dets = attributes["num_classes"] - attributes["first_class"], attributes["max_dets"]
    images, rows = w.dims("candidate_boxes", 0, 1)
    groups = w.op("Mul", images, w.ints(columns))
    group, index = write_nms(
        w,
        w.reshape(_boxes_by_class(w, columns, attributes["size_offset"]), groups, rows, 4),
        w.reshape(_scores_by_class(w, columns, attributes), groups, rows),
        threshold=attributes["nms_thresh"],
        inclusive=bool(attributes["nms_inclusive"]),
        limit=w.ints(max_dets if max_dets > 0 else LAST),
        score_floor=LOWEST,
    )
    image = w.op("Div", group, w.integer(columns))
    candidates = (*(f"candidate_{name}" for name in _KINDS), "candidate_levels")
    clipped = inputs > len(candidates)
    results = PaddedDetections(*(f"unclipped_{name}" for name in _NAMES)) if clipped else _NAMES
    _limit(w, *_pad(w, image, index, images), max_dets, results, ranked=bool(attributes["ranked"]))
    if clipped:
        write_final_clip(w, results, "im_size", _NAMES)
    return w.finish("RetinaNetOutput", (*candidates, "im_size") if clipped else candidates, _NAMES)


def _pad(w: FunctionWriter, image: str, index: str, images: str) -> tuple[tuple[str, ...], str]:
    """Returns boxes (N, longest, 4), scores and classes (N, longest) of the kept candidates (P,), and their counts (N,)."""
    slots, counts = write_slots(w, image, images)
    longest = write_longest(w, counts)
    nothing = (
        w.full(0.0, images, longest, w.ints(4)),
        w.full(-np.inf, images, longest),
        w.cast(w.full(0.0, images, longest), np.int64),
    )
    kept = w.concat(w.unsqueeze(image, 1), w.unsqueeze(index, 1), axis=1)
    rows = (write_rows_of(w, f"candidate_{kind}", kept) for kind in _KINDS)
    return tuple(w.op("ScatterND", empty, slots, filled) for empty, filled in zip(nothing, rows, strict=True)), counts


def _boxes_by_class(w: FunctionWriter, columns: int, plus_one: float) -> str:
    """Returns the boxes, once a class (N, columns, M, 4), as `write_nms` takes them.

    Division by a small scale can turn a box of less than a network pixel inside out (x2 + 1 < x1). Such a box overlaps nothing in the
    original; without its area it overlaps nothing here.
    """
    far_corners = write_far_corners(w, "candidate_boxes", plus_one)
    low = w.columns(far_corners, 0, 2)
    ordered = w.concat(low, w.op("Max", low, w.columns(far_corners, 2, 4)), axis=2)
    return w.op("Expand", w.unsqueeze(ordered, 1), w.ints(1, columns, 1, 1))


def _scores_by_class(w: FunctionWriter, columns: int, attributes: Mapping[str, Any]) -> str:
    """Returns scores (N, columns, M), -inf where a candidate is of another class or not above its level's threshold."""
    (images,) = w.dims("candidate_levels", 0)
    finest = w.op("Expand", w.integer(0), w.concat(images, w.ints(1)))  # so that no candidates have a largest level too
    largest = w.op("ReduceMax", w.concat("candidate_levels", finest, axis=1), w.ints(1), keepdims=1)
    threshold = w.op(
        "Where",
        w.op("Equal", "candidate_levels", largest),
        w.scalar(attributes["coarsest_score_thresh"]),
        w.scalar(attributes["score_thresh"]),
    )
    first = attributes["first_class"]
    labels = w.constant(np.arange(first, first + columns).reshape(1, columns, 1))
    of_class = w.op("Equal", w.unsqueeze("candidate_classes", 1), labels)
    counts = w.op("And", of_class, w.unsqueeze(w.op("Greater", "candidate_scores", threshold), 1))
    return w.op("Where", counts, w.unsqueeze("candidate_scores", 1), w.scalar(-np.inf))


def _limit(
    w: FunctionWriter, padded: tuple[str, ...], counts: str, max_dets: int, names: PaddedDetections, *, ranked: bool
) -> None:
    """Keeps the `max_dets` best of each picture, in their own order or by descending score, and names the outputs."""
    if max_dets <= 0 and not ranked:
        for tensor, name in zip(padded, names, strict=False):
            w.rename(tensor, name)
        w.rename(counts, names.counts)
        return
    wanted = write_longest(w, counts)
    if max_dets > 0:
        wanted = w.op("Min", wanted, w.ints(max_dets))
    _, best = w.multi("TopK", padded[1], wanted, names=(None, None), axis=1, largest=1, sorted=1)
    in_order = best
    if not ranked:
        in_order, _ = w.multi("TopK", best, wanted, names=(None, None), axis=1, largest=0, sorted=1)
    for tensor, name in zip(padded, names, strict=False):
        w.op("GatherND", tensor, w.unsqueeze(in_order, 2), batch_dims=1, name=name)
    w.op("Min", counts, wanted, name=names.counts)
