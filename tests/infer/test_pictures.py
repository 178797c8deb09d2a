from __future__ import annotations

import csv
import os
import struct
import subprocess
import sys
import zlib

import cv2
import numpy as np
import pytest
from shared_data import shared_path

from roiline.core.errors import DataError
from roiline.infer.pictures import (
    decode_picture,
    describe_bytes,
    is_picture_file,
    read_bytes,
    read_picture,
    read_size,
    set_decoder_threads,
)

PICTURE = np.random.default_rng(1).integers(0, 256, (30, 50, 3), dtype=np.uint8)
REFUSED = {
    "truncated.jpg": "cut short",
    "truncated_image.png": "cut short",
    "corrupt-header.jpg": "cut short",
    "decompression_bomb.gif": "damaged GIF",
    "giant-image.jpg": "20000 x 14000, 280000000 pixels",
    "zero-byte.jpg": "empty",
}


def encode(suffix: str, picture: np.ndarray = PICTURE) -> bytes:
    return cv2.imencode(suffix, picture)[1].tobytes()


def png_chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def jpeg_turned(orientation: int) -> bytes:
    jpeg = encode(".jpg")
    payload = b"Exif\0\0II*\0" + struct.pack("<IHHHIHHI", 8, 1, 0x112, 3, 1, orientation, 0, 0)
    return jpeg[:2] + b"\xff\xe1" + struct.pack(">H", len(payload) + 2) + payload + jpeg[2:]


def odd_pictures() -> list[dict[str, str]]:
    folder = shared_path("data/odd-images")
    with (folder / "manifest.csv").open(encoding="utf-8") as file:
        return [{**row, "path": str(folder / row["file"])} for row in csv.DictReader(file)]


def test_odd_pictures_decode_as_imread_or_say_why_not(tmp_path):
    refused = {}
    for row in odd_pictures():
        path = shared_path("data/odd-images") / row["file"]
        try:
            picture = read_picture(path)
        except DataError as error:
            refused[row["file"]] = str(error)
            continue
        plain = tmp_path / f"plain{path.suffix}"
        plain.write_bytes(path.read_bytes())
        assert np.array_equal(picture, cv2.imread(str(plain), cv2.IMREAD_COLOR)), row["file"]
        assert read_size(path) == picture.shape[:2], row["file"]
        turned = read_picture(path, exif="ignore")
        assert read_size(path, exif="ignore") == turned.shape[:2], row["file"]
        if row["exif_orientation"] in "5678" and row["cv2_color_orientation"] == "applied":
            assert turned.shape[:2] == picture.shape[1::-1], row["file"]
    assert refused.keys() == REFUSED.keys()
    for name, reason in REFUSED.items():
        assert reason in refused[name]
        assert name in refused[name]


def test_decoding_is_silent_and_in_one_thread():
    """Runs in a process of its own: OpenCV and its libraries write to the file descriptor, not to `sys.stderr`."""
    folder = shared_path("data/odd-images")
    names = [name for name in os.listdir(folder) if name not in ("SOURCE.md", "manifest.csv", "giant-image.jpg")]
    code = (
        "import sys, cv2\nfrom pathlib import Path\n"
        "from roiline.core.errors import DataError\nfrom roiline.infer.pictures import read_picture\n"
        "for name in sys.argv[1:]:\n"
        "    try:\n        read_picture(Path(name))\n"
        "    except DataError:\n        pass\n"
        "print(cv2.getNumThreads())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *(str(folder / name) for name in names)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    assert done.stdout.split() == ["1"]


def test_decoder_threads_can_be_set():
    set_decoder_threads(2)
    assert cv2.getNumThreads() == 2
    set_decoder_threads(1)
    assert cv2.getNumThreads() == 1


def test_a_name_of_any_characters(tmp_path):
    path = tmp_path / "кот größe 鳥 1.png"
    path.write_bytes(encode(".png"))
    assert np.array_equal(read_picture(path), PICTURE)


@pytest.mark.parametrize("cut", [0.3, 0.9, 0.999])
@pytest.mark.parametrize("suffix", [".jpg", ".png", ".webp"])
def test_a_picture_that_is_cut_short_is_refused(suffix, cut):
    picture = cv2.resize(PICTURE, (400, 300))
    data = encode(suffix, picture)
    with pytest.raises(DataError, match=r"x\.bin: .*cut short"):
        decode_picture(data[: int(len(data) * cut)], where="x.bin")


def test_an_end_mark_in_a_thumbnail_does_not_hide_a_missing_end():
    jpeg = encode(".jpg")
    thumbnail = b"Exif\0\0" + encode(".jpg", PICTURE[:8, :8])
    whole = jpeg[:2] + b"\xff\xe1" + struct.pack(">H", len(thumbnail) + 2) + thumbnail + jpeg[2:]
    assert decode_picture(whole, where="x").shape == PICTURE.shape
    with pytest.raises(DataError, match="cut short"):
        decode_picture(whole[:-2], where="x")


def test_bytes_after_the_end_do_no_harm():
    data = encode(".jpg")
    assert np.array_equal(decode_picture(data + b"trailing", where="x"), decode_picture(data, where="x"))


def test_a_size_beyond_the_limit_is_refused_before_decoding():
    header = struct.pack(">IIBBBBB", 30000, 30000, 8, 2, 0, 0, 0)
    bomb = b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", header) + png_chunk(b"IDAT", b"") + png_chunk(b"IEND", b"")
    with pytest.raises(DataError, match="30000 x 30000, 900000000 pixels; the limit is"):
        decode_picture(bomb, where="bomb.png")
    with pytest.raises(DataError, match="the limit is 1499"):
        decode_picture(encode(".png"), where="x", max_pixels=1499)
    assert decode_picture(encode(".png"), where="x", max_pixels=1500).shape == (30, 50, 3)


def test_sixteen_bits_become_eight_by_the_high_byte():
    deep = (PICTURE.astype(np.uint16) << 8) | 0x7F
    assert np.array_equal(decode_picture(encode(".png", deep), where="x"), PICTURE)
    gray = decode_picture(encode(".png", deep[:, :, 0]), where="x")
    assert np.array_equal(gray, np.repeat(PICTURE[:, :, :1], 3, axis=2))


def test_channels_are_blue_green_red():
    blue = np.zeros((4, 4, 3), np.uint8)
    blue[:, :, 0] = 255
    assert decode_picture(encode(".png", blue), where="x")[0, 0].tolist() == [255, 0, 0]


def test_an_odd_colour_profile_changes_nothing():
    png = encode(".png")
    odd = png[:33] + png_chunk(b"iCCP", b"icc\0\0" + zlib.compress(b"no profile")) + png[33:]
    assert np.array_equal(decode_picture(odd, where="x"), PICTURE)


@pytest.mark.parametrize("exif", ["apply", "ignore"])
@pytest.mark.parametrize("size_hw", [(30, 50), (50, 30)])
def test_a_turned_picture_comes_the_way_round_that_the_dataset_means(size_hw, exif):
    picture = decode_picture(jpeg_turned(6), where="x", exif=exif, size_hw=size_hw)
    assert picture.shape[:2] == size_hw
    assert np.array_equal(
        picture, decode_picture(jpeg_turned(6), where="x", exif="apply" if size_hw == (50, 30) else "ignore")
    )


def test_a_picture_of_another_size_than_the_dataset_says_is_refused():
    with pytest.raises(DataError, match=r"the picture is 50 x 30 .* the dataset says 30 x 50"):
        decode_picture(encode(".jpg"), where="x", size_hw=(50, 30))
    with pytest.raises(DataError, match=r"the dataset says 51 x 30"):
        decode_picture(encode(".png"), where="x", size_hw=(30, 51))


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"<!DOCTYPE html><html></html>", "an HTML page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "a Git LFS pointer"),
        (b'{"message": "Not Found"}', "JSON text"),
        (b"just some words\n", "plain text"),
        (b"PK\x03\x04rest", "a zip archive"),
        (b"%PDF-1.7", "a PDF"),
        (b"\0\0\0\x20ftypisom\0\0", "a video"),
        (b'<?xml version="1.0"?><svg/>', "an SVG drawing"),
        (bytes(100), "nothing but zero bytes"),
        (b"\xde\xad\xbe\xef", "of no known kind (first bytes de ad be ef)"),
    ],
)
def test_what_is_not_a_picture_is_named(data, kind):
    assert describe_bytes(data).startswith(kind)
    with pytest.raises(DataError) as caught:
        decode_picture(data, where="photo.jpg")
    assert f"photo.jpg: cannot be decoded; the file is {kind}" in str(caught.value)


def test_files_that_cannot_be_read_are_named(tmp_path):
    with pytest.raises(DataError, match=r"nowhere\.jpg: cannot be read"):
        read_bytes(tmp_path / "nowhere.jpg")
    with pytest.raises(DataError, match="it is a folder"):
        read_bytes(tmp_path)
    (tmp_path / "empty.jpg").touch()
    with pytest.raises(DataError, match="zero bytes"):
        read_bytes(tmp_path / "empty.jpg")
    os.mkfifo(tmp_path / "pipe.jpg")
    for read in (read_bytes, read_size):
        with pytest.raises(DataError, match="no regular file"):
            read(tmp_path / "pipe.jpg")
        with pytest.raises(DataError, match="cannot be read"):
            read(tmp_path / "\ud800.jpg")


def test_pictures_are_known_by_suffix_or_content(tmp_path):
    (tmp_path / "a.JPG").touch()
    (tmp_path / "no_suffix").write_bytes(encode(".png"))
    (tmp_path / "notes.txt").write_text("text")
    assert is_picture_file(tmp_path / "a.JPG")
    assert is_picture_file(tmp_path / "no_suffix")
    assert not is_picture_file(tmp_path / "notes.txt")
    assert not is_picture_file(tmp_path / "nowhere")
