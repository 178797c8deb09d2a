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


def write_retinanet_candidates(_inputs: int, attributes: Mapping[str, Any]) -> onnx.FunctionProto:
    """Returns the function body for the given attributes; it has a level for each of `strides`."""
    w = FunctionWriter()
    levels = range(len(attributes["strides"]))
    parts = [_write_level(w, level, attributes) for level in levels]
    for name, columns in zip(_OUTPUTS, zip(*parts, strict=True), strict=True):
        w.rename(w.concat(*columns, axis=1), name)
    names = [f"{kind}_{level}" for kind in ("cls_prob", "bbox_pred") for level in levels]
    return w.finish("RetinaNetCandidates", (*names, "anchors", "im_info", "im_size"), _OUTPUTS)


def _write_level(w: FunctionWriter, level: int, attributes: Mapping[str, Any]) -> tuple[str, str, str, str]:
    """Returns boxes (N, m, 4), scores (N, m), classes (N, m) and levels (N, m)."""
    images, height, width = w.dims(f"cls_prob_{level}", 0, 2, 3)
    cells = w.op("Mul", height, width)
    chosen = _select(w, f"cls_prob_{level}", images, cells, attributes["pre_nms_top_n"])
    boxes = _anchors_at(w, level, chosen, width, attributes["strides"][level])
    if attributes["regress"]:
        boxes = write_decode(
            w,
            boxes,
            _deltas_at(w, f"bbox_pred_{level}", chosen, images, cells),
            size_offset=attributes["size_offset"],
            corner_offset=attributes["corner_offset"],
            delta_clip=attributes["delta_clip"],
        )
    boxes = w.op("Div", boxes, w.unsqueeze(w.columns("im_info", 2, 3), 1))
    boxes = write_clip(w, boxes, w.unsqueeze("im_size", 1), size_offset=attributes["size_offset"])
    classes = w.op("Add", chosen.column, w.integer(1))
    return boxes, chosen.scores, classes, w.op("Expand", w.integer(level), w.op("Shape", chosen.scores))


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


def _anchors_at(w: FunctionWriter, level: int, chosen: _Chosen, width: str, stride: float) -> str:
    """Returns the anchors (N, m, 4) of the chosen; only these are placed."""
    x = w.unsqueeze(w.cast(w.op("Mod", chosen.cell, width), np.float32), 2)
    y = w.unsqueeze(w.cast(w.op("Div", chosen.cell, width), np.float32), 2)
    shifts = w.op("Mul", w.concat(x, y, x, y, axis=2), w.scalar(stride))
    of_level = w.op("Gather", "anchors", w.integer(level), axis=0)
    return w.op("Add", shifts, w.op("Gather", of_level, chosen.anchor, axis=0))


def _deltas_at(w: FunctionWriter, bbox_pred: str, chosen: _Chosen, images: str, cells: str) -> str:
    """Returns the deltas (N, m, 4) of the chosen."""
    (per_cell,) = w.dims("anchors", 1)
    by_anchor = w.op("Transpose", w.reshape(bbox_pred, images, per_cell, 4, cells), perm=(0, 1, 3, 2))
    rows = w.reshape(by_anchor, images, w.op("Mul", per_cell, cells), 4)
    row = w.op("Add", w.op("Mul", chosen.anchor, cells), chosen.cell)
    return w.op("GatherND", rows, w.unsqueeze(row, 2), batch_dims=1)
