"""Sizes of Netpbm pictures (PBM, PGM, PPM, PAM) from their headers, which are text."""

from __future__ import annotations

import re
from typing import BinaryIO

from roiline.infer.header_bytes import HeaderError, PictureHeader

_LONGEST = 1 << 16  # bytes of a header: comments may stand in it
_COMMENT = re.compile(rb"#[^\n]*\n?")
_WIDTH_HEIGHT = re.compile(rb"P[1-6]\s+(\d{1,9})\s+(\d{1,9})\s")
_PAM = (re.compile(rb"^WIDTH\s+(\d{1,9})\s", re.MULTILINE), re.compile(rb"^HEIGHT\s+(\d{1,9})\s", re.MULTILINE))


def is_netpbm(head: bytes) -> bool:
    """Says whether a file that begins with `head` is such a picture."""
    return re.match(rb"P[1-7][\s#]", head) is not None


def read_netpbm(file: BinaryIO) -> PictureHeader:
    """Reads the header of a file that `is_netpbm`.

    Raises:
        HeaderError: it has no size.
    """
    file.seek(0)
    text = _COMMENT.sub(b"\n", file.read(_LONGEST))
    if text.startswith(b"P7"):
        found = [pattern.search(text) for pattern in _PAM]
        sides = [int(match[1]) for match in found if match is not None]
    else:
        match = _WIDTH_HEIGHT.match(text)
        sides = [] if match is None else [int(match[1]), int(match[2])]
    if len(sides) != 2:
        raise HeaderError("its header has no size")
    return PictureHeader("Netpbm", sides[1], sides[0])
