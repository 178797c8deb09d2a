"""Charts as inline SVG: axes with round numbers, lines, areas, bars and marks. Colours are classes, so that a page's style decides them.

A chart is drawn twice, wide and narrow, and the style shows the one that fits: letters stay as large on a phone as on a desktop.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

WIDE, NARROW = 880, 340


def round_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Returns round numbers from `low` to `high`, at most `most` of them, steps of 1, 2, 2.5 or 5 times a power of ten."""
    span = high - low
    if span <= 0:
        return [low]
    raw = span / max(1, most - 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= raw * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    return [step * number for number in range(first, math.floor(high / step + 1e-9) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Returns the powers of ten from `low` to `high`, with 2 and 5 of each where there are few."""
    factors = (1, 2, 5) if math.log10(high / low) < 2.5 else (1,)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    values = [factor * 10.0**power for power in powers for factor in factors]
    return [value for value in values if low * (1 - 1e-9) <= value <= high * (1 + 1e-9)]


def plain_number(value: float) -> str:
    """Returns a number for an axis: no exponent, no needless zeros, thousands parted."""
    text = f"{value:,.6g}" if abs(value) < 1e6 else f"{value:,.0f}"
    return f"{value:,.0f}" if "e" in text and abs(value) >= 1 else f"{value:.6f}".rstrip("0") if "e" in text else text


@dataclass(frozen=True, slots=True)
class Axis:
    """Is one axis: its range, its title with the unit, whether it is logarithmic, and what a tick's label is."""

    low: float
    high: float
    title: str
    logarithmic: bool = False
    label: Callable[[float], str] = plain_number
    ticks: tuple[float, ...] = ()

    def place(self, value: float) -> float:
        """Returns where a value lies, 0 at the low end to 1 at the high."""
        if self.logarithmic:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def marks(self, most: int) -> Sequence[float]:
        """Returns the values that are labelled."""
        if self.ticks:
            return self.ticks
        return log_ticks(self.low, self.high) if self.logarithmic else round_ticks(self.low, self.high, most)


@dataclass(slots=True)
class Figure:
    """Is one chart being drawn; values are in the axes' units, `title` says what it shows to those who cannot see it."""

    title: str
    x: Axis
    y: Axis
    width: int = WIDE
    height: int = 240
    left: int = 56
    right: int = 16
    top: int = 28
    bottom: int = 44
    _parts: list[str] = field(default_factory=list)

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Returns the pixel of a point."""
        across = self.left + self.x.place(x) * (self.width - self.left - self.right)
        down = self.height - self.bottom - self.y.place(y) * (self.height - self.top - self.bottom)
        return round(across, 1), round(down, 1)

    def line(self, points: Sequence[tuple[float, float]], style: str) -> None:
        """Draws a line through points."""
        path = " ".join(f"{x},{y}" for x, y in (self.at(*point) for point in points))
        self._parts.append(f'<polyline class="line {style}" points="{path}"/>')

    def area(self, points: Sequence[tuple[float, float]], style: str) -> None:
        """Fills what is under a line."""
        floor = max(self.y.low, 0) if not self.y.logarithmic else self.y.low
        closed = [(points[0][0], floor), *points, (points[-1][0], floor)]
        path = " ".join(f"{x},{y}" for x, y in (self.at(*point) for point in closed))
        self._parts.append(f'<polygon class="area {style}" points="{path}"/>')

    def bar(self, start: float, end: float, value: float, style: str, tip: str) -> None:
        """Draws an upright bar between two values of the x axis."""
        left, top = self.at(start, value)
        right, floor = self.at(end, self.y.low)
        width = max(0.5, right - left - 1)
        self._parts.append(
            f'<rect class="{style}" x="{left}" y="{top}" width="{width:.1f}" height="{max(0.0, floor - top):.1f}">'
            f"<title>{html.escape(tip)}</title></rect>"
        )

    def dot(self, x: float, y: float, style: str, tip: str) -> None:
        """Draws a dot."""
        across, down = self.at(x, y)
        self._parts.append(
            f'<circle class="dot {style}" cx="{across}" cy="{down}" r="5"><title>{html.escape(tip)}</title></circle>'
        )

    def upright(self, x: float, label: str, *, row: int = 0) -> None:
        """Draws a line from the floor to a label, in the `row`-th line of letters from the top: lower rows do not cross higher labels."""
        across, floor = self.at(x, self.y.low)
        anchor = "end" if across > self.width / 2 else "start"
        shift = -5 if anchor == "end" else 5
        self._parts.append(
            f'<line class="mark" x1="{across}" x2="{across}" y1="{self.top - 10 + 14 * row}" y2="{floor}"/>'
            f'<text class="label halo" x="{across + shift}" y="{self.top + 14 * row}" text-anchor="{anchor}">{html.escape(label)}</text>'
        )

    def note(
        self, x: float, y: float, label: str, *, anchor: str = "start", shift: tuple[float, float] = (8, 4)
    ) -> None:
        """Writes letters beside a point."""
        across, down = self.at(x, y)
        self._parts.append(
            f'<text class="label halo" x="{across + shift[0]}" y="{down + shift[1]}" text-anchor="{anchor}">{html.escape(label)}</text>'
        )

    def finish(self, style: str) -> str:
        """Returns the chart as SVG, its axes under what was drawn."""
        return (
            f'<svg class="chart {style}" viewBox="0 0 {self.width} {self.height}" role="img" '
            f'aria-label="{html.escape(self.title)}">{self._axes()}{"".join(self._parts)}</svg>'
        )

    def _axes(self) -> str:
        parts = []
        right = self.width - self.right
        floor = self.height - self.bottom
        for value in self.y.marks(5):
            _, down = self.at(self.x.low, value)
            parts.append(f'<line class="grid" x1="{self.left}" x2="{right}" y1="{down}" y2="{down}"/>')
            parts.append(
                f'<text class="tick" x="{self.left - 8}" y="{down + 4}" text-anchor="end">{self.y.label(value)}</text>'
            )
        for value in self.x.marks(8 if self.width > NARROW else 5):
            across, _ = self.at(value, self.y.low)
            parts.append(f'<line class="axis" x1="{across}" x2="{across}" y1="{floor}" y2="{floor + 4}"/>')
            parts.append(
                f'<text class="tick" x="{across}" y="{floor + 18}" text-anchor="middle">{self.x.label(value)}</text>'
            )
        parts.append(f'<line class="axis" x1="{self.left}" x2="{right}" y1="{floor}" y2="{floor}"/>')
        middle = (self.left + right) / 2
        parts.append(
            f'<text class="title" x="{middle}" y="{self.height - 6}" text-anchor="middle">{html.escape(self.x.title)}</text>'
        )
        parts.append(f'<text class="title" x="4" y="12">{html.escape(self.y.title)}</text>')
        return "".join(parts)


def draw_both(draw: Callable[[int], Figure]) -> str:
    """Returns a chart in both widths."""
    return f'<div class="figure">{draw(WIDE).finish("wide")}{draw(NARROW).finish("narrow")}</div>'
