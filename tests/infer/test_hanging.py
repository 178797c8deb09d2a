"""Workers that do not answer: ended by the parent, as a death over the image in their hands."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from click.testing import CliRunner
from run_support import make_request, make_spec, result_bytes, write_model, write_pictures

from roiline.cli import main
from roiline.core.errors import UsageError, WorkerError
from roiline.infer.messages import Done, Finished, ImageWork, Left, Order, Ready, Report, ShardWork, Started, Stop
from roiline.infer.pool import Pool, _Watch
from roiline.infer.request import Slot
from roiline.infer.run import run_dataset, worker_setup

IMAGES = 23


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("root")
    write_model(folder / "model.onnx")
    write_pictures(folder / "pictures", IMAGES)
    return folder


@pytest.fixture(scope="module")
def reference(root: Path) -> dict[str, bytes]:
    run_dataset(make_request(root, root / "reference"), progress=False)
    return result_bytes(root / "reference")


@pytest.mark.parametrize("predictor", ["open_hangs_on_image", "open_stops_on_image"])
def test_an_image_that_hangs_its_worker_is_set_aside_and_the_rest_finishes(
    root: Path, tmp_path: Path, reference: dict[str, bytes], predictor: str
) -> None:
    request = make_request(root, tmp_path, workers=2, predictor=f"run_support:{predictor}", image_timeout_s=1.0)
    summary = run_dataset(request, progress=False)
    assert (summary.exit_code, summary.failed) == (4, 1)
    (failed,) = json.loads((tmp_path / "failed.json").read_text())["failed"]
    assert failed["image_id"] == 22
    assert failed["reason"] == "set aside: its worker died 2 times over it (no answer for more than 1 s)"
    expected = [row for row in json.loads(reference["bbox_results.json"]) if row["image_id"] != 22]
    assert json.loads((tmp_path / "bbox_results.json").read_text()) == expected
    notes = json.loads((tmp_path / "run.json").read_text())["notes"]
    assert [note for note in notes if "no answer" in note and "set aside" not in note] == [
        note for note in notes if note.startswith("worker") and note.endswith("no answer for more than 1 s")
    ]


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf"), 1e9])
def test_a_time_limit_that_cannot_be_meant_is_refused(root: Path, tmp_path: Path, seconds: float) -> None:
    with pytest.raises(UsageError, match="--image-timeout: expected seconds from 0"):
        run_dataset(make_request(root, tmp_path / "out", image_timeout_s=seconds), progress=False)
    assert not (tmp_path / "out").exists()


def test_the_time_limit_is_an_option_of_the_command(root: Path, tmp_path: Path) -> None:
    data = root / "pictures" / "data.json"
    command = ["detect", str(root / "model.onnx"), str(data), "-o", str(tmp_path / "out"), "--engine", "fake"]
    result = CliRunner().invoke(main, [*command, "--image-timeout", "-3"])
    assert result.exit_code == 2
    assert "--image-timeout: expected seconds from 0 (none) to 1e+06, got -3.0" in result.output


def test_time_counts_only_while_workers_are_watched() -> None:
    moments = iter([100.0, 100.5, 100.6, 5000.0, 5000.25])
    watch = _Watch(lambda: next(moments))
    assert [watch.look() for _ in range(4)] == pytest.approx([0.5, 0.1, 2.0, 0.25])


# -- a pool over workers that are threads ------------------------------------------------------------------------------------------


@dataclass
class ThreadHandle:
    """Is a worker that is a function in a thread, over a pipe; `ends` says whether the system can end it."""

    play: Callable[[Connection], None]
    name: str = "a thread"
    ends: bool = True
    killed: bool = False
    sent: list[Order] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.waitable, self._there = Pipe()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        self.play(self._there)

    def send(self, order: Order) -> None:
        self.sent.append(order)
        self.waitable.send(order)

    def has_report(self) -> bool:
        return self.waitable.poll()

    def receive(self) -> Report:
        return self.waitable.recv()

    def kill(self) -> None:
        self.killed = True
        if self.ends:
            self._there.close()

    def join(self, timeout_s: float) -> str | None:
        return "ended" if self.ends else None

    def close(self) -> None:
        self.waitable.close()


def never_opens(pipe: Connection) -> None:
    pipe.recv()


def hangs(pipe: Connection) -> None:
    """Opens, begins an image, and says nothing more."""
    pipe.recv()
    pipe.send(Ready({}, {}))
    work = pipe.recv()
    pipe.send(Started(work.key, work.images[0].position))
    threading.Event().wait()


def works(pipe: Connection) -> None:
    """Does everything that it is told."""
    pipe.recv()
    pipe.send(Ready({}, {}))
    while not isinstance(order := pipe.recv(), Stop):
        for image in order.images:
            pipe.send(Started(order.key, image.position))
            pipe.send(Finished(order.key, image.position, None))
        pipe.send(Done(order.key, {}))
    pipe.send(Left({}))


class Listener:
    def __init__(self) -> None:
        self.done: list[int] = []

    def image_finished(self, report: Finished) -> None:
        pass

    def shard_done(self, key: int) -> None:
        self.done.append(key)

    def tick(self) -> None:
        pass


def make_pool(
    root: Path, plays: list[Callable[[Connection], None]], **options: bool
) -> tuple[Pool, list[ThreadHandle]]:
    request = make_request(root, root / "never-made", image_timeout_s=0.3)
    handles: list[ThreadHandle] = []

    def start(worker: int, slot: Slot) -> ThreadHandle:
        handles.append(ThreadHandle(plays[len(handles)], **options))
        return handles[-1]

    return Pool(request.slots, worker_setup(request, make_spec()), image_timeout_s=0.3, start=start), handles


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roiline.infer.pool.OPENING_LIMIT_S", 0.5)
    monkeypatch.setattr("roiline.infer.pool._POLL_S", 0.05)


def test_a_model_that_never_opens_ends_the_run(root: Path, quick: None) -> None:
    pool, handles = make_pool(root, [never_opens])
    with pytest.raises(WorkerError, match=r"worker 0 \(cpu 0\) did not open it: no answer for more than 0.5 s"), pool:
        pool.open()
    assert handles[0].killed


@pytest.mark.parametrize("ends", [True, False])
def test_a_worker_that_hangs_is_replaced_even_if_the_system_cannot_end_it(root: Path, quick: None, ends: bool) -> None:
    pool, handles = make_pool(root, [hangs, works], ends=ends)
    image = ImageWork(0, 1, str(root / "picture.png"), None)
    work = {0: ShardWork(0, 0, root / "000000.shard", "a" * 64, (image,))}
    listener = Listener()
    with pool:
        pool.open()
        assert pool.run(work, listener) == "done"
    assert listener.done == [0]
    assert (handles[0].killed, len(handles)) == (True, 2)
    (again,) = [order for order in handles[1].sent if isinstance(order, ShardWork)]
    assert again.careful
    assert any("a thread cannot be ended" in note for note in pool.notes) is not ends
