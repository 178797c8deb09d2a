"""Golden operator cases: arrays and arguments as the original programs took and gave them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shared_data import shared_files, shared_path


@dataclass(frozen=True)
class GoldenCase:
    """Is one case: `inputs` and `outputs` in the original's order, `args` as given to it, `error` where it refused."""

    name: str
    args: dict[str, Any]
    tags: tuple[str, ...]
    inputs: tuple[np.ndarray, ...]
    outputs: tuple[np.ndarray, ...]
    note: str
    error: str | None


@lru_cache(maxsize=8)
def _arrays(path: Path) -> dict[str, np.ndarray]:
    with np.load(path) as stored:
        return {name: stored[name] for name in stored.files}


def _load(folder: Path, row: dict[str, Any]) -> GoldenCase:
    arrays = _arrays(folder / row["file"])
    take = lambda kind: tuple(  # noqa: E731
        arrays[f"{row['case']}/{kind}{i}"] for i in range(64) if f"{row['case']}/{kind}{i}" in arrays
    )
    return GoldenCase(
        row["case"], row["args"], tuple(row["tags"]), take("in"), take("out"), row["note"], row.get("error")
    )


def golden_cases(folder: str, *operators: str) -> list[object]:
    """Returns pytest parameters, one per case of the operators; the folder is below the golden data."""
    manifest = shared_files(f"golden/{folder}/manifest.json")[0]
    if not isinstance(manifest, type(pytest.param())) or manifest.values[0] is None:
        return [manifest]
    path = manifest.values[0]
    rows = [row for row in json.loads(path.read_text())["cases"] if row["op"] in operators]
    return [pytest.param(_load(path.parent, row), id=row["case"]) for row in rows]


def golden_case(folder: str, name: str) -> GoldenCase:
    """Returns one case by its name, or skips the test where its inputs were kept apart."""
    path = shared_path(f"golden/{folder}/manifest.json")
    rows = [row for row in json.loads(path.read_text())["cases"] if row["case"] == name]
    if not rows:
        pytest.skip(f"the inputs of golden case {name} are not among the stored cases")
    return _load(path.parent, rows[0])


def caffe2_cases(*operators: str) -> list[object]:
    """Returns pytest parameters (version, case) for both recorded Caffe2 versions."""
    versions = ("1.8.1", "1.0.0")
    return [
        pytest.param(version, *case.values, marks=case.marks, id=f"{version}-{case.id}")
        for version in versions
        for case in golden_cases(f"ops/caffe2_torch_{version}", *operators)
    ]
