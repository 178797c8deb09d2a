"""What a lower precision costs in average precision: the trained blood-cell detector through the commands, on ONNX Runtime."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from shared_data import shared_path

from roiline.cli import main

pytestmark = pytest.mark.golden

MOST_LOSS = {"fp16": 0.001, "int8": 0.005}
"""Of the average precision from 0 to 1: a tenth and half of a point."""


def _run(*arguments: object) -> None:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output


def _measure(folder, *options: object) -> float:
    """Returns the box AP on the test pictures of the model exported with these options."""
    source, model = shared_path("models/bccd-detectron"), folder / "model.onnx"
    data = (source / "test_coco.json", "--images", shared_path("data/bccd/JPEGImages"))
    weights = ("--cfg", source / "bccd.yaml", "--weights", source / "bccd.pkl", "--classes", "RBC,WBC,Platelets")
    _run("export", "detectron", *weights, *options, "-o", model)
    _run("detect", model, *data, "-o", folder / "out", "--cpu-workers", 2)
    _run("evaluate", folder / "out", *data)
    measured = json.loads((folder / "out" / "metrics.json").read_text())
    return float(measured["test_coco"]["box"]["AP"])


@pytest.fixture(scope="module")
def fp32(tmp_path_factory):
    return _measure(tmp_path_factory.mktemp("fp32"))


@pytest.mark.parametrize("precision", MOST_LOSS)
def test_average_precision_stays(precision, fp32, tmp_path):
    calibration = ("--calibrate", shared_path("data/bccd"), "--split", "val") if precision == "int8" else ()
    assert fp32 - _measure(tmp_path, "--precision", precision, *calibration) <= MOST_LOSS[precision]
