from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from run_support import GATE, make_request, result_bytes, write_model, write_pictures

from roiline.infer.run import run_dataset

pytestmark = [
    pytest.mark.ray,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed; see `make ray-tests`"),
]

IMAGES = 23
SCRIPT = Path(__file__).parents[1] / "cluster_run.py"
ENVIRONMENT = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A cluster of this machine that gives two CPUs away."""
    command = [sys.executable, SCRIPT, "hold", "2"]
    with subprocess.Popen(
        command, env=ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        yield holder.stdout.readline().strip()
        holder.stdin.close()


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("root")
    write_model(folder / "model.onnx")
    write_pictures(folder / "pictures", IMAGES)
    return folder


@pytest.fixture(scope="module")
def reference(root: Path) -> dict[str, bytes]:
    """The result files of a plain run on this machine."""
    assert run_dataset(make_request(root, root / "reference"), progress=False).exit_code == 0
    return result_bytes(root / "reference")


def _command(root: Path, out: Path, address: str, *options: str) -> list[str]:
    return [sys.executable, str(SCRIPT), str(root), str(out), "--address", address, *options]


def _run(root: Path, out: Path, address: str, *options: str) -> str:
    ended = subprocess.run(
        _command(root, out, address, *options), env=ENVIRONMENT, capture_output=True, text=True, timeout=300
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stderr


def test_two_actors_give_the_bytes_of_a_local_run(
    root: Path, tmp_path: Path, reference: dict[str, bytes], address: str
) -> None:
    _run(root, tmp_path, address)
    assert result_bytes(tmp_path) == reference
    workers = json.loads((tmp_path / "run.json").read_text())["workers"]
    assert [worker["machine"] for worker in workers] == [os.uname().nodename] * 2
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("streamed", [(), ("--streamed",)])
def test_an_actor_killed_midway_changes_no_byte(
    root: Path, tmp_path: Path, reference: dict[str, bytes], address: str, streamed: tuple[str, ...]
) -> None:
    marker = root / "actor-killed-once"
    marker.unlink(missing_ok=True)
    _run(root, tmp_path, address, "--predictor", "run_support:open_actor_killed_once", *streamed)
    assert marker.exists()
    assert result_bytes(tmp_path) == reference
    notes = json.loads((tmp_path / "run.json").read_text())["notes"]
    assert any("its actor is gone" in note for note in notes)


def test_shards_are_streamed_where_the_folder_is_not_seen_and_nothing_is_left(
    root: Path, tmp_path: Path, reference: dict[str, bytes], address: str
) -> None:
    _run(root, tmp_path, address, "--streamed")
    assert result_bytes(tmp_path) == reference
    assert not list(Path(tempfile.gettempdir()).glob(f"roiline-cluster-{os.getuid()}-*"))


def test_an_interrupted_run_of_a_cluster_goes_on_on_this_machine(
    root: Path, tmp_path: Path, reference: dict[str, bytes], address: str
) -> None:
    (root / "gated-out").write_text(str(tmp_path))
    command = _command(root, tmp_path, address, "--predictor", "run_support:open_gated")
    with subprocess.Popen(command, env=ENVIRONMENT, stderr=subprocess.DEVNULL) as head:
        limit = time.monotonic() + 120
        while not list(tmp_path.glob("shards/*.shard")) and time.monotonic() < limit:
            time.sleep(0.02)
        head.send_signal(signal.SIGINT)
        time.sleep(0.5)  # for the signal to be taken before the workers go on
        (tmp_path / GATE).touch()
        assert head.wait(120) == 130
    (tmp_path / GATE).unlink()
    kept = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("shards/*.shard")}
    assert 0 < len(kept) < IMAGES // 4
    assert run_dataset(make_request(root, tmp_path, workers=2), progress=False).exit_code == 0
    assert result_bytes(tmp_path) == reference
    assert {name: (tmp_path / "shards" / name).stat().st_mtime_ns for name in kept} == kept


def test_a_run_begun_on_this_machine_goes_on_on_a_cluster(
    root: Path, tmp_path: Path, reference: dict[str, bytes], address: str
) -> None:
    run_dataset(make_request(root, tmp_path), progress=False)
    shards = sorted(tmp_path.glob("shards/*.shard"))
    kept = {path.name: path.stat().st_mtime_ns for path in shards[:2]}
    for path in [*shards[2:], *(tmp_path / name for name in reference)]:
        path.unlink()
    _run(root, tmp_path, address)
    assert result_bytes(tmp_path) == reference
    assert {name: (tmp_path / "shards" / name).stat().st_mtime_ns for name in kept} == kept
