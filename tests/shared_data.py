"""The one place where tests reach data that the project does not ship: a skip with a reason where it is absent."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_ROOT = Path(os.environ.get("ROILINE_SHARED", Path(__file__).resolve().parents[2] / "shared"))


def shared_path(relative: str) -> Path:
    """Returns a path below the folder of shared test data, or skips the test."""
    path = _ROOT / relative
    if not path.exists():
        pytest.skip(f"shared test data `{relative}` is not beside this checkout (set ROILINE_SHARED to its folder)")
    return path


def shared_files(pattern: str) -> list[object]:
    """Returns pytest parameters: the paths matching a glob below the folder, or one skipped parameter where there are none."""
    paths = sorted(_ROOT.glob(pattern))
    if not paths:
        return [
            pytest.param(
                None, marks=pytest.mark.skip(reason=f"shared test data `{pattern}` is not beside this checkout")
            )
        ]
    return [pytest.param(path, id=path.name.split(".")[0]) for path in paths]
