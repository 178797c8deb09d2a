"""A worker's reading alone: order, bounds, careful shards and the end, with reader threads and without."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from roiline.core.errors import DataError
from roiline.core.spec import ImageRules
from roiline.core.timing import StageClock
from roiline.engines.protocol import Device
from roiline.infer.messages import ImageWork, Setup, ShardWork, Started
from roiline.infer.pictures import MAX_PIXELS, prefetch, read_bytes
from roiline.infer.preparation import prepare_picture
from roiline.infer.reading import ANNOUNCED, Item, Reading
from roiline.infer.request import RunOverrides
from roiline.infer.shards import Failure

RULES = ImageRules("BGR", (100.0, 110.0, 120.0), (1.0, 1.0, 1.0), 32, 64, "detectron", 1, "apply")
AHEAD = 3


class Line:
    """Stands for the line to the parent."""

    def __init__(self) -> None:
        self.said: list[int] = []
        self.flushed = threading.Event()

    def announce(self, reports: list[Started]) -> None:
        self.said += [report.position for report in reports]

    def flush(self) -> None:
        assert not self.flushed.is_set()
        self.flushed.set()

    def guard(self, name: str, target: Any) -> threading.Thread:
        thread = threading.Thread(target=target, name=name, daemon=True)
        thread.start()
        return thread


class Predictor:
    """Stands for a model that prepares pictures once `ready` is set."""

    needs_pictures = True

    def __init__(self, ready: threading.Event | None = None) -> None:
        self._ready = ready

    def prepare(self, picture: Any, rules: ImageRules) -> Any:
        assert self._ready is None or self._ready.wait(60)
        return prepare_picture(picture, rules)


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Forty pictures, each of a gray of its own, and of which number 5 is no picture."""
    folder = tmp_path_factory.mktemp("pictures")
    for number in range(40):
        cv2.imwrite(str(folder / f"{number}.png"), np.full((20, 30, 3), number, np.uint8))
    (folder / "5.png").write_bytes(b"none")
    return [str(folder / f"{number}.png") for number in range(40)]


@pytest.fixture(params=[0, 1, 4])
def readers(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def open_reading(readers: int, *, batch_size: int = 1, batch_mode: Any = "shape") -> tuple[Reading, Line]:
    setup = Setup(
        (),
        "",
        Path("model.onnx"),
        "proposals",
        Device(),
        "fake",
        RunOverrides(),
        "apply",
        batch_size,
        batch_mode,
        readers,
        AHEAD,
        max_pixels=MAX_PIXELS,
    )
    line = Line()
    return Reading(setup, line, lambda _lane: StageClock()), line  # type: ignore[arg-type]


def make_shard(key: int, paths: list[str], positions: range, **options: Any) -> ShardWork:
    images = tuple(ImageWork(position, position, paths[position], None) for position in positions)
    return ShardWork(key, key, Path("x"), "", images, **options)


def take_all(reading: Reading) -> Iterator[tuple[Item, Any]]:
    while (item := reading.take_next()) is not None:
        yield item, reading.take_picture(item)


def test_pictures_come_in_the_order_of_the_shards(paths: list[str], readers: int) -> None:
    reading, line = open_reading(readers)
    reading.add(make_shard(0, paths, range(20, 40)))
    reading.add(make_shard(1, paths, range(20), skip={7: "killed its worker"}))
    reading.start(Predictor(), RULES)  # type: ignore[arg-type]
    taken = []
    for item, picture in take_all(reading):
        taken.append(item.image.position)
        if item.image.position in (5, 7):
            assert isinstance(picture, Failure)
        else:
            assert (picture.pixels == item.image.position).all()
            assert picture.prepared.pixels.shape == (3, 32, 48)
            assert picture.prepare_s > 0
        assert item.picture is None, "the picture is whoever took it's"
        if len(taken) == 40:
            assert reading.none_to_come
            reading.stop()
        else:
            assert not reading.none_to_come
    reading.close()
    assert taken == [*range(20, 40), *range(20)]
    assert line.said == [position for position in taken if position != 7]


def test_no_more_is_on_its_way_than_may_be(paths: list[str], readers: int) -> None:
    reading, line = open_reading(readers)
    reading.add(make_shard(0, paths, range(40)))
    reading.start(Predictor(), RULES)  # type: ignore[arg-type]
    first = reading.take_next()
    assert first is not None
    assert line.said == list(range(ANNOUNCED))
    waiting = reading._on_their_way
    assert [item.image.position for item in waiting] == [1, 2]
    limit = time.monotonic() + 60
    while readers and not all(item.picture is not None for item in waiting):
        assert time.monotonic() < limit, "the readers do not read ahead"
    assert readers or all(item.picture is None for item in waiting)
    reading.stop()
    assert sum(1 for _ in take_all(reading)) == 39, "a shard that is being listed is listed to its end"
    reading.close()


def test_shards_that_are_not_listed_yet_are_dropped_by_a_stop(paths: list[str], readers: int) -> None:
    reading, _ = open_reading(readers)
    for key in range(3):
        reading.add(make_shard(key, paths, range(10)))
    reading.start(Predictor(), RULES)  # type: ignore[arg-type]
    assert reading.take_next() is not None
    reading.stop()
    assert not reading.none_to_come
    assert sum(1 for _ in take_all(reading)) == 9
    assert reading.none_to_come
    reading.close()


@pytest.mark.parametrize(("batch_mode", "ahead"), [("shape", 1), ("padded", 2)])
def test_a_careful_shard_is_read_batch_by_batch(paths: list[str], readers: int, batch_mode: str, ahead: int) -> None:
    reading, line = open_reading(readers, batch_size=2, batch_mode=batch_mode)
    reading.add(make_shard(0, paths, range(10, 15), careful=True))
    reading.start(Predictor(), RULES)  # type: ignore[arg-type]
    closing = []
    for item, _ in take_all(reading):
        place = item.image.position - 10
        assert len(line.said) == min(5, (place // ahead + 1) * ahead), "nothing of the next batch is touched"
        if item.closes:
            closing.append(place)
        if place == 4:
            reading.stop()
    reading.close()
    assert closing == ([0, 1, 2, 3, 4] if batch_mode == "shape" else [1, 3, 4])


def test_reports_do_not_wait_for_a_slow_picture(paths: list[str]) -> None:
    reading, line = open_reading(1)
    slow = Predictor(ready=line.flushed)
    reading.add(make_shard(0, paths, range(1)))
    reading.stop()
    reading._stopping.clear()  # the end is known, the shard is worked on
    reading.start(slow, RULES)  # type: ignore[arg-type]
    assert len(list(take_all(reading))) == 1, "the picture was there only after reports had gone"
    reading.close()


def test_files_that_are_not_there_are_no_matter_for_fetching(tmp_path: Path) -> None:
    prefetch(tmp_path / "absent.png")
    prefetch(tmp_path / "clip.avi" / "000001.frame")
    prefetch("zero\0byte.png")


def test_a_pipe_is_not_opened_by_fetching_or_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # a socket's path may not be long
    os.mkfifo("pipe.png")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("s.png")
        monkeypatch.setattr(os, "open", lambda *_: pytest.fail("it was opened"))
        for name in ("pipe.png", "s.png"):
            prefetch(tmp_path / name)
            with pytest.raises(DataError, match="no regular file"):
                read_bytes(tmp_path / name)


def test_what_is_not_to_be_touched_is_not_fetched(paths: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[str] = []
    monkeypatch.setattr("roiline.infer.reading.prefetch", fetched.append)
    reading, _ = open_reading(0)
    reading.add(make_shard(0, paths, range(10, 14), skip={12: "hangs"}))
    reading.start(Predictor(), RULES)  # type: ignore[arg-type]
    for item, _ in take_all(reading):
        if item.image.position == 13:
            reading.stop()
    reading.close()
    assert fetched == [paths[10], paths[11], paths[13]]
