"""Picture files whose end is missing: refused, or used as far as they go."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from run_support import make_request, result_bytes, write_model, write_pictures
from shared_data import shared_path

from roiline.commands import options
from roiline.core.errors import EXIT_DONE, EXIT_SOME_FAILED, DataError, UsageError
from roiline.infer import pictures
from roiline.infer.manifest import read_manifest
from roiline.infer.pictures import CutShortError, decode_picture
from roiline.infer.run import run_dataset

SMOOTH = cv2.resize(np.random.default_rng(1).integers(0, 256, (8, 12, 3), np.uint8), (120, 80))
CUT_ID = 16


def encode(suffix: str, picture: Any = SMOOTH, flags: tuple[int, ...] = ()) -> bytes:
    return cv2.imencode(suffix, picture, flags)[1].tobytes()


def png(
    width: int, height: int, depth: int, colour: int, rows: bytes, *, before: bytes = b"", interlaced: int = 0
) -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, interlaced)
    body = chunk(b"IHDR", header) + before + chunk(b"IDAT", zlib.compress(rows, 0)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


@pytest.mark.parametrize("cut", [0.5, 0.9])
@pytest.mark.parametrize("flags", [(), (cv2.IMWRITE_JPEG_PROGRESSIVE, 1), (cv2.IMWRITE_JPEG_RST_INTERVAL, 4)])
def test_a_jpeg_file_gives_its_first_rows(cut: float, flags: tuple[int, ...], capfd: Any) -> None:
    data = encode(".jpg", flags=flags)
    whole = decode_picture(data, where="x")
    part = decode_picture(data[: int(len(data) * cut)], where="x", tolerant=True)
    assert part.shape == whole.shape
    if flags[:1] != (cv2.IMWRITE_JPEG_PROGRESSIVE,):  # where every part of the file refines the whole picture
        assert np.array_equal(part[: int(80 * cut) - 16], whole[: int(80 * cut) - 16])
    assert not np.array_equal(part, whole)
    capfd.readouterr()  # the decoder's own words, which do not say which picture they are of


@pytest.mark.parametrize("picture", [SMOOTH, SMOOTH[:, :, 0], SMOOTH.astype(np.uint16) * 257])
def test_a_png_file_gives_its_first_rows_and_black(picture: Any) -> None:
    data = encode(".png", picture)
    whole = decode_picture(data, where="x")
    part = decode_picture(data[: len(data) // 2], where="x", tolerant=True)
    same = (part == whole).all(axis=(1, 2))
    first = int(same.argmin())
    assert 10 < first < 70
    assert same[:first].all()
    assert not part[first + 1 :].any()


def test_a_png_file_with_a_palette_and_one_with_passes() -> None:
    palette = b"".join([struct.pack(">I", 6), b"PLTE", bytes([255, 0, 0, 0, 0, 255])])
    palette += struct.pack(">I", zlib.crc32(palette[4:]))
    rows = b"".join(b"\0" + bytes([0b10101010] * 4) for _ in range(32))
    data = png(32, 32, 1, 3, rows, before=palette)
    whole = decode_picture(data, where="x")
    assert whole[0, :2].tolist() == [[255, 0, 0], [0, 0, 255]]
    part = decode_picture(data[: data.index(b"IDAT") + 4 + 7 + 5 * 16], where="x", tolerant=True)
    assert np.array_equal(part[:16], whole[:16])
    assert (part[17:] == [0, 0, 255]).all()
    passes = b"".join(
        b"\0" + bytes([9] * width)
        for width, count in ((1, 1), (1, 1), (2, 1), (2, 2), (4, 2), (4, 4), (8, 4))
        for _ in range(count)
    )
    data = png(8, 8, 8, 0, passes, interlaced=1)
    assert (decode_picture(data, where="x") == 9).all()
    part = decode_picture(data[:-40], where="x", tolerant=True)
    assert part[0, 0].tolist() == [9, 9, 9]
    assert (part == 0).any()


@pytest.mark.parametrize(
    "data", [encode(".webp"), encode(".png")[:40], encode(".png")[:47], b"\x89PNG\r\n\x1a\n" + bytes(30)]
)
def test_of_other_files_nothing_can_be_used(data: bytes) -> None:
    with pytest.raises(DataError):
        decode_picture(data[:-10] if len(data) > 50 else data, where="x", tolerant=True)


def test_real_files_that_are_cut_short(capfd: Any) -> None:
    for name, shape in (("truncated.jpg", (2225, 2725, 3)), ("truncated_image.png", (480, 640, 3))):
        data = (shared_path("data/odd-images") / name).read_bytes()
        with pytest.raises(CutShortError):
            decode_picture(data, where=name)
        assert decode_picture(data, where=name, tolerant=True).shape == shape
    capfd.readouterr()


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seven pictures, one of which is cut short."""
    folder = tmp_path_factory.mktemp("cut")
    write_model(folder / "model.onnx")
    write_pictures(folder / "pictures", 7)
    path = folder / "pictures" / f"{CUT_ID:06d}.png"
    path.write_bytes(path.read_bytes()[:-400])
    return folder


def failures_of(out: Path) -> dict[str, list[dict[str, Any]]]:
    content = json.loads((out / "failed.json").read_text())
    return {name: content[name] for name in ("failed", "degraded")}


def test_a_run_skips_a_picture_that_is_cut_short(root: Path, tmp_path: Path) -> None:
    assert run_dataset(make_request(root, tmp_path), progress=False).exit_code == EXIT_SOME_FAILED
    found = failures_of(tmp_path)
    assert [one["image_id"] for one in found["failed"]] == [CUT_ID]
    assert found["degraded"] == []


def test_a_run_accepts_it_and_marks_it(root: Path, tmp_path: Path, capfd: Any) -> None:
    for out, workers in (("a", 1), ("b", 2)):
        request = make_request(root, tmp_path / out, workers=workers, truncated="accept")
        assert run_dataset(request, progress=False).exit_code == EXIT_DONE
        found = failures_of(tmp_path / out)
        assert found["failed"] == []
        assert [one["image_id"] for one in found["degraded"]] == [CUT_ID]
        assert "cut short" in found["degraded"][0]["reason"]
        manifest = read_manifest(tmp_path / out)
        assert manifest is not None
        assert manifest.settings.truncated == "accept"
    assert result_bytes(tmp_path / "a") == result_bytes(tmp_path / "b")
    warned = capfd.readouterr().err
    assert f"{CUT_ID:06d}.png" in warned
    assert "used as far as it goes" in warned


def test_a_run_stops_at_it_and_goes_on_without_it(root: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=rf"{CUT_ID:06d}\.png: .*cut short.*--truncated skip goes on"):
        run_dataset(make_request(root, tmp_path, truncated="stop"), progress=False)
    assert run_dataset(make_request(root, tmp_path), progress=False).failed == 1
    with pytest.raises(UsageError, match="truncated: skip there, accept now"):
        run_dataset(make_request(root, tmp_path, truncated="accept"), progress=False)


def test_pictures_beyond_the_limit_fail_and_others_do_not(root: Path, tmp_path: Path) -> None:
    summary = run_dataset(make_request(root, tmp_path, max_pixels=2350), progress=False)
    reasons = {one["image_id"]: one["reason"] for one in failures_of(tmp_path)["failed"]}
    assert summary.failed == len(reasons) > 3
    beyond = [reason for image_id, reason in reasons.items() if image_id != CUT_ID]
    assert all("the limit is 2350" in reason and "--max-pixels" in reason for reason in beyond)
    for wrong in (0, (1 << 30) + 1):
        with pytest.raises(UsageError, match="--max-pixels"):
            run_dataset(make_request(root, tmp_path / "x", max_pixels=wrong), progress=False)


def test_the_option_and_the_decoder_have_one_limit() -> None:
    assert options.MAX_PIXELS == pictures.MAX_PIXELS
