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


@pytest.fixture(scope="session")
def digits_model(digits, tmp_path_factory):
    """Returns the demo model, exported."""
    from roiline.export.detectron.exporter import export_detectron

    names = (digits / "classes.txt").read_text().split()
    out = tmp_path_factory.mktemp("digits") / "digits.onnx"
    export_detectron(digits / "digits.yaml", digits / "digits.pkl", out, class_names=names)
    return out


@pytest.fixture(scope="session")
def digits_picture(digits):
    """Returns one of the demo's pictures as a BGR array."""
    import cv2

    return cv2.imread(str(sorted((digits / "pictures").iterdir())[0]))
