"""Pictures set side by side under headings, each with a strip above it that says what it shows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from roiline.core.structures import UInt8
from roiline.report.labels import Pen, draw_label

_GROUND = 32
_WIDE = 1.9
"""Pictures that are more than so many times as wide as high stand below each other."""


def set_side_by_side(panels: Sequence[tuple[str, UInt8]]) -> UInt8:
    """Returns one picture of equally large ones (H, W, 3), each under its heading; wide ones stand below each other."""
    height, width = panels[0][1].shape[:2]
    gap = Pen.for_size(height, width).line * 2
    headed = [_add_heading(heading, picture) for heading, picture in panels]
    axis = 0 if width > _WIDE * height else 1
    shape = (gap, width, 3) if axis == 0 else (headed[0].shape[0], gap, 3)
    parts = [headed[0]]
    for one in headed[1:]:
        parts += [np.full(shape, _GROUND, np.uint8), one]
    return np.concatenate(parts, axis=axis)


def _add_heading(heading: str, picture: UInt8) -> UInt8:
    pen = Pen.for_size(*picture.shape[:2])
    strip = np.full((2 * pen.text + 4, picture.shape[1], 3), _GROUND, np.uint8)
    draw_label(strip, (0, 0, 0, 0), heading, "", (_GROUND, _GROUND, _GROUND), pen, [])
    return np.concatenate([strip, picture])
