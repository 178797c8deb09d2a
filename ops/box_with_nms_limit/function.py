"""BoxWithNMSLimit in standard ONNX operators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx

from roiline.core.errors import ExportError
from roiline.ops.class_suppression import Candidates, KeptBoxes, write_candidates, write_class_nms
from roiline.ops.nodes import LAST, FunctionWriter
from roiline.ops.suppression import write_longest, write_rows_of, write_slots

_OUTPUTS = ("kept_scores", "kept_boxes", "classes", "kept_splits", "keeps", "keeps_size")


def write_box_with_nms_limit(inputs: int, attributes: Mapping[str, Any]) -> onnx.FunctionProto:
    """Returns the function body for 2 inputs (one picture) or 3.

    Raises:
        ExportError: soft-NMS is asked for, which has no ONNX form.
    """
    if attributes["soft_nms"]:
        raise ExportError(
            f"BoxWithNMSLimit: soft-NMS ({attributes['soft_nms']}) cannot be expressed in an ONNX file, only hard NMS can; "
            "export the scores and boxes before it and suppress them on the host"
        )
    w = FunctionWriter()
    splits = w.cast("batch_splits", np.int64) if inputs == 3 else w.dims("scores", 0)[0]
    images = w.op("Shape", splits)
    slots, _ = write_slots(w, _image_of_rows(w, splits), images)
    foreground = w.columns("scores", 1, LAST) if attributes["boxes_have_background"] else w.columns("scores", 0, -1)
    (columns,) = w.dims(foreground, 1)
    candidates = write_candidates(w, foreground, attributes["score_thresh"])
    max_dets = attributes["max_dets"]
    kept = write_class_nms(
        w,
        candidates,
        _boxes_of(w, candidates, columns, attributes),
        slots,
        images=images,
        columns=columns,
        longest=write_longest(w, splits),
        threshold=attributes["nms_thresh"],
        inclusive=False,
        plus_one=attributes["size_offset"],
        limit=w.ints(max_dets if max_dets > 0 else LAST),
        one_empty_box=attributes["size_offset"] == 0,
        in_row_order=False,
    )
    if max_dets > 0:
        kept = _keep_best(w, kept, images, max_dets)
    _name_outputs(w, kept, images, columns, 1.0 if attributes["classes_have_background"] else 0.0)
    return w.finish("BoxWithNMSLimit", ("scores", "boxes", "batch_splits")[:inputs], _OUTPUTS)


def _image_of_rows(w: FunctionWriter, splits: str) -> str:
    """Returns the picture (T,) of each row: how many pictures end at or before it."""
    ends = w.op("CumSum", splits, w.integer(0))
    (rows,) = w.dims("scores", 0)
    past = w.op("GreaterOrEqual", w.unsqueeze(w.range(rows), 1), w.unsqueeze(ends, 0))
    return w.op("ReduceSum", w.cast(past, np.int64), w.ints(1), keepdims=0)


def _boxes_of(w: FunctionWriter, candidates: Candidates, columns: str, attributes: Mapping[str, Any]) -> str:
    """Returns the boxes (M, 4) of the candidates."""
    if attributes["class_agnostic"]:
        return w.op("Gather", "boxes", candidates.row, axis=0)
    background = 1 if attributes["boxes_have_background"] else 0
    (rows,) = w.dims("boxes", 0)
    by_class = w.reshape("boxes", rows, w.op("Add", columns, w.ints(background)), 4)
    return write_rows_of(w, by_class, w.op("Add", candidates.places, w.ints(0, background)))


def _keep_best(w: FunctionWriter, kept: KeptBoxes, images: str, max_dets: int) -> KeptBoxes:
    """Returns the `max_dets` best rows of each picture, in order; ties: the lower row."""
    slots, counts = write_slots(w, kept.image, images)
    longest = write_longest(w, counts)
    padded = w.op("ScatterND", w.full(-np.inf, images, longest), slots, kept.scores)
    wanted = w.op("Min", longest, w.ints(max_dets))
    _, best = w.multi("TopK", padded, wanted, names=(None, None), axis=1, largest=1, sorted=1)
    chosen = w.op("Expand", w.integer(0), w.concat(images, longest))
    chosen = w.op("ScatterElements", chosen, best, w.op("Expand", w.integer(1), w.op("Shape", best)), axis=1)
    rows = w.squeeze(w.op("NonZero", write_rows_of(w, chosen, slots)), 0)
    parts = (kept.image, kept.column, kept.index, kept.boxes, kept.scores)
    return KeptBoxes(*(w.op("Gather", part, rows, axis=0) for part in parts))


def _name_outputs(w: FunctionWriter, kept: KeptBoxes, images: str, columns: str, first: float) -> None:
    w.rename(kept.scores, "kept_scores")
    w.rename(kept.boxes, "kept_boxes")
    w.op("Add", w.cast(kept.column, np.float32), w.scalar(first), name="classes")
    _, counts = write_slots(w, kept.image, images)
    w.op("Cast", counts, to=onnx.TensorProto.FLOAT, name="kept_splits")
    w.op("Cast", kept.index, to=onnx.TensorProto.INT32, name="keeps")
    group = w.op("Add", w.op("Mul", kept.image, columns), kept.column)
    zeros = w.op("Expand", w.integer(0), w.op("Mul", images, columns))
    ones = w.op("Expand", w.integer(1), w.op("Shape", group))
    sizes = w.op("ScatterElements", zeros, group, ones, axis=0, reduction="add")
    foreground = w.reshape(sizes, images, columns)
    background = w.op("Expand", w.integer(0), w.concat(images, w.ints(1)))
    w.op("Cast", w.concat(background, foreground, axis=1), to=onnx.TensorProto.INT32, name="keeps_size")
