"""RetinaNetCandidates in standard ONNX operators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import onnx

from roiline.ops.box_coding import write_clip, write_decode
from roiline.ops.nodes import FunctionWriter

_OUTPUTS = ("boxes", "scores", "classes", "levels")


class _Chosen(NamedTuple):
    """Names the best of a level: scores (N, m), and of each its anchor, class column and cell (y * w + x), all (N, m)."""

    scores: str
    anchor: str
    column: str
    cell: str


def write_retinanet_candidates(inputs: int, attributes: Mapping[str, Any]) -> onnx.FunctionProto:
    """Returns the function body for the given attributes; it has a level for each of `strides`."""
    w = FunctionWriter()
    levels = range(len(attributes["strides"]))
    names = [f"{kind}_{level}" for kind in ("cls_prob", "bbox_pred") for level in levels]
    names += ["anchors", "im_info", "im_size"]
    strides = [w.constant(np.full(2, stride, np.float32)) for stride in attributes["strides"]]
    if inputs > len(names):
        strides = [w.op("Gather", "strides", w.integer(level), axis=0) for level in levels]
        names.append("strides")
    parts = [_write_level(w, level, strides[level], attributes) for level in levels]
    for name, columns in zip(_OUTPUTS, zip(*parts, strict=True), strict=True):
        w.rename(w.concat(*columns, axis=1), name)
    return w.finish("RetinaNetCandidates", names, _OUTPUTS)


def _write_level(
    w: FunctionWriter, level: int, stride: str, attributes: Mapping[str, Any]
) -> tuple[str, str, str, str]:
    """Returns boxes (N, m, 4), scores (N, m), classes (N, m) and levels (N, m); `stride` (2,) is (down, across)."""
    images, height, width = w.dims(f"cls_prob_{level}", 0, 2, 3)
    cells = w.op("Mul", height, width)
    chosen = _select(w, f"cls_prob_{level}", images, cells, attributes["pre_nms_top_n"])
    boxes = _anchors_at(w, level, chosen, width, stride)
    if attributes["regress"]:
        boxes = write_decode(
            w,
            boxes,
            _deltas_at(w, f"bbox_pred_{level}", chosen, images, cells),
            size_offset=attributes["size_offset"],
            corner_offset=attributes["corner_offset"],
            delta_clip=attributes["delta_clip"],
        )
    boxes = _place_in_picture(w, boxes, attributes)
    classes = w.op("Add", chosen.column, w.integer(attributes["first_class"]))
    return boxes, chosen.scores, classes, w.op("Expand", w.integer(level), w.op("Shape", chosen.scores))


def _place_in_picture(w: FunctionWriter, boxes: str, attributes: Mapping[str, Any]) -> str:
    """Returns boxes (N, m, 4) in original pixels, clipped where they are to be."""
    if not attributes["network_frame"]:
        boxes = w.op("Div", boxes, w.unsqueeze(w.columns("im_info", 2, 3), 1))
        return _clip(w, boxes, "im_size", attributes)
    size_hw = w.columns("im_info", 0, 2)
    boxes = _clip(w, boxes, size_hw, attributes)
    ratios = w.op("Div", "im_size", size_hw)
    down, across = w.columns(ratios, 0, 1), w.columns(ratios, 1, 2)
    return w.op("Mul", boxes, w.unsqueeze(w.concat(across, down, across, down, axis=1), 1))


def _clip(w: FunctionWriter, boxes: str, size_hw: str, attributes: Mapping[str, Any]) -> str:
    if not attributes["clip"]:
        return boxes
    return write_clip(w, boxes, w.unsqueeze(size_hw, 1), size_offset=attributes["size_offset"])


def _select(w: FunctionWriter, cls_prob: str, images: str, cells: str, top_n: int) -> _Chosen:
    """Chooses the best scores of a level."""
    (channels,) = w.dims(cls_prob, 1)
    flat = w.reshape(cls_prob, images, w.op("Mul", channels, cells))
    (wanted,) = w.dims(flat, 1)
    if top_n > 0:
        wanted = w.op("Min", wanted, w.ints(top_n))
    best, index = w.multi("TopK", flat, wanted, names=(None, None), axis=1, largest=1, sorted=1)
    classes = w.op("Div", channels, *w.dims("anchors", 1))
    plane = w.op("Div", index, cells)
    return _Chosen(best, w.op("Div", plane, classes), w.op("Mod", plane, classes), w.op("Mod", index, cells))


def _anchors_at(w: FunctionWriter, level: int, chosen: _Chosen, width: str, stride: str) -> str:
    """Returns the anchors (N, m, 4) of the chosen; only these are placed."""
    x = w.unsqueeze(w.cast(w.op("Mod", chosen.cell, width), np.float32), 2)
    y = w.unsqueeze(w.cast(w.op("Div", chosen.cell, width), np.float32), 2)
    across = w.op("Mul", x, w.columns(stride, 1, 2))
    down = w.op("Mul", y, w.columns(stride, 0, 1))
    shifts = w.concat(across, down, across, down, axis=2)
    of_level = w.op("Gather", "anchors", w.integer(level), axis=0)
    return w.op("Add", shifts, w.op("Gather", of_level, chosen.anchor, axis=0))


def _deltas_at(w: FunctionWriter, bbox_pred: str, chosen: _Chosen, images: str, cells: str) -> str:
    """Returns the deltas (N, m, 4) of the chosen."""
    (per_cell,) = w.dims("anchors", 1)
    by_anchor = w.op("Transpose", w.reshape(bbox_pred, images, per_cell, 4, cells), perm=(0, 1, 3, 2))
    rows = w.reshape(by_anchor, images, w.op("Mul", per_cell, cells), 4)
    row = w.op("Add", w.op("Mul", chosen.anchor, cells), chosen.cell)
    return w.op("GatherND", rows, w.unsqueeze(row, 2), batch_dims=1)
