"""Rows that come image by image, sorted by class on the disk: what result files need that list class by class.

Rows wait in memory, class by class, until they are a few megabytes; then each class's are written as one piece at the end of a scratch
file without a name, so that a killed process leaves nothing. Memory does not grow with the number of rows, but for a note of where each
piece lies.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roiline.core.errors import OutputError
from roiline.core.structures import Int64

WAITING_BYTES = 8 << 20
"""What the rows of one spill take in memory at most, and what is read of it at once."""


class ClassSpill:
    """Takes rows of a structured type with a field `image`, and gives them back by class and then by image."""

    def __init__(
        self, kind: np.dtype[Any], num_classes: int, folder: Path, *, waiting_bytes: int = WAITING_BYTES
    ) -> None:
        """Opens a scratch file in `folder`; classes are 0 to num_classes - 1.

        Raises:
            OutputError: the folder takes no files.
        """
        self._kind = kind
        self._folder = folder
        self._scratch = open_scratch(folder)
        self._waiting: list[NDArray[Any]] = []
        self._waiting_classes: list[Int64] = []
        self._bytes, self._limit = 0, waiting_bytes
        self._end = 0
        self._pieces: list[list[tuple[int, int]]] = [[] for _ in range(num_classes)]

    def add(self, rows: NDArray[Any], classes: Int64) -> None:
        """Takes the rows (n,) of the next image, and their classes (n,); rows of one class keep their order.

        Raises:
            OutputError: they do not go onto the disk.
        """
        if not len(rows):
            return
        self._waiting.append(rows)
        self._waiting_classes.append(classes)
        self._bytes += rows.nbytes + classes.nbytes
        if self._bytes >= self._limit:
            self._write_waiting()

    def has(self, class_index: int) -> bool:
        """Says whether there are rows of a class."""
        self._write_waiting()
        return bool(self._pieces[class_index])

    def cells(self, class_index: int, images: int, field: str | None = None) -> Iterator[NDArray[Any]]:
        """Returns for each of `images` images, in order, its rows of one class, or one field of them."""
        self._write_waiting()
        none = np.zeros(0, self._kind)
        nothing = none if field is None else none[field]  # nearly all cells are empty: one serves them all
        reached = 0
        for offset, count in self._pieces[class_index]:
            content = os.pread(self._scratch.fileno(), count * self._kind.itemsize, offset)
            rows = np.frombuffer(content, self._kind)
            values = rows if field is None else rows[field]
            # All rows of an image lie in one piece.
            firsts = np.flatnonzero(np.diff(rows["image"], prepend=-1))
            for start, end in zip(firsts.tolist(), [*firsts[1:].tolist(), count], strict=True):
                image = int(rows["image"][start])
                for _ in range(reached, image):
                    yield nothing
                yield values[start:end]
                reached = image + 1
        for _ in range(reached, images):
            yield nothing

    def close(self) -> None:
        """Removes the scratch file."""
        self._waiting.clear()
        self._scratch.close()

    def _write_waiting(self) -> None:
        if not self._waiting:
            return
        rows, classes = np.concatenate(self._waiting), np.concatenate(self._waiting_classes)
        self._waiting, self._waiting_classes, self._bytes = [], [], 0
        rows = rows[np.argsort(classes, kind="stable")]
        counts = np.bincount(classes, minlength=len(self._pieces)).tolist()
        offset = self._end
        self._end = write_at(self._scratch, rows.view(np.uint8).data, offset, self._folder)
        for pieces, count in zip(self._pieces, counts, strict=True):
            if count:
                pieces.append((offset, count))
                offset += count * self._kind.itemsize


def open_scratch(folder: Path) -> FileIO:
    """Opens a file without a name, unbuffered, for reading and writing.

    Raises:
        OutputError: the folder takes no files.
    """
    with _room_in(folder, 0):
        return tempfile.TemporaryFile(dir=folder, prefix=".rows.", buffering=0)


def write_at(scratch: FileIO, content: memoryview, offset: int, folder: Path) -> int:
    """Writes bytes at an offset of a scratch file in `folder`, and returns where they end.

    Raises:
        OutputError: they do not go onto the disk.
    """
    with _room_in(folder, len(content)):
        while len(content):
            written = os.pwrite(scratch.fileno(), content, offset)
            offset += written
            content = content[written:]
    return offset


@contextlib.contextmanager
def _room_in(folder: Path, size: int) -> Iterator[None]:
    """Says in words what the system says when `size` more bytes of a scratch file do not go into `folder`.

    Raises:
        OutputError: they do not.
    """
    try:
        yield
    except OSError as error:
        raise OutputError(
            f"{folder}: results cannot be put together there ({error.strerror}); {size / 1e6:.1f} MB more are needed for "
            "scratch files, besides the results: make room and run the same command again"
        ) from error
