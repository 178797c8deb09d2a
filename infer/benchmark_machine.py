"""The machine that a benchmark runs on: what it is, how busy it is, and what it can do at most.

The ceilings are measured, not looked up: the best of several products of two large matrices, and of several copies of a block that no
cache holds. A copy counts the bytes that it reads and those that it writes.
"""

from __future__ import annotations

import itertools
import os
import platform
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import numpy as np

_PACKAGES = (
    "roiline",
    "numpy",
    "onnx",
    "onnxruntime",
    "onnxruntime-gpu",
    "tensorrt",
    "opencv-python-headless",
    "opencv-python",
)
_MATRIX = 2048
_BLOCK_BYTES = 1 << 27
_LEAST_TRIES = 3
_LEAST_S = 0.4


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Is the most that was reached: `gflops` of a float32 matrix product, `copy_gb_per_s` of a memory copy, with `threads` threads."""

    gflops: float
    copy_gb_per_s: float
    threads: int


def describe_machine() -> dict[str, object]:
    """Returns processor, cores, memory, load, and the versions that matter for speed."""
    return {
        "processor": _read_field(Path("/proc/cpuinfo"), "model name") or platform.processor() or platform.machine(),
        "cores": os.cpu_count() or 1,
        "usable_cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "load_at_start": [round(value, 2) for value in os.getloadavg()],
        "python": platform.python_version(),
        "versions": dict(_versions(_PACKAGES)),
    }


def _versions(packages: Iterable[str]) -> Iterable[tuple[str, str]]:
    for package in packages:
        try:
            yield package, metadata.version(package)
        except metadata.PackageNotFoundError:
            continue


def _read_field(path: Path, name: str) -> str:
    """Returns the first value of a field of a file of `name : value` lines, empty where there is none."""
    if not path.exists():
        return ""
    for line in path.read_text(errors="replace").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""


def measure_ceilings(threads: int) -> Ceilings:
    """Measures what this process can reach with a number of threads; numpy's own are set by the environment."""
    random = np.random.default_rng(0)
    left, right = (random.random((_MATRIX, _MATRIX), np.float32) for _ in range(2))
    product = np.empty_like(left)
    seconds = _best_s(lambda: np.matmul(left, right, out=product))
    source = np.ones(_BLOCK_BYTES, np.uint8)
    target = np.zeros_like(source)
    cuts = np.linspace(0, _BLOCK_BYTES, threads + 1).astype(int)
    parts = [np.s_[start:end] for start, end in itertools.pairwise(cuts)]
    with ThreadPoolExecutor(threads) as pool:
        copy_s = _best_s(lambda: list(pool.map(lambda part: np.copyto(target[part], source[part]), parts)))
    return Ceilings(2 * _MATRIX**3 / seconds / 1e9, 2 * _BLOCK_BYTES / copy_s / 1e9, threads)


def _best_s(call: Callable[[], object]) -> float:
    call()
    times: list[float] = []
    while len(times) < _LEAST_TRIES or sum(times) < _LEAST_S:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)
