"""The last thing that detectron2 does to detections: original boxes are clipped to the original picture, and those left empty go.

It comes after the limit, so a box outside the picture takes the place of another one before it goes. As numpy and as ONNX nodes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from roiline.core.boxes import clip_boxes
from roiline.core.structures import Bool, Float32
from roiline.ops.box_coding import write_clip
from roiline.ops.nodes import NodeWriter
from roiline.ops.suppression import write_longest, write_rows_of, write_slots


class PaddedDetections(NamedTuple):
    """Names boxes (N, D, 4), scores (N, D), classes (N, D) and counts (N,); rows beyond the count are padding."""

    boxes: str
    scores: str
    classes: str
    counts: str


def clip_finally(boxes: Float32, size_hw: Float32) -> tuple[Float32, Bool]:
    """Returns boxes (D, 4) within a picture of (height, width), and which of them have an area."""
    clipped = clip_boxes(boxes, float(size_hw[0]), float(size_hw[1]), plus_one=0.0)
    return clipped, np.asarray((clipped[:, 2:] > clipped[:, :2]).all(axis=1))


def write_final_clip(w: NodeWriter, found: PaddedDetections, size_hw: str, names: PaddedDetections) -> None:
    """Writes `clip_finally` for N pictures, `size_hw` (N, 2); results have the given names."""
    images, rows = w.dims(found.scores, 0, 1)
    boxes = write_clip(w, found.boxes, w.unsqueeze(size_hw, 1), size_offset=0.0)
    sides = w.op("Sub", w.columns(boxes, 2, 4), w.columns(boxes, 0, 2))
    large = w.op("Greater", w.op("ReduceMin", sides, w.ints(2), keepdims=0), w.scalar(0.0))
    real = w.op("Less", w.unsqueeze(w.range(rows), 0), w.unsqueeze(found.counts, 1))
    alive = w.op("Transpose", w.op("NonZero", w.op("And", large, real)), perm=(1, 0))
    slots, count = write_slots(w, w.squeeze(w.columns(alive, 0, 1), 1), images)
    longest = write_longest(w, count)
    nothing = (
        w.full(0.0, images, longest, w.ints(4)),
        w.full(-np.inf, images, longest),
        w.cast(w.full(0.0, images, longest), np.int64),
    )
    for empty, tensor, name in zip(nothing, (boxes, found.scores, found.classes), names, strict=False):
        w.op("ScatterND", empty, slots, write_rows_of(w, tensor, alive), name=name)
    w.op("Identity", count, name=names.counts)
