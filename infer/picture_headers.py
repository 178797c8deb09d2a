"""Picture sizes from the first bytes of a file, without decoding it.

JPEG, PNG, GIF, BMP, WebP and TIFF are read here, JPEG 2000, AVIF and the Netpbm formats in modules beside; stored size and orientation
tell what the decoder will return. The rule for orientation is OpenCV's: it turns JPEG and PNG upright by their EXIF tag when asked to,
TIFF always, and no other format. A file without a header that is read here is not decoded at all: no claim of a size goes unseen.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from io import BytesIO
from typing import BinaryIO

from roiline.infer.container_headers import is_avif, read_avif, read_codestream, read_jp2
from roiline.infer.header_bytes import ExifPolicy, HeaderError, PictureHeader, take
from roiline.infer.netpbm_headers import is_netpbm, read_netpbm

__all__ = ["ExifPolicy", "HeaderError", "PictureHeader", "read_header"]

_SOF_MARKERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_BARE_MARKERS = frozenset({0x01, *range(0xD0, 0xD9)})


def read_header(file: BinaryIO) -> PictureHeader | None:
    """Reads the header of a seekable binary file; None where the format is not one of those that are read here.

    Raises:
        HeaderError: the format is known, but the header is cut short or wrong.
    """
    file.seek(0)
    head = file.read(16)
    for signature, reader in _READERS:
        if head.startswith(signature):
            return reader(file)
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return _read_webp(file)
    if is_avif(head):
        return read_avif(file)
    return read_netpbm(file) if is_netpbm(head) else None


def _read_jpeg(file: BinaryIO) -> PictureHeader:
    file.seek(2)
    height = width = 0
    orientation = 1
    while True:
        marker = _next_marker(file)
        if marker in _BARE_MARKERS:
            continue
        if marker == 0xD9:
            raise HeaderError("it ends before its picture data")
        (length,) = struct.unpack(">H", take(file, 2))
        if length < 2:
            raise HeaderError("a segment of its header has no length")
        start = file.tell()
        if marker in _SOF_MARKERS:
            height, width = struct.unpack(">xHH", take(file, 5))
        elif marker == 0xE1:
            payload = take(file, length - 2)
            if payload.startswith(b"Exif\0\0"):
                orientation = _orientation_from_tiff(payload[6:])
        elif marker == 0xDA:
            if width == 0:
                raise HeaderError("its header has no size")
            return PictureHeader("JPEG", height, width, orientation, start + length - 2)
        file.seek(start + length - 2)


def _next_marker(file: BinaryIO) -> int:
    if take(file, 1) != b"\xff":
        raise HeaderError("its header is corrupt")
    code = 0xFF
    while code == 0xFF:  # a marker may be preceded by any number of fill bytes
        code = take(file, 1)[0]
    return code


def _read_png(file: BinaryIO) -> PictureHeader:
    file.seek(8)
    _, kind, width, height = struct.unpack(">I4sII", take(file, 16))
    if kind != b"IHDR":
        raise HeaderError("its header is corrupt")
    orientation = 1
    file.seek(33)
    while len(head := file.read(8)) == 8:
        length, kind = struct.unpack(">I4s", head)
        if kind == b"eXIf":
            orientation = _orientation_from_tiff(file.read(min(length, 1 << 16)))
            break
        if kind == b"IEND":
            break
        file.seek(length + 4, 1)
    return PictureHeader("PNG", height, width, orientation)


def _read_gif(file: BinaryIO) -> PictureHeader:
    file.seek(6)
    width, height = struct.unpack("<HH", take(file, 4))
    return PictureHeader("GIF", height, width)


def _read_bmp(file: BinaryIO) -> PictureHeader:
    file.seek(14)
    (size,) = struct.unpack("<I", take(file, 4))
    width, height = struct.unpack("<HH", take(file, 4)) if size == 12 else struct.unpack("<ii", take(file, 8))
    return PictureHeader("BMP", abs(height), abs(width))  # a negative height marks rows stored top down


def _read_webp(file: BinaryIO) -> PictureHeader:
    file.seek(12)
    chunk = take(file, 4)
    take(file, 4)
    body = take(file, 10)
    if chunk == b"VP8X":
        width, height = int.from_bytes(body[4:7], "little") + 1, int.from_bytes(body[7:10], "little") + 1
    elif chunk == b"VP8L":
        bits = int.from_bytes(body[1:5], "little")
        width, height = (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    elif chunk == b"VP8 ":
        width, height = (size & 0x3FFF for size in struct.unpack("<HH", body[6:10]))
    else:
        raise HeaderError("its header is corrupt")
    return PictureHeader("WebP", height, width)


def _read_tiff(file: BinaryIO) -> PictureHeader:
    file.seek(0)
    order = "<" if take(file, 2) == b"II" else ">"
    tags = _read_ifd(file, order, 0)
    if not tags.get(256) or not tags.get(257):
        raise HeaderError("its header has no size")
    return PictureHeader("TIFF", tags[257], tags[256], tags.get(274, 1))


def _read_ifd(file: BinaryIO, order: str, base: int) -> dict[int, int]:
    """Returns the single SHORT and LONG values of the first directory of a TIFF structure that begins at `base`."""
    file.seek(base + 4)
    (offset,) = struct.unpack(order + "I", take(file, 4))
    file.seek(base + offset)
    (count,) = struct.unpack(order + "H", take(file, 2))
    tags = {}
    for _ in range(count):
        tag, kind, _, value = struct.unpack(order + "HHI4s", take(file, 12))
        if kind in (3, 4):
            tags[tag] = struct.unpack(order + ("H" if kind == 3 else "I"), value[: 2 if kind == 3 else 4])[0]
    return tags


def _orientation_from_tiff(payload: bytes) -> int:
    """Returns the orientation of an EXIF block; 1 where the block is damaged, as decoders do."""
    if payload[:2] not in (b"II", b"MM"):
        return 1
    try:
        tags = _read_ifd(BytesIO(payload), "<" if payload[:2] == b"II" else ">", 0)
    except HeaderError:
        return 1
    value = tags.get(274, 1)
    return value if value in range(1, 9) else 1


_READERS: tuple[tuple[bytes, Callable[[BinaryIO], PictureHeader]], ...] = (
    (b"\xff\xd8\xff", _read_jpeg),
    (b"\x89PNG\r\n\x1a\n", _read_png),
    (b"GIF87a", _read_gif),
    (b"GIF89a", _read_gif),
    (b"BM", _read_bmp),
    (b"II*\0", _read_tiff),
    (b"MM\0*", _read_tiff),
    (b"\0\0\0\x0cjP  \r\n\x87\n", read_jp2),
    (b"\xff\x4f\xff\x51", read_codestream),
)
