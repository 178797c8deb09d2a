"""Pieces of HTML with numbers that are looked up in report.json, each marked with where it is from, so that a test can compare."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from roiline.report.benchmark.document import Report, find


def escape(text: object) -> str:
    """Returns text safe for HTML."""
    return html.escape(str(text))


def round_number(value: float, decimals: int | None = None) -> str:
    """Returns a number for people: with `decimals`, else with three significant digits; thousands are parted."""
    if decimals is None:
        magnitude = abs(value)
        decimals = 0 if magnitude >= 100 or value == int(value) else 1 if magnitude >= 10 else 2
        if 0 < magnitude < 0.1:
            decimals = 4
    return f"{value:,.{decimals}f}"


class Numbers:
    """Writes numbers of one report."""

    def __init__(self, report: Report) -> None:
        self.report = report

    def number(self, path: str, decimals: int | None = None, *, factor: float = 1) -> str:
        """Returns the number at a path, times `factor` (100 for percent), marked with its path."""
        text = round_number(factor * float(find(self.report, path)), decimals)
        scaled = f' data-factor="{factor:g}"' if factor != 1 else ""
        return f'<span data-value="{escape(path)}"{scaled}>{text}</span>'

    def percent(self, path: str, decimals: int = 0) -> str:
        """Returns a share as percent."""
        return f"{self.number(path, decimals, factor=100)} %"


def make_table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, text_columns: Sequence[int] = ()) -> str:
    """Returns a table; cells are HTML, the first column and `text_columns` are set left."""

    def cell(tag: str, column: int, content: str) -> str:
        style = ' class="text"' if column in text_columns else ""
        return f"<{tag}{style}>{content}</{tag}>"

    head = "".join(cell("th", column, content) for column, content in enumerate(heads))
    body = "".join(
        "<tr>" + "".join(cell("td", column, content) for column, content in enumerate(row)) + "</tr>" for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def make_facts(facts: Iterable[tuple[str, str]]) -> str:
    """Returns a list of names and values; values are HTML."""
    return f'<dl class="facts">{"".join(f"<dt>{escape(name)}</dt><dd>{value}</dd>" for name, value in facts)}</dl>'


def make_legend(entries: Iterable[tuple[str, str]]) -> str:
    """Returns the legend of (colour class, name)."""
    items = "".join(f'<span><b class="fill-{style}"></b>{escape(name)}</span>' for style, name in entries)
    return f'<div class="legend">{items}</div>'
