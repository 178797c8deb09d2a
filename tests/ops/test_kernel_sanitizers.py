"""Runs every kernel under sanitizers: no access out of bounds, nothing undefined, and no races within the blocks that work together."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from kernel_calls import KERNELS, record_calls
from operator_forms import need_host_compiler

TESTS = Path(__file__).resolve().parents[1]
BATCHES = ((17, 0, 30), (0,))


def _runtime(library: str) -> str:
    need_host_compiler()
    path = subprocess.run(["g++", f"-print-file-name={library}"], capture_output=True, text=True, check=True).stdout
    if not Path(path.strip()).is_absolute():
        pytest.skip(f"g++ has no {library}")
    return path.strip()


def _replay(calls: list, folder: Path, library: str, sanitizer: str, threads: int) -> subprocess.CompletedProcess[str]:
    recorded = folder / "calls.pkl"
    recorded.write_bytes(pickle.dumps(calls))
    environment = {
        **os.environ,
        "LD_PRELOAD": _runtime(library),
        "PYTHONPATH": str(TESTS),
        "ASAN_OPTIONS": "detect_leaks=0",
        "TSAN_OPTIONS": "exitcode=66:halt_on_error=1:ignore_noninstrumented_modules=1",
    }
    return subprocess.run(
        [sys.executable, str(TESTS / "replay_kernels.py"), str(recorded), sanitizer, str(threads)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.golden
def test_no_kernel_leaves_its_arrays_or_does_what_is_undefined(monkeypatch, tmp_path):
    calls = record_calls(monkeypatch, BATCHES)
    assert {call.kernel for call in calls} == set(KERNELS)
    result = _replay(calls, tmp_path, "libasan.so", "address", 1)
    assert (result.returncode, result.stdout) == (0, f"{len(calls)} calls\n"), result.stderr[-4000:]


@pytest.mark.golden
def test_threads_that_work_together_do_not_race(monkeypatch, tmp_path):
    calls = [call for call in record_calls(monkeypatch, BATCHES) if KERNELS[call.kernel].cooperative]
    result = _replay(calls, tmp_path, "libtsan.so", "thread", 4)
    assert (result.returncode, result.stdout) == (0, f"{len(calls)} calls\n"), result.stderr[-4000:]
