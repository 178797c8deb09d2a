"""HeatmapMaxKeypoint of a NetDef: the place of each keypoint from its heatmap, refined below a cell, as ONNX nodes.

The greatest cell (ties: the first in rows) and its eight neighbours give a quadratic function, and its extremum the keypoint (Brown and
Lowe, Invariant Features from Interest Point Groups, 2002). A neighbour beyond the edge is the one opposite. A step is at most 1.5 cells
along its longer axis; where the Hessian is nearly singular there is none.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from roiline.export.caffe2.translation import Call
from roiline.export.graph import GraphWriter

_LONGEST_STEP = 1.5
_SINGULAR = 1e-4
_REFLECT = np.array([0, 0, 1, 1, 0, 0, 1, 1], np.int64)


class _Peak(NamedTuple):
    """Names what stands at the greatest cells, all (T, J): place in cells, its score, and its place in the flat map."""

    x: str
    y: str
    score: str
    place: str


def translate_heatmap_max_keypoint(call: Call) -> None:
    """Translates HeatmapMaxKeypoint: maps (T, J, S, S) and boxes (T, 4 or more) to rows (x, y, score, probability), (T, 4, J)."""
    g = call.graph
    maps, boxes = call.blob(0, (None,) * 4), call.blob(1, (None, None))
    rows, joints, size = g.dims(maps.name, 0, 1, 3)
    flat = g.reshape(maps.name, rows, joints, g.op("Mul", size, size))
    peak = _find_peak(g, flat, size)
    step_x, step_y, score = _refine(g, maps.name, peak, rows, joints, size)
    cells = g.cast(size, np.float32)
    parts = []
    for low, place, step in ((0, peak.x, step_x), (1, peak.y, step_y)):
        start = g.columns(boxes.name, low, low + 1)
        length = g.op("Max", g.op("Sub", g.columns(boxes.name, low + 2, low + 3), start), g.scalar(1.0))
        centre = g.op("Add", g.op("Add", g.cast(place, np.float32), g.scalar(0.5)), step)
        parts.append(g.op("Add", start, g.op("Div", g.op("Mul", centre, length), cells)))
    parts.append(score)
    if call.flag("should_output_softmax", False):
        soft = g.op("Softmax", flat, axis=2)
        parts.append(g.squeeze(g.op("GatherElements", soft, peak.place, axis=2), 2))
    else:
        parts.append(g.op("Mul", score, g.scalar(0.0)))
    call.write("Concat", *(g.unsqueeze(part, 1) for part in parts), shape=(None, 4, maps.dim(1)), axis=1)


def _find_peak(g: GraphWriter, flat: str, size: str) -> _Peak:
    index = g.op("ArgMax", flat, axis=2, keepdims=1)
    score = g.squeeze(g.op("GatherElements", flat, index, axis=2), 2)
    place = g.squeeze(index, 2)
    return _Peak(g.op("Mod", place, size), g.op("Div", place, size), score, index)


def _refine(g: GraphWriter, maps: str, peak: _Peak, rows: str, joints: str, size: str) -> tuple[str, str, str]:
    """Returns the steps from the peak's centre, in cells, and the score there, all (T, J)."""
    around = _read_neighbours(g, maps, peak, rows, joints, size)
    half, quarter, two = g.scalar(0.5), g.scalar(0.25), g.scalar(2.0)
    centre = around[1, 1]
    bx = g.op("Mul", g.op("Sub", around[1, 0], around[1, 2]), half)
    by = g.op("Mul", g.op("Sub", around[0, 1], around[2, 1]), half)
    twice = g.op("Mul", centre, two)
    axx = g.op("Add", g.op("Sub", around[1, 0], twice), around[1, 2])
    ayy = g.op("Add", g.op("Sub", around[0, 1], twice), around[2, 1])
    corners = g.op("Sub", g.op("Add", around[2, 2], around[0, 0]), g.op("Add", around[2, 0], around[0, 2]))
    axy = g.op("Mul", corners, quarter)
    determinant = g.op("Sub", g.op("Mul", axx, ayy), g.op("Mul", axy, axy))
    regular = g.op("GreaterOrEqual", g.op("Abs", determinant), g.scalar(_SINGULAR))
    divisor = g.op("Where", regular, determinant, g.scalar(1.0))
    dx = g.op("Div", g.op("Sub", g.op("Mul", ayy, bx), g.op("Mul", axy, by)), divisor)
    dy = g.op("Div", g.op("Sub", g.op("Mul", axx, by), g.op("Mul", axy, bx)), divisor)
    longest = g.op("Max", g.op("Abs", dx), g.op("Abs", dy))
    shorten = g.op("Div", g.scalar(_LONGEST_STEP), g.op("Max", longest, g.scalar(_LONGEST_STEP)))
    nothing = g.scalar(0.0)
    dx, dy = (g.op("Where", regular, g.op("Mul", step, shorten), nothing) for step in (dx, dy))
    slope = g.op("Add", g.op("Mul", bx, dx), g.op("Mul", by, dy))
    bend = g.op("Add", g.op("Mul", g.op("Mul", axx, dx), dx), g.op("Mul", g.op("Mul", ayy, dy), dy))
    bend = g.op("Add", bend, g.op("Mul", g.op("Mul", g.op("Mul", axy, dx), dy), two))
    score = g.op("Add", g.op("Sub", centre, slope), g.op("Mul", bend, half))
    return dx, dy, score


def _read_neighbours(
    g: GraphWriter, maps: str, peak: _Peak, rows: str, joints: str, size: str
) -> dict[tuple[int, int], str]:
    """Returns the 3 x 3 cells around the peak by (row, column), each (T, J)."""
    wide = g.op("Add", size, g.ints(2))
    padded = g.op("Pad", maps, g.constant(_REFLECT), mode="reflect")
    flat = g.reshape(padded, rows, joints, g.op("Mul", wide, wide))
    cells = {}
    for row in range(3):
        for column in range(3):
            y = g.op("Mul", g.op("Add", peak.y, g.ints(row)), wide)
            index = g.unsqueeze(g.op("Add", y, g.op("Add", peak.x, g.ints(column))), 2)
            cells[row, column] = g.squeeze(g.op("GatherElements", flat, index, axis=2), 2)
    return cells
