"""Videos as datasets: which frame a number is, in whatever order frames are asked for, and what a file that is none says."""

from __future__ import annotations

import random
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cv2
import numpy as np
import pytest
from run_support import make_request, make_spec, write_model

from roiline.core.errors import DataError
from roiline.infer.datasets import load_dataset
from roiline.infer.pictures import read_bytes, read_picture
from roiline.infer.request import DataSource
from roiline.infer.run import run_dataset
from roiline.infer.video import frame_path, is_video_file, read_rate

FRAMES, HEIGHT, WIDTH, CELL = 40, 96, 128, 16
COLUMNS = WIDTH // CELL


def write_video(path: Path, frames: int = FRAMES, *, codec: str = "MJPG", rate: float = 12.5) -> Path:
    """Frames with one white square, in the cell of a grid that is their number."""
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = cv2.VideoWriter(str(path), cv2.CAP_FFMPEG, cv2.VideoWriter_fourcc(*codec), rate, (WIDTH, HEIGHT))
    assert writer.isOpened()
    for number in range(frames):
        frame = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
        top, left = CELL * (number // COLUMNS), CELL * (number % COLUMNS)
        frame[top : top + CELL, left : left + CELL] = 255
        writer.write(frame)
    writer.release()
    return path


def number_of(frame: np.ndarray) -> int:
    cells = frame.reshape(HEIGHT // CELL, CELL, COLUMNS, CELL * 3).mean(axis=(1, 3))
    return int(cells.argmax())


@pytest.mark.parametrize(("name", "codec"), [("clip.avi", "MJPG"), ("clip.mp4", "mp4v")])
def test_frames_are_the_pictures_of_a_video(tmp_path: Path, name: str, codec: str) -> None:
    dataset = load_dataset(write_video(tmp_path / name, codec=codec))
    assert (dataset.name, dataset.kind, dataset.total, dataset.problems) == ("clip", "video", FRAMES, ())
    assert [entry.image_id for entry in dataset.entries] == list(range(FRAMES))
    assert {(entry.height, entry.width) for entry in dataset.entries} == {(HEIGHT, WIDTH)}
    assert [number_of(read_picture(entry.path)) for entry in dataset.entries] == list(range(FRAMES))
    assert read_rate(tmp_path / name) == pytest.approx(12.5)


def test_threads_get_the_frames_that_they_ask_for_in_any_order(tmp_path: Path) -> None:
    video = write_video(tmp_path / "clip.avi")
    numbers = [*range(FRAMES), *random.Random(3).sample(range(FRAMES), FRAMES), 0, FRAMES - 1, 0]
    with ThreadPoolExecutor(6) as threads:
        found = list(threads.map(lambda number: number_of(read_picture(frame_path(video, number))), numbers))
    assert found == numbers


def test_a_range_of_frames_has_the_numbers_of_the_video(tmp_path: Path) -> None:
    video = write_video(tmp_path / "clip.avi")
    part = load_dataset(video, id_range=(5, 9))
    assert [entry.image_id for entry in part.entries] == [5, 6, 7, 8]
    assert part.fingerprint == load_dataset(video).fingerprint


def test_what_is_no_video_or_no_frame_is_said(tmp_path: Path) -> None:
    broken = tmp_path / "broken.mp4"
    broken.write_bytes(write_video(tmp_path / "clip.avi").read_bytes()[:400])
    with pytest.raises(DataError, match=r"broken\.mp4: (cannot be opened as a video|the video has no frame)"):
        load_dataset(broken)
    with pytest.raises(DataError, match="has 40 frames that can be decoded; frame 40 is asked for"):
        read_bytes(frame_path(tmp_path / "clip.avi", FRAMES))
    with pytest.raises(DataError, match="expected the number of a frame, got 'x'"):
        read_bytes(tmp_path / "clip.avi" / "x.frame")
    with pytest.raises(DataError, match="cannot be read"):
        read_bytes(tmp_path / "absent.avi" / "000000.frame")


def test_a_video_that_is_cut_short_gives_what_is_there(tmp_path: Path) -> None:
    whole = write_video(tmp_path / "clip.avi").read_bytes()
    cut = tmp_path / "cut.avi"
    cut.write_bytes(whole[: len(whole) * 2 // 3])
    dataset = load_dataset(cut)
    assert 10 < dataset.total < FRAMES
    assert f"header states another number of frames: {FRAMES}, {dataset.total} decode" in dataset.problems[0]
    assert number_of(read_picture(dataset.entries[-1].path)) == dataset.total - 1


def test_videos_are_known_by_name_or_content(tmp_path: Path) -> None:
    nameless = write_video(tmp_path / "clip.avi").rename(tmp_path / "clip")
    assert is_video_file(nameless)
    assert load_dataset(nameless).kind == "video"
    assert not is_video_file(Path(__file__))
    assert not is_video_file(tmp_path / "absent")


@pytest.mark.parametrize("workers", [1, 2])
def test_a_run_over_a_video_finds_the_same_as_one_over_its_frames(tmp_path: Path, workers: int) -> None:
    video = write_video(tmp_path / "clip.avi", 12)
    for entry in load_dataset(video).entries:
        picture = read_picture(entry.path)
        (tmp_path / "frames").mkdir(exist_ok=True)
        cv2.imwrite(str(tmp_path / "frames" / f"{entry.image_id:06d}.png"), picture)
    write_model(tmp_path / "model.onnx", make_spec())
    results = []
    for name, source in (("video", video), ("folder", tmp_path / "frames")):
        out = tmp_path / name
        request = make_request(tmp_path, out, workers=workers, data=(DataSource(str(source)),), formats=("detectron",))
        summary = run_dataset(request, progress=False)
        assert (summary.exit_code, summary.images) == (0, 12)
        results.append((out / "detections.pkl").read_bytes())
    assert results[0] == results[1]


def test_damage_inside_is_told_once_and_nothing_reaches_the_terminal(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    random = np.random.default_rng(2)
    path = tmp_path / "noise.mp4"
    writer = cv2.VideoWriter(str(path), cv2.CAP_FFMPEG, cv2.VideoWriter_fourcc(*"mp4v"), 10, (WIDTH, HEIGHT))
    for _ in range(20):
        writer.write(random.integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8))
    writer.release()
    content = bytearray(path.read_bytes())
    for place in range(2000, len(content) * 3 // 4, 997):
        content[place] ^= 255
    path.write_bytes(content)
    capfd.readouterr()
    dataset = load_dataset(path)
    assert any("damaged inside; the decoder says: " in note for note in dataset.problems), dataset.problems
    assert capfd.readouterr() == ("", "")


def test_a_decoder_that_crashes_is_an_error_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    video = write_video(tmp_path / "clip.avi", 2)
    crashing = tmp_path / "crashing"
    crashing.write_text("#!/bin/sh\nkill -SEGV $$\n")
    crashing.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(crashing))
    with pytest.raises(DataError, match=r"clip\.avi: the decoder crashed over it \(signal 11\)"):
        load_dataset(video)


def test_a_frame_that_cannot_be_decoded_fails_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    video = write_video(tmp_path / "clip.avi", 8)

    class Capture:
        """A capture whose third frame is there and cannot be had."""

        def __init__(self) -> None:
            self._inner = cv2.VideoCapture(str(video), cv2.CAP_FFMPEG)
            self._number = -1

        def grab(self) -> bool:
            self._number += 1
            return self._inner.grab()

        def retrieve(self) -> tuple[bool, np.ndarray | None]:
            return (False, None) if self._number == 2 else self._inner.retrieve()

        def release(self) -> None:
            self._inner.release()

    monkeypatch.setattr("roiline.infer.video._open_capture", lambda _path: Capture())
    for number in (5, 2, 3, 2, 7, 0):
        path = frame_path(video, number)
        if number == 2:
            with pytest.raises(DataError, match="frame 2 cannot be decoded"):
                read_bytes(path)
        else:
            assert number_of(read_picture(path)) == number
