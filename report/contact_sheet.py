"""Contact sheets: many drawn pictures small on one, each with its id below."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from roiline.core.files import write_durable
from roiline.core.structures import RoidbEntry, UInt8
from roiline.report.jpeg import encode_jpeg, shrink
from roiline.report.labels import Pen, draw_label

_COLUMNS, _ROWS = 6, 8
_CELL_PX = 320
_GAP_PX = 12
_CAPTION_PX = 30
_GROUND = 24
_PEN = Pen(line=2, thin=1, text=14, halo=1)


def sheet_stems(pictures: int) -> tuple[str, ...]:
    """Returns the file stems of the sheets that so many pictures need at most."""
    return tuple(_name_sheet(number) for number in range(1, 1 + -(-pictures // (_COLUMNS * _ROWS))))


def _name_sheet(number: int) -> str:
    return "contact_sheet" if number == 1 else f"contact_sheet_{number}"


class ContactSheet:
    """Writes `contact_sheet.jpg` with up to 48 pictures, and `contact_sheet_2.jpg` and so on where there are more."""

    def __init__(self, folder: Path, *, title: str) -> None:
        self._folder = folder
        self._title = title
        self._cells: list[tuple[str, UInt8]] = []
        self._files: list[Path] = []

    def add(self, entry: RoidbEntry, picture: UInt8) -> None:
        """Takes one picture; a full sheet is written at once, so that memory stays bounded."""
        self._cells.append((str(entry.image_id), shrink(picture, _CELL_PX).copy()))
        if len(self._cells) == _COLUMNS * _ROWS:
            self._write()

    def close(self) -> tuple[Path, ...]:
        """Writes what is left, and returns the files."""
        if self._cells:
            self._write()
        return tuple(self._files)

    def _write(self) -> None:
        path = self._folder / f"{_name_sheet(len(self._files) + 1)}.jpg"
        write_durable(path, encode_jpeg(lay_out_sheet(self._title, self._cells), where=path))
        self._files.append(path)
        self._cells.clear()


def lay_out_sheet(title: str, cells: list[tuple[str, UInt8]]) -> UInt8:
    """Returns small pictures in rows under a title, each in the middle of its cell with its caption below it."""
    columns = min(_COLUMNS, max(2, round(len(cells) ** 0.5)), len(cells))
    cell_w = max(picture.shape[1] for _, picture in cells)
    width = columns * (cell_w + _GAP_PX) + _GAP_PX
    parts = [np.full((_CAPTION_PX, width, 3), _GROUND, np.uint8)]
    _write_caption(parts[0][:, _GAP_PX:], f"{title}: {len(cells)} pictures")
    for start in range(0, len(cells), columns):
        parts.append(_lay_out_row(cells[start : start + columns], cell_w, width))
    return np.concatenate(parts)


def _lay_out_row(cells: list[tuple[str, UInt8]], cell_w: int, width: int) -> UInt8:
    high = max(picture.shape[0] for _, picture in cells)
    row = np.full((high + _CAPTION_PX + _GAP_PX, width, 3), _GROUND, np.uint8)
    for column, (caption, picture) in enumerate(cells):
        left = _GAP_PX + column * (cell_w + _GAP_PX)
        top, inset = high - picture.shape[0], left + (cell_w - picture.shape[1]) // 2
        row[top:high, inset : inset + picture.shape[1]] = picture
        _write_caption(row[high : high + _CAPTION_PX, left : left + cell_w], caption)
    return row


def _write_caption(strip: UInt8, text: str) -> None:
    ground = np.ascontiguousarray(strip)
    draw_label(ground, (0, 0, 0, 0), text, "", (_GROUND, _GROUND, _GROUND), _PEN, [])
    strip[:] = ground
