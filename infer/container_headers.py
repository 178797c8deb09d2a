"""Sizes of JPEG 2000 and AVIF pictures from the boxes that they are packed in (ISO/IEC 15444-1 annex I, ISO/IEC 14496-12)."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import BinaryIO

from roiline.infer.header_bytes import HeaderError, PictureHeader, take

_AVIF_BRANDS = (b"avif", b"avis")
_MOST_BOXES = 4096  # of one level: beyond any real file, and a bound on hostile ones


def is_avif(head: bytes) -> bool:
    """Says whether a file that begins with `head` is an AVIF picture."""
    return head[4:8] == b"ftyp" and head[8:12] in _AVIF_BRANDS


def read_jp2(file: BinaryIO) -> PictureHeader:
    """Reads the header of a JPEG 2000 file with boxes.

    Raises:
        HeaderError: it has no size.
    """
    for start, end in _find_path(file, 0, _length(file), (b"jp2h", b"ihdr")):
        file.seek(start)
        if end - start >= 8:
            return PictureHeader("JPEG 2000", *struct.unpack(">II", take(file, 8)))
    raise HeaderError("its header has no size")


def read_codestream(file: BinaryIO) -> PictureHeader:
    """Reads the header of a bare JPEG 2000 codestream.

    Raises:
        HeaderError: it is cut short, or its area is none.
    """
    file.seek(8)
    right, bottom, left, top = struct.unpack(">4I", take(file, 16))
    if right <= left or bottom <= top:
        raise HeaderError("its header has no size")
    return PictureHeader("JPEG 2000", bottom - top, right - left)


def read_avif(file: BinaryIO) -> PictureHeader:
    """Reads the header of an AVIF picture: the largest of the sizes that it has properties for, which is the picture's own.

    Turns that the file asks for are left out, as OpenCV leaves them out.

    Raises:
        HeaderError: it has no size.
    """
    sizes = []
    for start, end in _find_path(file, 0, _length(file), (b"meta", b"iprp", b"ipco", b"ispe")):
        file.seek(start + 4)
        if end - start >= 12:
            sizes.append(struct.unpack(">II", take(file, 8)))
    if not sizes:
        raise HeaderError("its header has no size")
    width, height = max(sizes, key=lambda size: size[0] * size[1])
    return PictureHeader("AVIF", height, width)


def _length(file: BinaryIO) -> int:
    return file.seek(0, 2)


def _find_path(file: BinaryIO, start: int, end: int, path: tuple[bytes, ...]) -> Iterator[tuple[int, int]]:
    """Returns where the content of every box of a path of kinds lies; `meta` has four bytes before its boxes."""
    for kind, first, last in _list_boxes(file, start, end):
        if kind != path[0]:
            continue
        if len(path) == 1:
            yield first, last
        else:
            yield from _find_path(file, first + (4 if kind == b"meta" else 0), last, path[1:])


def _list_boxes(file: BinaryIO, start: int, end: int) -> Iterator[tuple[bytes, int, int]]:
    """Returns the kind of each box between two offsets, and where its content lies; a size of 0 means to the end."""
    for _ in range(_MOST_BOXES):
        if start + 8 > end:
            return
        file.seek(start)
        size, kind = struct.unpack(">I4s", take(file, 8))
        head = 8
        if size == 1:
            (size,), head = struct.unpack(">Q", take(file, 8)), 16
        last = end if size == 0 else min(end, start + size)
        if last < start + head:
            raise HeaderError("a box of its header has no length")
        yield kind, start + head, last
        start = last
