from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from run_support import GATE, make_request, make_spec, result_bytes, write_model, write_pictures
from shared_data import shared_path

from roiline.core.errors import DataError, ModelError, UsageError, WorkerError
from roiline.infer.pool import Pool
from roiline.infer.request import DataSource, RunOverrides, spec_with_overrides
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
    """The result files of a plain run with one worker."""
    summary = run_dataset(make_request(root, root / "reference"), progress=False)
    assert (summary.exit_code, summary.images, summary.failed) == (0, IMAGES, 0)
    return result_bytes(root / "reference")


def test_results_hold_every_image_in_ascending_order(root: Path, reference: dict[str, bytes]) -> None:
    boxes = pickle.loads(reference["detections.pkl"])
    assert list(boxes) == ["all_boxes", "all_segms", "all_keyps", "cfg"]
    assert len(boxes["all_boxes"]) == 4
    assert all(len(images) == IMAGES for images in boxes["all_boxes"])
    assert boxes["all_boxes"][0] == [[]] * IMAGES
    rows = json.loads(reference["bbox_results.json"])
    by_class = [[row["image_id"] for row in rows if row["category_id"] == c] for c in (10, 20, 30)]
    assert all(ids == sorted(ids) for ids in by_class)
    assert (
        sum(map(len, by_class)) == len(rows) == sum(len(cell) for images in boxes["all_boxes"][1:] for cell in images)
    )
    assert json.loads(reference["failed.json"]) == {"format_version": 1, "failed": [], "degraded": []}


@pytest.mark.parametrize(("workers", "batch_size"), [(2, 1), (1, 4), (3, 64)])
def test_workers_and_batches_change_no_byte(
    root: Path, tmp_path: Path, reference: dict[str, bytes], workers: int, batch_size: int
) -> None:
    run_dataset(make_request(root, tmp_path, workers=workers, batch_size=batch_size), progress=False)
    assert result_bytes(tmp_path) == reference


def test_padded_batches_are_the_same_on_any_number_of_workers(root: Path, tmp_path: Path) -> None:
    for workers in (1, 2):
        request = make_request(root, tmp_path / str(workers), workers=workers, batch_size=3, batch_mode="padded")
        run_dataset(request, progress=False)
    assert result_bytes(tmp_path / "1") == result_bytes(tmp_path / "2")


def test_a_finished_run_started_again_touches_nothing(root: Path, reference: dict[str, bytes]) -> None:
    out = root / "reference"
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file() and path.name != ".lock"}
    # a predictor that refuses would be an error, if an engine were opened
    request = replace(make_request(root, out, workers=2, batch_size=4), predictor="run_support:open_refuses")
    summary = run_dataset(request, progress=False)
    assert summary.exit_code == 0
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_a_format_may_be_added_later(root: Path, tmp_path: Path, reference: dict[str, bytes]) -> None:
    run_dataset(make_request(root, tmp_path, formats=("coco",)), progress=False)
    assert not (tmp_path / "detections.pkl").exists()
    run_dataset(make_request(root, tmp_path), progress=False)
    assert result_bytes(tmp_path) == reference


def test_torn_altered_and_missing_shards_are_done_again(
    root: Path, tmp_path: Path, reference: dict[str, bytes], caplog: pytest.LogCaptureFixture
) -> None:
    run_dataset(make_request(root, tmp_path), progress=False)
    shards = sorted((tmp_path / "shards").glob("*.shard"))
    shards[0].write_bytes(shards[0].read_bytes()[:-40])
    content = bytearray(shards[1].read_bytes())
    content[-60] ^= 1
    shards[1].write_bytes(content)
    shards[2].unlink()
    shards[3].write_bytes(shards[4].read_bytes())
    for name in reference:
        (tmp_path / name).unlink()
    assert run_dataset(make_request(root, tmp_path, workers=2), progress=False).exit_code == 0
    assert result_bytes(tmp_path) == reference
    assert sorted(path.name for path in (tmp_path / "shards").glob("*.bad")) == [
        "000000.shard.bad",
        "000001.shard.bad",
        "000003.shard.bad",
    ]
    assert "damaged" in caplog.text


def test_another_identity_is_refused_and_fresh_starts_over(root: Path, tmp_path: Path) -> None:
    run_dataset(make_request(root, tmp_path), progress=False)
    other = replace(make_request(root, tmp_path), overrides=RunOverrides(scale=40))
    with pytest.raises(UsageError, match=r"overrides\.scale: None there, 40 now") as caught:
        run_dataset(other, progress=False)
    assert "exif" not in str(caught.value)
    foreign = tmp_path / "notes.txt"
    foreign.write_text("mine")
    before = result_bytes(tmp_path)
    assert run_dataset(replace(other, fresh=True), progress=False).exit_code == 0
    assert result_bytes(tmp_path) != before
    assert foreign.read_text() == "mine"
    assert json.loads((tmp_path / "run.json").read_text())["settings"]["overrides"]["scale"] == 40


def test_a_second_run_in_the_same_folder_is_refused(root: Path, tmp_path: Path) -> None:
    with (tmp_path / ".lock").open("w") as stream:
        stream.write("4711\n")
        stream.flush()
        fcntl.flock(stream, fcntl.LOCK_EX)
        with pytest.raises(UsageError, match=r"another run \(process 4711\) is writing here"):
            run_dataset(make_request(root, tmp_path), progress=False)


def test_broken_pictures_are_recorded_and_the_run_goes_on(root: Path, tmp_path: Path) -> None:
    write_model(tmp_path / "model.onnx")
    write_pictures(tmp_path / "pictures", 9)
    (tmp_path / "pictures" / "000010.png").write_bytes(b"")
    (tmp_path / "pictures" / "000016.png").unlink()
    for workers, batch_size in ((1, 1), (2, 4)):
        out = tmp_path / f"out{workers}"
        summary = run_dataset(make_request(tmp_path, out, workers=workers, batch_size=batch_size), progress=False)
        assert (summary.exit_code, summary.failed) == (4, 2)
        failed = json.loads((out / "failed.json").read_text())["failed"]
        assert [row["image_id"] for row in failed] == [10, 16]
        assert "empty" in failed[0]["reason"]
        boxes = pickle.loads((out / "detections.pkl").read_bytes())["all_boxes"]
        assert [cell.shape for images in boxes[1:] for cell in (images[1], images[3])] == [(0, 5)] * 6
        assert run_dataset(make_request(tmp_path, out), progress=False).exit_code == 4
    assert result_bytes(tmp_path / "out1") == result_bytes(tmp_path / "out2")


def test_all_images_missing_is_bad_input(root: Path, tmp_path: Path) -> None:
    request = make_request(root, tmp_path / "out")
    (tmp_path / "empty").mkdir()
    request = replace(request, data=(replace(request.data[0], images=tmp_path / "empty"),))
    with pytest.raises(DataError, match="empty"):
        run_dataset(request, progress=False)


def test_a_model_that_does_not_open_is_said_before_the_dataset_is_read(root: Path, tmp_path: Path) -> None:
    request = make_request(root, tmp_path, data=(DataSource(str(tmp_path / "absent.json")),))
    with pytest.raises(ModelError, match="refused for a test"):
        run_dataset(replace(request, predictor="run_support:open_refuses"), progress=False)
    with pytest.raises(DataError, match=r"absent\.json"):
        run_dataset(request, progress=False)


def test_a_task_that_the_model_does_not_know_is_refused(root: Path, tmp_path: Path) -> None:
    model = write_model(tmp_path / "rpn.onnx", make_spec(tasks=("proposals",)))
    with pytest.raises(ModelError, match="makes proposals, not detections"):
        run_dataset(make_request(root, tmp_path / "out", model=model), progress=False)


def test_a_worker_that_dies_at_start_is_tried_three_times(root: Path, tmp_path: Path) -> None:
    model = write_model(tmp_path / "model.onnx")
    request = make_request(root, tmp_path / "out", model=model, predictor="run_support:open_dies_at_start")
    with pytest.raises(WorkerError, match="SIGKILL"):
        run_dataset(request, progress=False)
    assert (tmp_path / "starts").read_text() == "xxx"


@pytest.mark.parametrize("workers", [1, 2])
def test_a_killed_worker_changes_no_byte(root: Path, tmp_path: Path, reference: dict[str, bytes], workers: int) -> None:
    model = tmp_path / "model.onnx"
    model.write_bytes((root / "model.onnx").read_bytes())
    request = make_request(root, tmp_path / "out", workers=workers, model=model, batch_size=2)
    summary = run_dataset(replace(request, predictor="run_support:open_killed_once"), progress=False)
    assert (model.with_name("killed-once")).exists()
    assert (summary.exit_code, summary.failed) == (0, 0)
    assert result_bytes(tmp_path / "out") == reference
    assert any("SIGKILL" in note for note in json.loads((tmp_path / "out" / "run.json").read_text())["notes"])


@pytest.mark.parametrize(
    ("predictor", "reason"), [("open_killed_by_image", "SIGKILL"), ("open_fails_on_image", "out of memory")]
)
def test_an_image_that_ends_its_worker_twice_is_set_aside_alone(
    root: Path,
    tmp_path: Path,
    reference: dict[str, bytes],
    predictor: str,
    reason: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("DEBUG", "roiline")
    request = make_request(root, tmp_path, workers=2, batch_size=4, predictor=f"run_support:{predictor}")
    summary = run_dataset(request, progress=False)
    assert (summary.exit_code, summary.failed) == (4, 1)
    (failed,) = json.loads((tmp_path / "failed.json").read_text())["failed"]
    assert failed["image_id"] == 22
    assert "died 2 times over it" in failed["reason"]
    assert reason in failed["reason"]
    expected = [row for row in json.loads(reference["bbox_results.json"]) if row["image_id"] != 22]
    assert json.loads((tmp_path / "bbox_results.json").read_text()) == expected
    levels = {(r.levelname, "Traceback" in r.getMessage()) for r in caplog.records if reason in r.getMessage()}
    assert ("ERROR", False) in levels  # the reason is for people, the trace for debugging
    assert {level for level, trace in levels if trace} <= {"DEBUG"}


@pytest.mark.parametrize(("workers", "batch_size", "batch_mode"), [(1, 1, "exact"), (2, 4, "exact"), (1, 3, "padded")])
def test_two_batches_in_flight_change_no_byte(
    root: Path, tmp_path: Path, workers: int, batch_size: int, batch_mode: str
) -> None:
    model = tmp_path / "model.onnx"
    model.write_bytes((root / "model.onnx").read_bytes())
    request = make_request(root, tmp_path / "plain", model=model, batch_size=batch_size, batch_mode=batch_mode)
    run_dataset(request, progress=False)
    pipelined = replace(make_request(root, tmp_path / "out", workers=workers), model=model, batch_size=batch_size)
    pipelined = replace(pipelined, batch_mode=batch_mode, predictor="run_support:open_pipelined")
    assert run_dataset(pipelined, progress=False).exit_code == 0
    assert model.with_name("two-in-flight").exists()
    assert result_bytes(tmp_path / "out") == result_bytes(tmp_path / "plain")
    stages = json.loads((tmp_path / "out" / "timing.json").read_text())["stages"]
    assert stages["submit"]["count"] == stages["infer"]["count"] == stages["stack"]["count"]


def test_an_image_that_kills_among_two_batches_in_flight_is_set_aside_alone(root: Path, tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    model.write_bytes((root / "model.onnx").read_bytes())
    model.with_name("kill").touch()
    request = make_request(root, tmp_path / "out", model=model, batch_size=2, predictor="run_support:open_pipelined")
    assert run_dataset(request, progress=False).failed == 1
    (failed,) = json.loads((tmp_path / "out" / "failed.json").read_text())["failed"]
    assert failed["image_id"] == 22


def test_workers_that_always_die_end_the_run(root: Path, tmp_path: Path) -> None:
    request = make_request(root, tmp_path, predictor="run_support:open_dies_always")
    with pytest.raises(WorkerError, match="no worker could go on: killed by SIGKILL"):
        run_dataset(request, progress=False)


@pytest.mark.parametrize(("cores", "workers", "readers"), [(1, 1, 0), (8, 8, 0), (2, 4, 0), (8, 4, 2), (2, 1, 2)])
def test_a_reader_beside_the_model_needs_a_core(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: int, workers: int, readers: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: set(range(cores)))
    setup = worker_setup(make_request(root, tmp_path, workers=workers), make_spec())
    assert (setup.readers, setup.read_ahead) == (readers, 2 + readers)


def test_a_worker_without_readers_gives_the_same(root: Path, tmp_path: Path, reference: dict[str, bytes]) -> None:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert run_dataset(make_request(root, tmp_path / "out"), progress=False).exit_code == 0
    finally:
        os.sched_setaffinity(0, before)
    assert result_bytes(tmp_path / "out") == reference


def test_timing_covers_every_stage(root: Path, reference: dict[str, bytes]) -> None:
    timing = json.loads((root / "reference" / "timing.json").read_text())
    stages = timing["stages"]
    assert {"read", "decode", "prepare", "infer", "post", "write", "wait_picture"} <= set(stages)
    for stage in ("read", "decode", "prepare", "infer", "post"):
        assert stages[stage]["count"] == IMAGES
    assert set(stages["infer"]) == {"count", "total_ms", "mean_ms", "p50_ms", "p90_ms", "p99_ms", "max_ms"}
    assert timing["images"] == IMAGES
    assert timing["images_per_s"] == pytest.approx(IMAGES / timing["wall_s"])
    assert timing["warm_up"]["infer"]["count"] == 1
    (worker,) = timing["workers"]
    assert "main" in worker["lanes"]
    assert worker["lanes"]["main"]["infer"]["count"] == IMAGES


def test_familiar_lines_are_in_the_log(root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "roiline")
    run_dataset(make_request(root, tmp_path, id_range=(2, 14)), progress=False)
    lines = [record.getMessage() for record in caplog.records if "im_detect" in record.getMessage()]
    assert len(lines) == 2
    assert lines[0].startswith("im_detect: range [3, 14] of 23: 3/14 ")
    assert lines[1].startswith("im_detect: range [3, 14] of 23: 13/14 ")


def test_several_datasets_have_a_folder_each(root: Path, tmp_path: Path, reference: dict[str, bytes]) -> None:
    write_pictures(tmp_path / "more", 5)
    (tmp_path / "more" / "data.json").rename(tmp_path / "more" / "other.json")
    request = make_request(root, tmp_path / "out", workers=2)
    more = DataSource(str(tmp_path / "more" / "other.json"), images=tmp_path / "more")
    summary = run_dataset(replace(request, data=(*request.data, more)), progress=False)
    assert (summary.exit_code, summary.images) == (0, IMAGES + 5)
    assert result_bytes(tmp_path / "out" / "data") == reference
    assert len(pickle.loads((tmp_path / "out" / "other" / "detections.pkl").read_bytes())["all_boxes"][1]) == 5
    assert run_dataset(replace(request, data=(*request.data, more)), progress=False).exit_code == 0


def test_golden_layout_of_proposals(tmp_path: Path) -> None:
    golden = shared_path("golden/dataset")
    with (golden / "rpn" / "rpn_proposals.pkl").open("rb") as stream:
        expected = pickle.load(stream)
    spec = make_spec(tasks=("proposals",), class_names=(), class_names_known=False)
    model = write_model(tmp_path / "model.onnx", spec)
    data = (DataSource(str(golden / "coco_cc12.json"), images=golden / "images"),)
    request = make_request(tmp_path, tmp_path / "whole", model=model, data=data, task="proposals", formats=())
    run_dataset(request, progress=False)
    got = pickle.loads((tmp_path / "whole" / "rpn_proposals.pkl").read_bytes())
    assert list(got) == list(expected)
    assert got["ids"] == expected["ids"]
    assert [type(value) for value in got["ids"]] == [int] * 12
    for key in ("boxes", "scores"):
        assert {(a.dtype, a.ndim) for a in got[key]} == {(a.dtype, a.ndim) for a in expected[key]}
    run_dataset(replace(request, out=tmp_path / "part", id_range=(4, 8)), progress=False)
    with (golden / "rpn_3way" / "rpn_proposals_range_4_8.pkl").open("rb") as stream:
        expected = pickle.load(stream)
    part = pickle.loads((tmp_path / "part" / "rpn_proposals_range_4_8.pkl").read_bytes())
    assert part["ids"] == expected["ids"]
    assert all(np.array_equal(a, b) for a, b in zip(part["boxes"], got["boxes"][4:8], strict=True))


# -- the whole job, killed and interrupted ---------------------------------------------------------------------------------------

JOB = """
import logging, signal, sys
from pathlib import Path
from run_support import make_request
from roiline.infer.run import run_dataset
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs are started with it ignored
logging.basicConfig(level=logging.INFO)
request = make_request(Path(sys.argv[1]), Path(sys.argv[2]), workers=2, predictor="run_support:" + sys.argv[3])
sys.exit(run_dataset(request, progress=False).exit_code)
"""


@contextlib.contextmanager
def started_job(
    root: Path, out: Path, *, predictor: str = "open_gated", sign: str = "shards/*.shard", signs: int = 1
) -> Iterator[subprocess.Popen[bytes]]:
    """A run of its own in a process group of its own, once the first files `sign` are in `out` (a shard)."""
    command = [sys.executable, "-c", JOB, str(root), str(out), predictor]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "ROILINE_TEST_GATE": str(out)}
    job = subprocess.Popen(command, env=environment, start_new_session=True, stderr=subprocess.PIPE)
    try:
        limit = time.monotonic() + 60
        while len(list(out.glob(sign))) < signs:
            assert job.poll() is None, job.stderr.read().decode() if job.stderr else ""
            assert time.monotonic() < limit
            time.sleep(0.01)
        yield job
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)
        job.communicate()


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def wait_until_gone(pids: list[int]) -> None:
    limit = time.monotonic() + 30
    while any(
        Path(f"/proc/{pid}").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text().split()[2] for pid in pids
    ):
        assert time.monotonic() < limit, f"still there: {pids}"
        time.sleep(0.02)


def finish(root: Path, out: Path, reference: dict[str, bytes]) -> None:
    """Goes on with other workers and another batch size, and compares the result."""
    done = sorted((out / "shards").glob("*.shard"))
    times = {path: path.stat().st_mtime_ns for path in done}
    assert 0 < len(done) < 6
    assert run_dataset(make_request(root, out, workers=1, batch_size=4), progress=False).exit_code == 0
    assert {path: path.stat().st_mtime_ns for path in done} == times
    assert result_bytes(out) == reference


def test_a_job_killed_at_once_leaves_no_workers_and_goes_on(
    root: Path, tmp_path: Path, reference: dict[str, bytes]
) -> None:
    with started_job(root, tmp_path) as job:
        workers = children_of(job.pid)
        assert len(workers) == 2
        job.kill()
        job.wait()
        wait_until_gone(workers)
    finish(root, tmp_path, reference)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_signal_finishes_what_is_under_way(
    root: Path, tmp_path: Path, reference: dict[str, bytes], number: signal.Signals
) -> None:
    with started_job(root, tmp_path) as job:
        workers = children_of(job.pid)
        os.killpg(job.pid, number)  # a terminal sends to the whole group
        time.sleep(0.5)
        (tmp_path / GATE).touch()
        _, log = job.communicate(timeout=60)
        assert job.returncode == 130, log.decode()
        assert b"run the same command again to go on" in log
        wait_until_gone(workers)
        assert json.loads((tmp_path / "failed.json").read_text())["failed"] == []
    finish(root, tmp_path, reference)


def test_two_signals_leave_at_once(root: Path, tmp_path: Path, reference: dict[str, bytes]) -> None:
    with started_job(root, tmp_path) as job:
        workers = children_of(job.pid)
        os.kill(job.pid, signal.SIGINT)
        time.sleep(0.05)
        os.kill(job.pid, signal.SIGINT)
        _, log = job.communicate(timeout=60)
        assert job.returncode == 130, log.decode()
        wait_until_gone(workers)
    finish(root, tmp_path, reference)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_job_that_ends_while_models_open_leaves_no_workers(tmp_path: Path, number: signal.Signals) -> None:
    write_model(tmp_path / "model.onnx")
    write_pictures(tmp_path / "pictures", 2)
    with started_job(tmp_path, tmp_path, predictor="open_takes_long", sign="opening-*", signs=2) as job:
        workers = children_of(job.pid)
        assert len(workers) == 2
        os.kill(job.pid, number)
        job.communicate(timeout=60)
        assert job.returncode == (-9 if number == signal.SIGKILL else 130)
        wait_until_gone(workers)


def test_a_repaired_picture_changes_all_that_follows_from_it(root: Path, tmp_path: Path) -> None:
    write_model(tmp_path / "model.onnx")
    write_pictures(tmp_path / "pictures", 9)
    run_dataset(make_request(tmp_path, tmp_path / "right"), progress=False)
    picture, out = tmp_path / "pictures" / "000010.png", tmp_path / "out"
    whole = picture.read_bytes()
    picture.write_bytes(whole[: len(whole) // 2])
    assert run_dataset(make_request(tmp_path, out), progress=False).exit_code == 4
    picture.write_bytes(whole)
    for shard in (out / "shards").glob("*.shard"):
        shard.unlink()
    assert run_dataset(make_request(tmp_path, out, formats=("coco",)), progress=False).exit_code == 0
    assert not (out / "detections.pkl").exists()  # it is not what the shards say any more
    assert json.loads((out / "run.json").read_text())["finished"] is True
    assert run_dataset(make_request(tmp_path, out), progress=False).exit_code == 0
    assert result_bytes(out) == result_bytes(tmp_path / "right")


def test_damaged_and_missing_results_are_written_again(root: Path, tmp_path: Path, reference: dict[str, bytes]) -> None:
    run_dataset(make_request(root, tmp_path), progress=False)
    started = json.loads((tmp_path / "run.json").read_text())["started_at"]
    for name, content in (
        ("bbox_results.json", b""),
        ("detections.pkl", None),
        ("failed.json", b"{}"),
        ("failed.json", None),
    ):
        (tmp_path / name).unlink() if content is None else (tmp_path / name).write_bytes(content)
        assert run_dataset(make_request(root, tmp_path), progress=False).exit_code == 0
        assert result_bytes(tmp_path) == reference
    record = json.loads((tmp_path / "run.json").read_text())
    assert (record["started_at"], sorted(record["files"])) == (started, sorted(reference))


def test_results_that_do_not_go_on_the_disk_end_the_run_at_once(
    root: Path, tmp_path: Path, reference: dict[str, bytes]
) -> None:
    request = make_request(root, tmp_path, workers=2)
    with pytest.raises(
        WorkerError, match=r"000\d\d\d\.shard: cannot be written \(File too large\).* MB are free there"
    ):
        run_dataset(replace(request, predictor="run_support:open_without_room"), progress=False)
    assert not [path for path in (tmp_path / "shards").iterdir() if path.suffix != ".shard"]
    assert run_dataset(request, progress=False).exit_code == 0
    assert result_bytes(tmp_path) == reference


def test_a_process_that_cannot_be_started_is_said(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(subprocess, "Popen", refuse)
    with pytest.raises(WorkerError, match=r"worker 0 \(cpu 0\): .*Too many open files.*use fewer workers"):
        run_dataset(make_request(root, tmp_path), progress=False)


@pytest.mark.parametrize(
    ("option", "override"),
    [
        ("--score-thresh", RunOverrides(score_thresh=float("nan"))),
        ("--score-thresh", RunOverrides(score_thresh=float("inf"))),
        ("--nms", RunOverrides(nms_thresh=-1.0)),
        ("--nms", RunOverrides(nms_thresh=9.0)),
        ("--max-dets", RunOverrides(max_dets=-1)),
        ("--scale", RunOverrides(scale=0)),
        ("--scale", RunOverrides(scale=100000)),
        ("--max-size", RunOverrides(max_size=-5)),
    ],
)
def test_settings_out_of_their_range_are_refused(
    root: Path, tmp_path: Path, option: str, override: RunOverrides
) -> None:
    with pytest.raises(UsageError, match=f"{option}: expected a value from"):
        run_dataset(make_request(root, tmp_path / "out", overrides=override), progress=False)
    with pytest.raises(UsageError, match=f"{option}: expected a value from"):
        spec_with_overrides(make_spec(), override)
    assert not (tmp_path / "out").exists()


def test_an_enormous_batch_is_refused(root: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="at most 4096, got 99999999999"):
        run_dataset(make_request(root, tmp_path, batch_size=99999999999), progress=False)


def test_runs_over_one_and_over_several_datasets_do_not_share_a_folder(root: Path, tmp_path: Path) -> None:
    other = write_pictures(tmp_path / "others", 3).rename(tmp_path / "others" / "more.json")
    request = make_request(root, tmp_path / "one")
    several = replace(request, data=(*request.data, DataSource(str(other), images=tmp_path / "others")))
    run_dataset(request, progress=False)
    with pytest.raises(UsageError, match=r"another run lies there already \(.*one\)"):
        run_dataset(several, progress=False)
    several = replace(several, out=tmp_path / "several")
    assert run_dataset(several, progress=False).images == IMAGES + 3
    with pytest.raises(UsageError, match=r"lies there already \(.*several/data\)"):
        run_dataset(replace(request, out=tmp_path / "several"), progress=False)
    assert run_dataset(several, progress=False).exit_code == 0


def test_a_file_where_the_shards_belong_is_said(root: Path, tmp_path: Path) -> None:
    (tmp_path / "shards").touch()
    with pytest.raises(UsageError, match=r"shards: cannot be made a folder \(File exists\)"):
        run_dataset(make_request(root, tmp_path), progress=False)


def test_a_worker_that_says_nothing_after_a_request_to_stop_is_named(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("roiline.infer.pool._SILENCE_S", 0.0)
    request = make_request(root, tmp_path)
    with Pool(request.slots, worker_setup(request, make_spec())) as pool:
        pool._start(0)
        pool._hint_at_silence()
        assert not caplog.text
        pool._stops = 1
        pool._hint_at_silence()
        process = pool._members[0].handle.name
        assert f"still waiting for worker 0 (cpu 0, {process}); a second Ctrl-C" in caplog.text
