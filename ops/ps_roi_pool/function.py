"""MultiLevelPSRoIPool in standard ONNX operators.

Sums over bins are differences of running sums over the map, which are taken in float64, so that nothing is lost in them. Grid cell and
output are moved to the end, so that one gathered row is all outputs of one grid cell.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx

from roiline.ops.multilevel_roi_align import write_by_level
from roiline.ops.nodes import FunctionWriter
from roiline.ops.ps_roi_pool.reference import SHORTEST_SIDE


def write_multilevel_ps_roi_pool(inputs: int, attributes: Mapping[str, Any]) -> onnx.FunctionProto:
    """Returns the function body for `inputs` - 1 feature maps."""
    w = FunctionWriter()

    def pool(rois: str, feature: str, scale: float) -> str:
        return _write_pool(w, rois, feature, scale, attributes["grid"])

    w.rename(write_by_level(w, inputs - 1, attributes, pool), "pooled")
    return w.finish("MultiLevelPSRoIPool", ("rois", *(f"features_{i}" for i in range(inputs - 1))), ("pooled",))


def _write_pool(w: FunctionWriter, rois: str, feature: str, scale: float, grid: int) -> str:
    height, width = w.dims(feature, 2, 3)
    rounded = _write_rounding(w, w.columns(rois, 1, 5))
    corners = w.op("Add", rounded, w.constant(np.array([0, 0, 1, 1], np.float32)))
    corners = w.op("Mul", corners, w.scalar(scale))
    left, right = _write_edges(w, w.columns(corners, 0, 1), w.columns(corners, 2, 3), grid, width)
    top, bottom = _write_edges(w, w.columns(corners, 1, 2), w.columns(corners, 3, 4), grid, height)
    top, bottom = w.unsqueeze(top, 2), w.unsqueeze(bottom, 2)
    left, right = w.unsqueeze(left, 1), w.unsqueeze(right, 1)
    image = w.unsqueeze(w.cast(w.columns(rois, 0, 1), np.int64), 2)
    sums = _write_running_sums(w, feature, grid)
    corner = [_write_sums_at(w, sums, image, y, x, grid, height, width) for y in (top, bottom) for x in (left, right)]
    total = w.op("Add", w.op("Sub", corner[3], corner[2]), w.op("Sub", corner[0], corner[1]))
    area = w.op("Mul", w.op("Sub", bottom, top), w.op("Sub", right, left))
    cells = w.cast(w.unsqueeze(w.op("Max", area, w.integer(1)), 3), np.float64)
    mean = w.op("Where", w.unsqueeze(w.op("Greater", area, w.integer(0)), 3), w.op("Div", total, cells), _zero(w))
    return w.cast(w.op("Transpose", mean, perm=(0, 3, 1, 2)), np.float32)


def _zero(w: FunctionWriter) -> str:
    return w.constant(np.array(0.0, np.float64))


def _write_rounding(w: FunctionWriter, values: str) -> str:
    """Rounds half away from zero."""
    size = w.op("Abs", values)
    whole = w.op("Floor", size)
    up = w.cast(w.op("GreaterOrEqual", w.op("Sub", size, whole), w.scalar(0.5)), np.float32)
    return w.op("Mul", w.op("Sign", values), w.op("Add", whole, up))


def _write_edges(w: FunctionWriter, start: str, end: str, grid: int, size: str) -> tuple[str, str]:
    """Returns the first cell of every bin along an axis, and the one after its last, each (T, G) int64."""
    length = w.op("Div", w.op("Max", w.op("Sub", end, start), w.scalar(SHORTEST_SIDE)), w.scalar(grid))
    index = np.arange(grid, dtype=np.float32)[None]
    low = w.op("Floor", w.op("Add", w.op("Mul", w.constant(index), length), start))
    high = w.op("Ceil", w.op("Add", w.op("Mul", w.constant(index + 1), length), start))
    return _write_limit(w, low, size), _write_limit(w, high, size)


def _write_limit(w: FunctionWriter, cells: str, size: str) -> str:
    return w.op("Min", w.op("Max", w.cast(cells, np.int64), w.integer(0)), size)


def _write_running_sums(w: FunctionWriter, feature: str, grid: int) -> str:
    """Returns rows (N * (H + 1) * (W + 1) * G * G, D) float64: the sums over all cells above and to the left."""
    images, height, width = w.dims(feature, 0, 2, 3)
    maps = w.reshape(feature, images, -1, grid, grid, height, width)
    (outputs,) = w.dims(maps, 1)
    cells_first = w.cast(w.op("Transpose", maps, perm=(0, 4, 5, 2, 3, 1)), np.float64)
    begin = np.zeros(12, np.int64)
    begin[1:3] = 1
    padded = w.op("Pad", cells_first, w.constant(begin))
    sums = w.op("CumSum", w.op("CumSum", padded, w.integer(1)), w.integer(2))
    return w.reshape(sums, -1, outputs)


def _write_sums_at(w: FunctionWriter, sums: str, image: str, y: str, x: str, grid: int, height: str, width: str) -> str:
    """Returns (T, G, G, D) sums up to row y (T, G, 1) and column x (T, 1, G), each from the channels of its grid cell."""
    rows, columns = w.op("Add", height, w.integer(1)), w.op("Add", width, w.integer(1))
    place = w.op("Add", w.op("Mul", image, rows), y)
    place = w.op("Add", w.op("Mul", place, columns), x)
    cell = np.arange(grid**2, dtype=np.int64).reshape(1, grid, grid)
    return w.op("Gather", sums, w.op("Add", w.op("Mul", place, w.integer(grid**2)), w.constant(cell)), axis=0)
