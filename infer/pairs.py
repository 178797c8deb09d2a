"""Pairs of pictures to track detections over: a text file with two paths a line."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from roiline.core.errors import DataError
from roiline.core.files import read_input
from roiline.infer.pictures import describe_bytes

_LIST_LIMIT = 1 << 30


class PicturePair(NamedTuple):
    """Is two pictures as the list names them, and their files."""

    names: tuple[str, str]
    paths: tuple[Path, Path]


def read_pairs(path: Path) -> tuple[PicturePair, ...]:
    """Reads a list of pairs: two paths a line, relative to the list's folder, with a tab between them, or spaces where names have none.

    Raises:
        DataError: the file cannot be read, is no text, or a line has not two paths.
    """
    data = read_input(path, limit=_LIST_LIMIT)
    try:
        lines = data.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: expected a list of pairs, the file is {describe_bytes(data)}") from error
    pairs = [_read_pair(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not pairs:
        raise DataError(f"{path}: expected two picture paths a line, it has none")
    return tuple(pairs)


def _read_pair(path: Path, number: int, line: str) -> PicturePair:
    names = [name.strip() for name in line.split("\t")] if "\t" in line.strip() else line.split()
    if len(names) != 2 or not all(names):
        raise DataError(f"{path}: line {number}: expected two picture paths, with a tab between them, got {line!r}")
    first, second = names
    return PicturePair((first, second), (path.parent / first, path.parent / second))
