"""What users of such systems report of several devices, processes and outputs, a test for each kind; and what was added to the list.

| what users met | test |
|---|---|
| one range dies after thousands of images; the work of that range is lost | `test_nothing_finished_is_done_again_when_a_worker_is_killed` |
| killed at 40,501 of 40,504, 233 GB resident, result file 0 bytes | `test_a_job_killed_while_it_merges_loses_nothing`, benchmarks/soak.py |
| merge looks for a part that another node wrote elsewhere | `test_merging_names_the_shard_that_is_missing` |
| CUDA initialisation error in forked children | `test_workers_are_fresh_interpreters_with_their_device_set` |
| device mask set too late | the same |
| leftover processes keep GPU memory | `test_a_worker_that_hangs_ends_with_its_parent`, tests/infer/test_run.py |
| bus error in a worker from small /dev/shm | `test_a_small_dev_shm_is_no_matter` |
| AP changes with batch size | tests/infer/test_run.py `test_workers_and_batches_change_no_byte` |
| retries do not happen as asked | `test_a_device_that_fails_now_and_then_costs_no_image` |

All of it at once is tests/test_chaos.py.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from chaos_support import children_of, is_alive
from run_support import make_request, result_bytes, write_model, write_pictures

from roiline.core.errors import DataError, ModelError, OutputError, UsageError
from roiline.infer.outputs import merge_outputs
from roiline.infer.request import DataSource, RunOverrides
from roiline.infer.run import run_dataset
from roiline.infer.shards import ShardFile

IMAGES = 23
SHARD = 4
HEAVY = ("cuda", "pycuda", "torch", "tensorrt", "onnxruntime", "cupy")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("root")
    write_model(folder / "model.onnx")
    write_pictures(folder / "pictures", IMAGES)
    return folder


@pytest.fixture(scope="module")
def reference(root: Path) -> dict[str, bytes]:
    assert run_dataset(make_request(root, root / "reference"), progress=False).exit_code == 0
    return result_bytes(root / "reference")


@pytest.fixture
def own_model(root: Path, tmp_path: Path) -> Path:
    """A copy of the model for predictors that leave notes beside it."""
    return Path(shutil.copy(root / "model.onnx", tmp_path / "model.onnx"))


JOB = """
import os, signal, sys
from pathlib import Path
from run_support import make_request
import roiline.infer.run as run
{before}
root, out = map(Path, sys.argv[1:3])
summary = run.run_dataset(make_request(root, out{options}))
{after}
sys.exit(summary.exit_code)
"""


def job_command(root: Path, out: Path, *, before: str = "", options: str = "", after: str = "") -> list[str]:
    code = JOB.format(before=before, options=options, after=after)
    return [sys.executable, "-c", code, str(root), str(out)]


def job_environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}


def test_nothing_finished_is_done_again_when_a_worker_is_killed(
    root: Path, tmp_path: Path, own_model: Path, reference: dict[str, bytes]
) -> None:
    request = make_request(root, tmp_path / "out", model=own_model, workers=2, predictor="run_support:open_counted")
    assert run_dataset(request, progress=False).exit_code == 0
    finished = [
        ShardFile(tmp_path / "out" / "shards" / name) for name in own_model.with_name("killed").read_text().split()
    ]
    assert result_bytes(tmp_path / "out") == reference
    times = Counter(own_model.with_name("answered").read_text().split())
    assert len(times) == IMAGES
    assert max(times.values()) <= 2
    repeated = {image_id for image_id, count in times.items() if count == 2}
    assert len(repeated) <= 3 * SHARD  # what a worker holds
    again = [shard for shard in finished if repeated & {str(image_id) for image_id in shard.header.image_ids}]
    assert len(again) <= 1  # one may have reached the disk and not been reported


def test_a_job_killed_while_it_merges_loses_nothing(root: Path, tmp_path: Path, reference: dict[str, bytes]) -> None:
    killing = "run.write_outputs = lambda *_: os.kill(os.getpid(), signal.SIGKILL)"
    job = subprocess.run(job_command(root, tmp_path / "out", before=killing), env=job_environment(), check=False)
    assert job.returncode == -signal.SIGKILL
    shards = {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "shards").glob("*.shard")}
    assert len(shards) == -(-IMAGES // SHARD)
    assert not (tmp_path / "out" / "bbox_results.json").exists()
    assert run_dataset(make_request(root, tmp_path / "out"), progress=False).exit_code == 0
    assert {path: path.stat().st_mtime_ns for path in shards} == shards
    assert result_bytes(tmp_path / "out") == reference


def test_merging_names_the_shard_that_is_missing(root: Path, tmp_path: Path) -> None:
    for number, id_range in enumerate([(0, 12), (12, IMAGES)]):
        run_dataset(make_request(root, tmp_path / str(number), id_range=id_range), progress=False)
    (tmp_path / "1" / "shards" / "000002.shard").unlink()
    with pytest.raises(DataError, match=r"1/shards/000002\.shard: cannot be read \(No such file or directory\)"):
        merge_outputs([tmp_path / "0", tmp_path / "1"], tmp_path / "joined")
    with pytest.raises(DataError, match="not an OUT folder of a run"):
        merge_outputs([tmp_path / "0", tmp_path / "elsewhere"], tmp_path / "joined")
    with pytest.raises(UsageError, match=r"images \[12, 23\) are in none of the runs"):
        merge_outputs([tmp_path / "0"], tmp_path / "joined")
    assert not (tmp_path / "joined").exists()


def test_workers_are_fresh_interpreters_with_their_device_set(tmp_path: Path, root: Path, own_model: Path) -> None:
    request = make_request(root, tmp_path / "out", model=own_model, workers=2)
    slots = [replace(slot, environment={"CUDA_VISIBLE_DEVICES": f"GPU-{n}"}) for n, slot in enumerate(request.slots)]
    request = replace(request, slots=tuple(slots), predictor="run_support:open_telling_its_start", limit=8)
    assert run_dataset(request, progress=False).exit_code == 0
    starts = [json.loads(path.read_text()) for path in tmp_path.glob("start-*")]
    masks = [[word for word in environment if word.startswith("CUDA_VISIBLE_DEVICES=")] for environment, _ in starts]
    assert sorted(masks) == [["CUDA_VISIBLE_DEVICES=GPU-0"], ["CUDA_VISIBLE_DEVICES=GPU-1"]]
    assert all("roiline.infer.worker" in " ".join(command) for _, command in starts)  # a fork would show the parent's


def test_the_parent_of_a_run_loads_no_device_library(root: Path, tmp_path: Path) -> None:
    after = f"print(sorted(set({HEAVY!r}) & set(sys.modules)))"
    command = job_command(root, tmp_path / "out", options=", limit=4", after=after)
    job = subprocess.run(command, env=job_environment(), capture_output=True, text=True, check=False)
    assert (job.returncode, job.stdout.strip()) == (0, "[]"), job.stderr


@pytest.mark.parametrize("predictor", ["open_hangs_on_image", "open_stops_on_image"])
def test_a_worker_that_hangs_ends_with_its_parent(root: Path, tmp_path: Path, own_model: Path, predictor: str) -> None:
    options = f", model=Path({str(own_model)!r}), predictor='run_support:{predictor}', image_timeout_s=0.0"
    job = subprocess.Popen(
        job_command(root, tmp_path / "out", options=options), env=job_environment(), stderr=subprocess.DEVNULL
    )
    try:
        limit = time.monotonic() + 60
        while not own_model.with_name("harmed").exists():
            assert time.monotonic() < limit
            time.sleep(0.02)
        time.sleep(0.1)  # from the sign to the harm
        (worker,) = children_of(job.pid)
    finally:
        job.kill()
        job.wait()
    while is_alive(worker):
        assert time.monotonic() < limit, "the worker outlives its parent"
        time.sleep(0.02)


def test_a_small_dev_shm_is_no_matter(root: Path, tmp_path: Path, reference: dict[str, bytes]) -> None:
    unshare = shutil.which("unshare")
    mount = "mount -t tmpfs -o size=4k tmpfs /dev/shm"
    if (
        unshare is None
        or subprocess.run([unshare, "-rm", "sh", "-c", mount], capture_output=True, check=False).returncode
    ):
        pytest.skip("no file system of its own can be mounted at /dev/shm here")
    job = job_command(root, tmp_path / "out", options=", workers=2")
    command = [unshare, "-rm", "sh", "-c", f'{mount} && exec "$@"', "sh", *job]
    ended = subprocess.run(command, env=job_environment(), capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert result_bytes(tmp_path / "out") == reference


def test_a_device_that_fails_now_and_then_costs_no_image(
    root: Path, tmp_path: Path, own_model: Path, reference: dict[str, bytes]
) -> None:
    request = make_request(root, tmp_path / "out", model=own_model, workers=2)
    request = replace(request, predictor="run_support:open_fails_now_and_then")
    assert run_dataset(request, progress=False).exit_code == 0
    assert result_bytes(tmp_path / "out") == reference
    notes = json.loads((tmp_path / "out" / "run.json").read_text())["notes"]
    failures = len((tmp_path / "calls").read_text()) // 20
    assert sum("the device does not answer" in note for note in notes) == failures >= 1


def test_few_open_files_are_enough(root: Path, tmp_path: Path, reference: dict[str, bytes]) -> None:
    few = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))"
    command = job_command(root, tmp_path / "out", before=few, options=", workers=3, batch_size=4")
    ended = subprocess.run(command, env=job_environment(), capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert result_bytes(tmp_path / "out") == reference


def test_a_run_needs_no_terminal_and_no_standard_streams(
    root: Path, tmp_path: Path, reference: dict[str, bytes]
) -> None:
    job = job_command(root, tmp_path / "out", options=", workers=2")
    closing = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *job]
    ended = subprocess.run(closing, env=job_environment(), start_new_session=True, check=False)
    assert ended.returncode == 0
    assert result_bytes(tmp_path / "out") == reference


def test_a_folder_that_takes_no_files_is_named_and_left_alone(root: Path, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"/proc/self/nothing: cannot be made a folder"):
        run_dataset(make_request(root, Path("/proc/self/nothing")), progress=False)
    with pytest.raises(OutputError, match=r"/sys/kernel/\.lock: cannot be written"):
        run_dataset(make_request(root, Path("/sys/kernel")), progress=False)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"predictor": "run_support:open_refuses"}, ModelError),
        ({"data": (DataSource("absent.json"),)}, DataError),
        ({"overrides": RunOverrides(nms_thresh=7.0)}, UsageError),
        ({"id_range": (90, 99)}, UsageError),
    ],
)
def test_a_refused_run_leaves_nothing_behind(
    root: Path, tmp_path: Path, change: dict[str, object], error: type[Exception]
) -> None:
    with pytest.raises(error):
        run_dataset(make_request(root, tmp_path / "a" / "b", **change), progress=False)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "mine").mkdir()
    with pytest.raises(error):
        run_dataset(make_request(root, tmp_path / "mine", **change), progress=False)
    assert list((tmp_path / "mine").iterdir()) == []


def test_no_leftover_and_no_zombie_after_a_run(root: Path, tmp_path: Path, reference: dict[str, bytes]) -> None:
    run_dataset(make_request(root, tmp_path / "out", workers=2), progress=False)
    assert children_of(os.getpid()) == []
    names = {path.name for path in (tmp_path / "out").rglob("*") if path.is_file() and path.suffix != ".shard"}
    assert names == {*reference, "run.json", "timing.json"}
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss > 0  # they were there, and were reaped
