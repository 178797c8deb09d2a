"""Calibration on datasets, through the commands and on the demo model."""

from __future__ import annotations

import cv2
import numpy as np
import onnx
import pytest
from click.testing import CliRunner

import roiline
from roiline.checks.calibration import DatasetCalibration
from roiline.cli import main
from roiline.core.boxes import box_ious
from roiline.core.errors import EXIT_DONE, EXIT_INPUT, EXIT_USAGE, DataError, UsageError
from roiline.engines.model_file import read_spec

PICTURES = 6


def run(*arguments: object, code: int = EXIT_DONE) -> str:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture(scope="module")
def source(digits):
    return ["--cfg", digits / "digits.yaml", "--weights", digits / "digits.pkl", "--classes", digits / "classes.txt"]


@pytest.fixture(scope="module")
def data(digits):
    return ["--calibrate", digits / "annotations.json", "--images", digits / "pictures", "--calibrate-limit", PICTURES]


@pytest.fixture
def black(tmp_path):
    folder = tmp_path / "black"
    folder.mkdir()
    for index in range(10):
        cv2.imwrite(str(folder / f"{index}.png"), np.full((40, 50, 3), index, np.uint8))
    return folder


@pytest.mark.golden
@pytest.mark.parametrize(("precision", "largest"), [("fp16", 0.02), ("int8", 0.15)])
def test_the_demo_model_answers_as_before(precision, largest, source, data, digits_model, digits_picture, tmp_path):
    path = tmp_path / "model.onnx"
    said = run("export", "detectron", *source, *data, "--precision", precision, "-o", path)
    assert f"10 classes, {precision}" in said
    assert read_spec(path).precision == precision
    assert path.stat().st_size < 0.6 * digits_model.stat().st_size
    answers = []
    for model in (digits_model, path):
        with roiline.open(model) as opened:
            answers.append(opened.detect(digits_picture))
    before, after = answers
    sure = before.scores > 0.7
    assert sure.sum() > 2
    same = before.classes[sure, None] == after.classes
    ious = np.where(same, box_ious(before.boxes[sure], after.boxes), 0)
    assert ious.max(axis=1).min() > 0.8
    assert np.abs(before.scores[sure] - after.scores[ious.argmax(axis=1)]).max() < largest


def test_inspect_says_the_precision(source, tmp_path):
    path = tmp_path / "model.onnx"
    run("export", "detectron", *source, "--precision", "bf16", "-o", path)
    assert "bf16" in run("inspect", path)
    assert onnx.load(path).opset_import[0].version == 22


def test_black_pictures_are_refused_and_nothing_is_written(source, black, tmp_path):
    path = tmp_path / "model.onnx"
    options = ("--precision", "int8", "--calibrate", black, "-o", path)
    said = run("export", "detectron", *source, *options, code=EXIT_INPUT)
    assert "at least 5 of the 10 calibration pictures are of one colour" in said
    assert not path.exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--precision", "int8"], "give a dataset with --calibrate"),
        (["--images", "."], "--images belongs to --calibrate DATA"),
        (["--calibrate-proposals", "x.pkl"], "--calibrate-proposals belongs to --calibrate DATA"),
        (["--calibrate-limit", "4"], "--calibrate-limit belongs to --calibrate DATA"),
        (["--precision", "bf16", "--calibrate", "."], "runs no bf16"),
        (["--calibrate", "."], "nothing to compare"),
    ],
)
def test_options_that_do_not_go_together(options, message, source, tmp_path):
    said = run("export", "detectron", *source, *options, "-o", tmp_path / "model.onnx", code=EXIT_USAGE)
    assert message in said


def test_feeds_are_those_of_a_run_and_spread_over_the_dataset(digits, digits_model):
    spec = read_spec(digits_model)
    every = DatasetCalibration(str(digits / "annotations.json"), images=digits / "pictures")
    some = DatasetCalibration(str(digits / "annotations.json"), images=digits / "pictures", limit=3)
    all_feeds, few = list(every.feeds(spec)), list(some.feeds(spec))
    assert len(all_feeds) == 24
    for place, feeds in zip((0, 8, 16), few, strict=True):
        for name, array in feeds.items():
            np.testing.assert_array_equal(array, all_feeds[place][name])
    assert few[0]["data"].dtype == np.float32


def test_what_does_not_fit_is_said(digits, digits_model, black):
    spec = read_spec(digits_model)
    with pytest.raises(DataError, match="show nothing"):
        list(DatasetCalibration(str(black)).feeds(spec))
    with pytest.raises(UsageError, match="--calibrate-limit: expected"):
        list(DatasetCalibration(str(digits / "pictures"), limit=0).feeds(spec))
    with pytest.raises(UsageError, match="makes its own proposals"):
        list(DatasetCalibration(str(digits / "pictures"), proposals=black).feeds(spec))
