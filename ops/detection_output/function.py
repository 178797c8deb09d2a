"""DetectionOutput in standard ONNX operators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx

from roiline.ops.box_coding import write_clip, write_decode
from roiline.ops.class_suppression import Candidates, KeptBoxes, write_candidates, write_class_nms
from roiline.ops.nodes import LAST, FunctionWriter
from roiline.ops.suppression import write_longest, write_rows_of, write_slots


def write_detection_output(_inputs: int, attributes: Mapping[str, Any]) -> onnx.FunctionProto:
    """Returns the function body for the given attributes."""
    w = FunctionWriter()
    image = w.cast(w.squeeze(w.columns("rois", 0, 1), 1), np.int64)
    (images,) = w.dims("im_info", 0)
    foreground = w.columns("cls_prob", 1, LAST)
    (columns,) = w.dims(foreground, 1)
    candidates = write_candidates(w, foreground, attributes["score_thresh"])
    slots, _ = write_slots(w, image, images)
    kept = write_class_nms(
        w,
        candidates,
        _decode(w, candidates, image, columns, attributes),
        slots,
        images=images,
        columns=columns,
        longest=write_longest(w, "roi_count"),
        threshold=attributes["nms_thresh"],
        inclusive=bool(attributes["nms_inclusive"]),
        plus_one=attributes["size_offset"],
        limit=w.ints(LAST),
        one_empty_box=False,
        in_row_order=True,
    )
    _limit_and_pad(w, kept, images, attributes["max_dets"])
    names = ("rois", "cls_prob", "bbox_pred", "im_info", "im_size", "roi_count")
    return w.finish("DetectionOutput", names, ("boxes", "scores", "classes", "count"))


def _decode(w: FunctionWriter, candidates: Candidates, image: str, columns: str, attributes: Mapping[str, Any]) -> str:
    """Returns the boxes (M, 4) of the candidates, in original pixels."""
    image = w.op("Gather", image, candidates.row, axis=0)
    scale = w.op("Gather", w.columns("im_info", 2, 3, axis=1), image, axis=0)
    original = w.op("Div", w.op("Gather", w.columns("rois", 1, 5), candidates.row, axis=0), scale)
    if not attributes["regress"]:
        return original
    if attributes["class_agnostic"]:
        deltas = w.op("Gather", w.columns("bbox_pred", -4, LAST), candidates.row, axis=0)
    else:
        (rows,) = w.dims("bbox_pred", 0)
        by_class = w.reshape("bbox_pred", rows, w.op("Add", columns, w.ints(1)), 4)
        deltas = write_rows_of(w, by_class, w.op("Add", candidates.places, w.ints(0, 1)))
    decoded = write_decode(
        w,
        original,
        deltas,
        weights=attributes["bbox_reg_weights"],
        size_offset=attributes["size_offset"],
        corner_offset=attributes["corner_offset"],
        delta_clip=attributes["delta_clip"],
    )
    return write_clip(w, decoded, w.op("Gather", "im_size", image, axis=0), size_offset=attributes["size_offset"])


def _limit_and_pad(w: FunctionWriter, found: KeptBoxes, images: str, max_dets: int) -> None:
    """Applies the limit, and names the outputs."""
    image, boxes, scores, labels = found.image, found.boxes, found.scores, w.op("Add", found.column, w.ints(1))
    if max_dets > 0:
        kept = w.squeeze(w.op("NonZero", _reaches_limit(w, image, scores, images, max_dets)), 0)
        image, boxes, scores, labels = (w.op("Gather", t, kept, axis=0) for t in (image, boxes, scores, labels))
    slots, counts = write_slots(w, image, images)
    longest = write_longest(w, counts)
    w.op("ScatterND", w.full(0.0, images, longest, w.ints(4)), slots, boxes, name="boxes")
    w.op("ScatterND", w.full(-np.inf, images, longest), slots, scores, name="scores")
    w.op("ScatterND", w.cast(w.full(0.0, images, longest), np.int64), slots, labels, name="classes")
    w.rename(counts, "count")


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
