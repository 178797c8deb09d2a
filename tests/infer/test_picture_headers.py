from __future__ import annotations

import contextlib
import struct
import zlib
from io import BytesIO

import cv2
import numpy as np
import pytest

from roiline.infer.picture_headers import HeaderError, read_header

PICTURE = np.random.default_rng(0).integers(0, 256, (40, 70, 3), dtype=np.uint8)


def encode(suffix: str) -> bytes:
    return cv2.imencode(suffix, PICTURE)[1].tobytes()


def exif_block(orientation: int, order: str = "<") -> bytes:
    mark = b"II*\0" if order == "<" else b"MM\0*"
    return mark + struct.pack(order + "IHHHIHHI", 8, 1, 0x112, 3, 1, orientation, 0, 0)


def jpeg_with_exif(orientation: int, order: str = "<") -> bytes:
    jpeg = encode(".jpg")
    payload = b"Exif\0\0" + exif_block(orientation, order)
    return jpeg[:2] + b"\xff\xe1" + struct.pack(">H", len(payload) + 2) + payload + jpeg[2:]


def png_with_exif(orientation: int, *, at_end: bool) -> bytes:
    png = encode(".png")
    body = b"eXIf" + exif_block(orientation)
    chunk = struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body))
    place = len(png) - 12 if at_end else 33
    return png[:place] + chunk + png[place:]


def tiff_with_orientation(orientation: int) -> bytes:
    tiff = encode(".tiff")
    (offset,) = struct.unpack("<I", tiff[4:8])
    (count,) = struct.unpack("<H", tiff[offset : offset + 2])
    tags = [tiff[offset + 2 + 12 * k : offset + 14 + 12 * k] for k in range(count)]
    tags = sorted(
        [*tags, struct.pack("<HHIHH", 274, 3, 1, orientation, 0)], key=lambda tag: struct.unpack("<H", tag[:2])
    )
    return tiff[:4] + struct.pack("<I", len(tiff)) + tiff[8:] + struct.pack("<H", len(tags)) + b"".join(tags) + bytes(4)


def decoded_size(data: bytes, exif: str) -> tuple[int, int]:
    flags = cv2.IMREAD_COLOR | (cv2.IMREAD_IGNORE_ORIENTATION if exif == "ignore" else 0)
    return cv2.imdecode(np.frombuffer(data, np.uint8), flags).shape[:2]


@pytest.mark.parametrize("exif", ["apply", "ignore"])
@pytest.mark.parametrize("suffix", [".jpg", ".png", ".gif", ".bmp", ".webp", ".tiff", ".ppm", ".pam", ".jp2", ".avif"])
def test_size_is_that_of_the_decoder(suffix, exif):
    data = encode(suffix)
    header = read_header(BytesIO(data))
    assert header is not None
    assert header.size_hw(exif) == decoded_size(data, exif) == (40, 70)


@pytest.mark.parametrize("quality", [30, 101])
def test_webp_lossy_and_lossless(quality):
    data = cv2.imencode(".webp", PICTURE, [cv2.IMWRITE_WEBP_QUALITY, quality])[1].tobytes()
    assert data[12:16] == (b"VP8L" if quality > 100 else b"VP8 ")
    assert read_header(BytesIO(data)).size_hw("apply") == (40, 70)


def test_webp_extended():
    with_alpha = cv2.imencode(".webp", np.dstack([PICTURE, PICTURE[:, :, 0]]), [cv2.IMWRITE_WEBP_QUALITY, 50])[
        1
    ].tobytes()
    assert with_alpha[12:16] == b"VP8X"
    assert read_header(BytesIO(with_alpha)).size_hw("apply") == (40, 70)


@pytest.mark.parametrize("exif", ["apply", "ignore"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientations_turn_as_the_decoder_does(orientation, exif):
    files = [
        jpeg_with_exif(orientation),
        jpeg_with_exif(orientation, ">"),
        png_with_exif(orientation, at_end=False),
        png_with_exif(orientation, at_end=True),
        tiff_with_orientation(orientation),
    ]
    for data in files:
        header = read_header(BytesIO(data))
        assert header.orientation == orientation
        assert header.size_hw(exif) == decoded_size(data, exif)


def test_an_orientation_that_does_not_exist_is_upright():
    assert read_header(BytesIO(jpeg_with_exif(99))).orientation == 1


def test_a_damaged_exif_block_is_upright():
    jpeg = encode(".jpg")
    payload = b"Exif\0\0II*\0" + struct.pack("<I", 5000)
    data = jpeg[:2] + b"\xff\xe1" + struct.pack(">H", len(payload) + 2) + payload + jpeg[2:]
    assert read_header(BytesIO(data)).orientation == 1


def test_bmp_stored_top_down():
    data = bytearray(encode(".bmp"))
    data[22:26] = struct.pack("<i", -40)
    assert read_header(BytesIO(bytes(data))).size_hw("apply") == (40, 70)


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".gif", ".bmp", ".webp", ".tiff"])
def test_every_cut_is_an_error_or_a_size_and_nothing_else(suffix):
    data = encode(suffix)
    for length in range(min(len(data), 700)):
        try:
            header = read_header(BytesIO(data[:length]))
        except HeaderError:
            continue
        assert header is None or header.size_hw("apply") == (40, 70)


@pytest.mark.parametrize("data", [b"", b"hello", b"RIFF0000AVI ", bytes(64)])
def test_other_bytes_have_no_header(data):
    assert read_header(BytesIO(data)) is None


def test_netpbm_headers_may_have_comments():
    for text in (b"P5 # made by hand\n70\n# 40 lines\n40 255 ", b"P2\n70 40\n255\n1 2", b"P4\t70 40\n"):
        header = read_header(BytesIO(text))
        assert (header.format, header.height, header.width) == ("Netpbm", 40, 70)
    for text in (b"P5\n70\n", b"P7\nWIDTH 70\nENDHDR\n", b"P6 a b 255\n"):
        with pytest.raises(HeaderError, match="no size"):
            read_header(BytesIO(text))


def test_a_bare_codestream_of_jpeg_2000():
    data = encode(".jp2")
    header = read_header(BytesIO(data[data.index(b"\xff\x4f\xff\x51") :]))
    assert (header.height, header.width) == (40, 70)


@pytest.mark.parametrize("suffix", [".jp2", ".avif"])
def test_boxes_that_are_damaged_are_said_and_never_looped_over(suffix):
    data = encode(suffix)
    for cut in range(12, 120):
        with contextlib.suppress(HeaderError):
            read_header(BytesIO(data[:cut]))
    start = 12 if suffix == ".jp2" else int.from_bytes(data[:4], "big")
    for size in (0, 1, 2, 7, 8, 1 << 31):
        with pytest.raises(HeaderError):
            read_header(BytesIO(data[:start] + struct.pack(">I4s", size, b"free") + bytes(30)))
