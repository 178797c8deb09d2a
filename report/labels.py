"""Labels on pictures: colours, sizes of lines and letters, and a place for each label inside the picture where no other label is."""

from __future__ import annotations

import colorsys
import math
from collections.abc import Iterator, Sequence
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
    """Is the size of what is drawn on one picture, in pixels: `line` and `thin` widths, `text` height of letters, `halo` around lines."""

    line: int
    thin: int
    text: int
    halo: int

    @classmethod
    def for_size(cls, height: int, width: int) -> Pen:
        """Returns the pen for a picture, by its diagonal."""
        diagonal = math.hypot(height, width)
        line = max(1, math.ceil(diagonal / 450))
        return cls(line, max(1, line // 2), max(_LEAST_TEXT_PX, round(diagonal / 65)), max(1, line // 3))


def choose_class_color(label: int) -> Color:
    """Returns the colour of a class (from 1): neighbouring classes are far apart in hue, later ones differ in shade too."""
    saturation, value = _SHADES[(label // 8) % len(_SHADES)]
    red, green, blue = colorsys.hsv_to_rgb((label * _GOLDEN_RATIO) % 1.0, saturation, value)
    return round(255 * blue), round(255 * green), round(255 * red)


def choose_instance_color(number: int) -> Color:
    """Returns the colour of the n-th object of a picture (from 0), where every object has its own."""
    return choose_class_color(number + 1)


def draw_label(
    canvas: UInt8, box: Rectangle, name: str, value: str, color: Color, pen: Pen, placed: Sequence[Rectangle]
) -> Rectangle | None:
    """Writes `name value` at a box, on a ground of the box's colour with a dark outline, and returns the rectangle it takes.

    It stands above the box if there is room, else inside, below, at an end of it, or slid along its edges, and never leaves the picture or
    covers a label that is `placed` already: where the whole text finds no room, its value alone is tried, and then None is returned. Long
    names are cut, what is still too large is made smaller, and where letters would come out at less than half their size (pictures a few
    pixels high) there is no label either.
    """
    height, width = canvas.shape[:2]
    for text in (f"{name} {value}".strip(), value) if value else (name,):
        room = round(_NAME_SHARE * width) if value else width
        shape = _shape_text(text, len(name) if text != value else 0, value, pen, room, (width, height))
        place = None if shape is None else _find_place(box, shape.size, (width, height), placed)
        if shape is not None and place is not None:
            _write(canvas, place, shape, color)
            return place
    return None


@dataclass(frozen=True, slots=True)
class _Shape:
    """Is a text as it will be written: scale and weight of its letters, the height above its baseline, and the `size` of its ground."""

    text: str
    scale: float
    weight: int
    pad: int
    ascent: int
    size: tuple[int, int]


def _shape_text(text: str, name_length: int, value: str, pen: Pen, room: int, canvas: tuple[int, int]) -> _Shape | None:
    """Returns how a text fits into the room for a label; None where its letters would be too small."""
    pad = max(1, pen.text // 4)
    scale = pen.text / _measure("Ag", 1.0, 1)[1]
    weight = max(1, round(pen.text / 14))
    text = _cut_text(text, name_length, value, scale, weight, room - 2 * pad)
    wide, ascent, descent = _measure(text, scale, weight)
    shrink = min(1.0, canvas[0] / (wide + 2 * pad), canvas[1] / (ascent + descent + 2 * pad))
    if shrink < _LEAST_SHRINK:
        return None
    if shrink < 1.0:
        scale, pad = scale * shrink * 0.95, 0
        wide, ascent, descent = _measure(text, scale, weight)
    size = (min(canvas[0], wide + 2 * pad), min(canvas[1], ascent + descent + 2 * pad))
    return _Shape(text, scale, weight, pad, ascent, size)


def _measure(text: str, scale: float, weight: int) -> tuple[int, int, int]:
    """Returns the width of a text, its height above the baseline and below it, in pixels."""
    import cv2

    (width, ascent), descent = cv2.getTextSize(text, cv2.FONT_HERSHEY_SIMPLEX, scale, weight)
    return int(width), int(ascent), int(descent)


def _write(canvas: UInt8, place: Rectangle, shape: _Shape, color: Color) -> None:
    import cv2

    left, top, right, bottom = place
    cv2.rectangle(canvas, (left, top), (right, bottom), color, cv2.FILLED)
    outline = (round(0.35 * color[0]), round(0.35 * color[1]), round(0.35 * color[2]))
    if shape.pad:
        cv2.rectangle(canvas, (left, top), (right, bottom), outline, 1)
    ink = (0, 0, 0) if _luminance(color) > 140 else (255, 255, 255)
    start = (left + shape.pad, top + shape.pad + shape.ascent)
    cv2.putText(canvas, shape.text, start, cv2.FONT_HERSHEY_SIMPLEX, shape.scale, ink, shape.weight, cv2.LINE_AA)


def _cut_text(text: str, kept: int, value: str, scale: float, weight: int, room: int) -> str:
    name = text[:kept]
    while kept > 1 and _measure(text, scale, weight)[0] > room:
        kept -= 1
        text = f"{name[:kept]}.. {value}".strip()
    return text


def _find_place(
    box: Rectangle, size: tuple[int, int], canvas: tuple[int, int], placed: Sequence[Rectangle]
) -> Rectangle | None:
    """Returns the first place for a label of a size at a box where no other label is; None: there is none."""
    width, height = size
    for x, y in _list_corners(box, size):
        left, top = max(0, min(x, canvas[0] - width)), max(0, min(y, canvas[1] - height))
        place = (left, top, left + width - 1, top + height - 1)
        if not any(_overlap_area(place, other) for other in placed):
            return place
    return None


def _list_corners(box: Rectangle, size: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """Lists the left top corners that a label may have, the best first: the box's own corners, then along its edges."""
    left, top, right, bottom = box
    width, height = size
    end = right - width + 1
    rows = (top - height, top, bottom + 1, bottom - height + 1)
    yield from ((left, row) for row in rows[:2])
    yield (end, rows[0])
    yield from ((left, row) for row in rows[2:])
    yield from ((end, row) for row in rows[1:])
    step = max(1, width // 3)
    for row in rows:
        yield from ((column, row) for column in range(left + step, end, step))
    for column in (right + 1, left - width):
        yield from ((column, row) for row in range(top, max(top + 1, bottom - height), height))


def _overlap_area(first: Rectangle, second: Rectangle) -> int:
    width = min(first[2], second[2]) - max(first[0], second[0]) + 1
    height = min(first[3], second[3]) - max(first[1], second[1]) + 1
    return max(0, width) * max(0, height)


def _luminance(color: Color) -> float:
    blue, green, red = color
    return 0.114 * blue + 0.587 * green + 0.299 * red
