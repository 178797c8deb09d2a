"""Labels on pictures: colours of classes, sizes of letters, and a place for each label inside the picture."""

from __future__ import annotations

import colorsys
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from roiline.core.structures import UInt8

Color: TypeAlias = tuple[int, int, int]
"""Blue, green, red, 0 to 255."""

Rectangle: TypeAlias = tuple[int, int, int, int]
"""Left, top, right, bottom in pixels of the canvas, all inside the rectangle."""

_LEAST_TEXT_PX = 11
_LEAST_SHRINK = 0.5
_NAME_SHARE = 0.6  # of the width of the picture, for one label
_GOLDEN_RATIO = 0.618034
_SHADES = ((0.70, 1.0), (0.95, 0.80), (0.45, 1.0))


@dataclass(frozen=True, slots=True)
class Pen:
    """Is the size of what is drawn on one picture, in pixels: `line` and `thin` widths, `dash` length, `text` height of letters."""

    line: int
    thin: int
    dash: int
    text: int

    @classmethod
    def for_size(cls, height: int, width: int) -> Pen:
        """Returns the pen for a picture, by its diagonal."""
        diagonal = math.hypot(height, width)
        line = max(1, math.ceil(diagonal / 450))
        return cls(line, max(1, line // 2), max(4, 4 * line), max(_LEAST_TEXT_PX, round(diagonal / 65)))


def choose_class_color(label: int) -> Color:
    """Returns the colour of a class (from 1): neighbouring classes are far apart in hue, later ones differ in shade too."""
    saturation, value = _SHADES[(label // 8) % len(_SHADES)]
    red, green, blue = colorsys.hsv_to_rgb((label * _GOLDEN_RATIO) % 1.0, saturation, value)
    return round(255 * blue), round(255 * green), round(255 * red)


def draw_label(
    canvas: UInt8, box: Rectangle, name: str, value: str, color: Color, pen: Pen, placed: Sequence[Rectangle]
) -> Rectangle | None:
    """Writes `name value` at a box, on a ground of the box's colour, and returns the rectangle it takes.

    It stands above the box if there is room, else inside, below or at the right end, where it covers least of the labels already
    `placed`. It never leaves the picture: long names are cut, what is still too large is made smaller, and where letters would come out
    at less than half their size (pictures a few pixels high) there is no label and None is returned.
    """
    import cv2

    height, width = canvas.shape[:2]
    font, pad = cv2.FONT_HERSHEY_SIMPLEX, max(1, pen.text // 5)
    scale = pen.text / cv2.getTextSize("Ag", font, 1.0, 1)[0][1]
    weight = max(1, round(pen.text / 14))
    text = _cut_text(name, value, scale, weight, round(_NAME_SHARE * width) if value else width - 2 * pad)
    (text_width, text_height), below = cv2.getTextSize(text, font, scale, weight)
    shrink = min(1.0, width / (text_width + 2 * pad), height / (text_height + below + 2 * pad))
    if shrink < _LEAST_SHRINK:
        return None
    if shrink < 1.0:
        scale, pad = scale * shrink * 0.95, 0
        (text_width, text_height), below = cv2.getTextSize(text, font, scale, weight)
    size = (min(width, text_width + 2 * pad), min(height, text_height + below + 2 * pad))
    left, top, right, bottom = _choose_place(box, size, (width, height), placed)
    cv2.rectangle(canvas, (left, top), (right, bottom), color, cv2.FILLED)
    ink = (0, 0, 0) if _luminance(color) > 140 else (255, 255, 255)
    cv2.putText(canvas, text, (left + pad, top + pad + text_height), font, scale, ink, weight, cv2.LINE_AA)
    return left, top, right, bottom


def _cut_text(name: str, value: str, scale: float, weight: int, room: int) -> str:
    import cv2

    text = f"{name} {value}".strip()
    kept = len(name)
    while kept > 1 and cv2.getTextSize(text, cv2.FONT_HERSHEY_SIMPLEX, scale, weight)[0][0] > room:
        kept -= 1
        text = f"{name[:kept]}.. {value}".strip()
    return text


def _choose_place(
    box: Rectangle, size: tuple[int, int], canvas: tuple[int, int], placed: Sequence[Rectangle]
) -> Rectangle:
    left, top, right, bottom = box
    width, height = size
    corners = (
        (left, top - height),
        (left, top),
        (right - width + 1, top - height),
        (left, bottom + 1),
        (left, bottom - height + 1),
    )
    inside = [(max(0, min(x, canvas[0] - width)), max(0, min(y, canvas[1] - height))) for x, y in corners]
    places = [(x, y, x + width - 1, y + height - 1) for x, y in inside]
    return min(places, key=lambda place: sum(_overlap_area(place, other) for other in placed))


def _overlap_area(first: Rectangle, second: Rectangle) -> int:
    width = min(first[2], second[2]) - max(first[0], second[0]) + 1
    height = min(first[3], second[3]) - max(first[1], second[1]) + 1
    return max(0, width) * max(0, height)


def _luminance(color: Color) -> float:
    blue, green, red = color
    return 0.114 * blue + 0.587 * green + 0.299 * red
