"""Fixtures that several rooms share."""

from __future__ import annotations

import os

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session")
def digits():
    """Returns the folder of the shipped demo model and pictures."""
    from pathlib import Path

    return Path(__file__).resolve().parents[1] / "examples" / "digits"
