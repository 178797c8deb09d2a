"""DetectionOutput in standard ONNX operators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx

from roiline.ops.box_coding import write_clip, write_decode
from roiline.ops.class_suppression import Candidates, KeptBoxes, write_candidates, write_class_nms
from roiline.ops.final_clip import PaddedDetections, write_final_clip
from roiline.ops.nodes import LAST, FunctionWriter
from roiline.ops.suppression import write_longest, write_rows_of, write_slots

_NAMES = PaddedDetections("boxes", "scores", "classes", "count")


def write_detection_output(_inputs: int, attributes: Mapping[str, Any]) -> onnx.FunctionProto:
    """Returns the function body for the given attributes."""
    w = FunctionWriter()
    image = w.cast(w.squeeze(w.columns("rois", 0, 1), 1), np.int64)
    (images,) = w.dims("im_info", 0)
    foreground = w.columns("cls_prob", 1, LAST)
    (columns,) = w.dims(foreground, 1)
    candidates = write_candidates(w, foreground, attributes["score_thresh"])
    slots, _ = write_slots(w, image, images)
    boxes = _decode(w, candidates, image, columns, attributes)
    if attributes["smallest_side"] > 0:
        candidates, boxes = _drop_small(w, candidates, boxes, attributes["smallest_side"])
    if attributes["network_frame"]:
        boxes = w.op("Mul", boxes, _ratios_of(w, candidates, image))
    longest = write_longest(w, "roi_count")
    kept = write_class_nms(
        w,
        candidates,
        boxes,
        slots,
        images=images,
        columns=columns,
        longest=longest,
        threshold=attributes["nms_thresh"],
        inclusive=bool(attributes["nms_inclusive"]),
        plus_one=attributes["size_offset"],
        limit=w.ints(LAST),
        one_empty_box=False,
        in_row_order=True,
        later_first=bool(attributes["later_first"]),
    )
    names = _NAMES if not attributes["final_clip"] else PaddedDetections(*(f"unclipped_{name}" for name in _NAMES))
    if attributes["ranked"]:
        _rank_and_pad(w, kept, images, columns, longest, attributes["max_dets"], names)
    else:
        _limit_and_pad(w, kept, images, attributes["max_dets"], names)
    if attributes["final_clip"]:
        write_final_clip(w, names, "im_size", _NAMES)
    inputs = ("rois", "cls_prob", "bbox_pred", "im_info", "im_size", "roi_count")
    return w.finish("DetectionOutput", inputs, _NAMES)


def _decode(w: FunctionWriter, candidates: Candidates, image: str, columns: str, attributes: Mapping[str, Any]) -> str:
    """Returns the boxes (M, 4) of the candidates, in pixels of the frame that they are decoded in."""
    image = w.op("Gather", image, candidates.row, axis=0)
    proposals, size_hw = w.op("Gather", w.columns("rois", 1, 5), candidates.row, axis=0), "im_size"
    if attributes["network_frame"]:
        size_hw = w.columns("im_info", 0, 2, axis=1)
    else:
        scale = w.op("Gather", w.columns("im_info", 2, 3, axis=1), image, axis=0)
        proposals = w.op("Div", proposals, scale)
    if not attributes["regress"]:
        return proposals
    if attributes["class_agnostic"]:
        deltas = w.op("Gather", w.columns("bbox_pred", -4, LAST), candidates.row, axis=0)
    else:
        (rows,) = w.dims("bbox_pred", 0)
        by_class = w.reshape("bbox_pred", rows, w.op("Add", columns, w.ints(1)), 4)
        deltas = write_rows_of(w, by_class, w.op("Add", candidates.places, w.ints(0, 1)))
    decoded = write_decode(
        w,
        proposals,
        deltas,
        weights=attributes["bbox_reg_weights"],
        size_offset=attributes["size_offset"],
        corner_offset=attributes["corner_offset"],
        delta_clip=attributes["delta_clip"],
    )
    return write_clip(w, decoded, w.op("Gather", size_hw, image, axis=0), size_offset=attributes["size_offset"])


def _drop_small(w: FunctionWriter, candidates: Candidates, boxes: str, smallest: float) -> tuple[Candidates, str]:
    """Returns the candidates, and their boxes, of which both sides are long enough."""
    sides = w.op("Sub", w.columns(boxes, 2, 4), w.columns(boxes, 0, 2))
    shortest = w.op("ReduceMin", sides, w.ints(1), keepdims=0)
    kept = w.squeeze(w.op("NonZero", w.op("GreaterOrEqual", shortest, w.scalar(smallest))), 0)
    parts = (candidates.places, candidates.row, candidates.column, candidates.scores)
    return Candidates(*(w.op("Gather", part, kept, axis=0) for part in parts)), w.op("Gather", boxes, kept, axis=0)


def _ratios_of(w: FunctionWriter, candidates: Candidates, image: str) -> str:
    """Returns original pixels per network-input pixel for each candidate, (M, 4): across, down, across, down."""
    ratios = w.op("Div", "im_size", w.columns("im_info", 0, 2, axis=1))
    down, across = w.columns(ratios, 0, 1), w.columns(ratios, 1, 2)
    image = w.op("Gather", image, candidates.row, axis=0)
    return w.op("Gather", w.concat(across, down, across, down, axis=1), image, axis=0)


def _rank_and_pad(
    w: FunctionWriter,
    found: KeptBoxes,
    images: str,
    columns: str,
    longest: str,
    max_dets: int,
    names: PaddedDetections,
) -> None:
    """Puts each picture's rows into descending order of scores, applies the limit, and names the outputs."""
    place = w.op("Add", w.op("Mul", found.image, w.op("Max", longest, w.ints(1))), found.index)
    place = w.op("Add", w.op("Mul", place, columns), found.column)
    _, order = w.multi("TopK", place, w.op("Shape", place), names=(None, None), axis=0, largest=0, sorted=1)
    image, boxes, scores, column = (
        w.op("Gather", part, order, axis=0) for part in (found.image, found.boxes, found.scores, found.column)
    )
    slots, counts = write_slots(w, image, images)
    most = write_longest(w, counts)
    padded = (
        w.op("ScatterND", w.full(0.0, images, most, w.ints(4)), slots, boxes),
        w.op("ScatterND", w.full(-np.inf, images, most), slots, scores),
        w.op("ScatterND", w.cast(w.full(0.0, images, most), np.int64), slots, w.op("Add", column, w.ints(1))),
    )
    wanted = w.op("Min", most, w.ints(max_dets)) if max_dets > 0 else most
    best, rank = w.multi("TopK", padded[1], wanted, names=(None, None), axis=1, largest=1, sorted=1)
    rank = w.unsqueeze(rank, 2)
    w.op("GatherND", padded[0], rank, batch_dims=1, name=names.boxes)
    w.rename(best, names.scores)
    w.op("GatherND", padded[2], rank, batch_dims=1, name=names.classes)
    w.op("Min", counts, wanted, name=names.counts)


def _limit_and_pad(w: FunctionWriter, found: KeptBoxes, images: str, max_dets: int, names: PaddedDetections) -> None:
    """Applies the limit, and names the outputs."""
    image, boxes, scores, labels = found.image, found.boxes, found.scores, w.op("Add", found.column, w.ints(1))
    if max_dets > 0:
        kept = w.squeeze(w.op("NonZero", _reaches_limit(w, image, scores, images, max_dets)), 0)
        image, boxes, scores, labels = (w.op("Gather", t, kept, axis=0) for t in (image, boxes, scores, labels))
    slots, counts = write_slots(w, image, images)
    longest = write_longest(w, counts)
    w.op("ScatterND", w.full(0.0, images, longest, w.ints(4)), slots, boxes, name=names.boxes)
    w.op("ScatterND", w.full(-np.inf, images, longest), slots, scores, name=names.scores)
    w.op("ScatterND", w.cast(w.full(0.0, images, longest), np.int64), slots, labels, name=names.classes)
    w.rename(counts, names.counts)


def _reaches_limit(w: FunctionWriter, image: str, scores: str, images: str, max_dets: int) -> str:
    """Returns which rows score at least as much as the max_dets-th best of their picture (all, where there are fewer)."""
    slots, counts = write_slots(w, image, images)
    longest = w.op("Max", write_longest(w, counts), w.ints(1))
    padded = w.op("ScatterND", w.full(-np.inf, images, longest), slots, scores)
    best, _ = w.multi(
        "TopK", padded, w.op("Min", longest, w.ints(max_dets)), names=(None, None), axis=1, largest=1, sorted=1
    )
    least = w.squeeze(w.columns(best, -1, LAST, axis=1), 1)
    return w.op("GreaterOrEqual", scores, w.op("Gather", least, image, axis=0))
