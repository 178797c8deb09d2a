"""BBoxTransform in standard ONNX operators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx

from roiline.ops.box_coding import write_clip, write_decode
from roiline.ops.nodes import LAST, FunctionWriter
from roiline.ops.suppression import write_slots


def write_bbox_transform(_inputs: int, attributes: Mapping[str, Any]) -> onnx.FunctionProto:
    """Returns the function body for the given attributes."""
    w = FunctionWriter()
    image = _image_of(w)
    info = w.unsqueeze(w.op("Gather", "im_info", image, axis=0), 1)
    scale = w.columns(info, 2, 3)
    rows, width = w.dims("deltas", 0, 1)
    blocks = w.op("Div", width, w.ints(4))
    boxes = write_decode(
        w,
        w.op("Div", w.unsqueeze(w.columns("rois", -4, LAST), 1), scale),
        w.reshape("deltas", rows, blocks, 4),
        weights=attributes["weights"],
        size_offset=attributes["size_offset"],
        corner_offset=attributes["corner_offset"],
        delta_clip=attributes["delta_clip"],
    )
    size_hw = w.op("Floor", w.op("Add", w.op("Div", w.columns(info, 0, 2), scale), w.scalar(0.5)))
    boxes = write_clip(w, boxes, size_hw, size_offset=attributes["size_offset"])
    if attributes["apply_scale"]:
        boxes = w.op("Mul", boxes, scale)
    w.rename(w.reshape(boxes, rows, width), "box_out")
    _, counts = write_slots(w, image, *w.dims("im_info", 0))
    w.rename(w.cast(counts, np.float32), "roi_batch_splits")
    return w.finish("BBoxTransform", ("rois", "deltas", "im_info"), ("box_out", "roi_batch_splits"))


def _image_of(w: FunctionWriter) -> str:
    """Returns the image index (T,) of RoIs: the sum over what stands before the last four columns, so 0 where nothing does."""
    return w.cast(w.op("ReduceSum", w.columns("rois", 0, -4), w.ints(1), keepdims=0), np.int64)
