"""Picture files whose end is missing, made whole so that a decoder takes them: what is there stays, what is not there is filled.

Decoders refuse such files, or fill the rest without a word. A JPEG file gets its end mark, and its decoder fills the rest with gray; of
a PNG file the rows that can be unpacked are packed again, with zeros after them. Of no other format can a part be used.
"""

from __future__ import annotations

import struct
import zlib

from roiline.infer.picture_headers import PictureHeader

_JPEG_END = b"\xff\xd9"
_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_PNG_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
# (first row, first column, row step, column step) of the seven passes of an interlaced PNG file (PNG specification, 8.2).
_ADAM7 = ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1))
_PLAIN = ((0, 0, 1, 1),)
_PIECE = 1 << 20


def complete_picture(data: bytes, header: PictureHeader) -> bytes | None:
    """Returns the bytes of a whole picture file that begins as `data` does; None where nothing of the picture can be used."""
    if header.format == "JPEG":
        return data + _JPEG_END if len(data) > header.data_offset else None
    if header.format == "PNG":
        return _complete_png(data)
    return None


def png_chunks(data: bytes) -> list[tuple[bytes, int, int]]:
    """Returns (kind, start, end) of each whole chunk of a PNG file."""
    chunks = []
    start = len(_PNG_SIGNATURE)
    while start + 12 <= len(data):
        length, kind = struct.unpack(">I4s", data[start : start + 8])
        end = start + 12 + length
        if end > len(data):
            break
        chunks.append((kind, start, end))
        start = end
    return chunks


def _complete_png(data: bytes) -> bytes | None:
    chunks = png_chunks(data)
    if not chunks or chunks[0][0] != b"IHDR":
        return None
    width, height, depth, colour, _, _, interlaced = struct.unpack(">IIBBBBB", data[16:29])
    if colour not in _PNG_CHANNELS:
        return None
    wanted = _unpacked_length(width, height, depth * _PNG_CHANNELS[colour], _ADAM7 if interlaced else _PLAIN)
    packed = [data[start + 8 : end - 4] for kind, start, end in chunks if kind == b"IDAT"]
    reached = chunks[-1][2]
    if data[reached + 4 : reached + 8] == b"IDAT":
        packed.append(data[reached + 8 :])
    unpacker = zlib.decompressobj()
    try:
        rows = unpacker.decompress(b"".join(packed), wanted)
    except zlib.error:
        return None
    if not rows:
        return None
    before = [data[start:end] for kind, start, end in chunks if kind not in (b"IDAT", b"IEND")]
    content = _pack(rows, wanted)
    return b"".join([_PNG_SIGNATURE, *before, _png_chunk(b"IDAT", content), _png_chunk(b"IEND", b"")])


def _pack(rows: bytes, wanted: int) -> bytes:
    """Returns rows and the zeros after them packed; the zeros, which may be gigabytes, a piece at a time."""
    packer = zlib.compressobj(1)
    packed = [packer.compress(rows)]
    for start in range(len(rows), wanted, _PIECE):
        packed.append(packer.compress(bytes(min(_PIECE, wanted - start))))
    return b"".join([*packed, packer.flush()])


def _unpacked_length(width: int, height: int, bits: int, passes: tuple[tuple[int, int, int, int], ...]) -> int:
    """Returns the bytes of all rows, each with the byte of its filter; a pass without columns has no rows."""
    total = 0
    for top, left, down, across in passes:
        rows, columns = -(-(height - top) // down), -(-(width - left) // across)
        if rows > 0 and columns > 0:
            total += rows * (1 + -(-columns * bits // 8))
    return total


def _png_chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
