"""A trained Mask R-CNN through the commands, against what the original program made of the same pictures."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from shared_data import shared_path

from roiline.cli import main
from roiline.core.rle import decode_rle

pytestmark = pytest.mark.golden

LEAST_IOU = 0.99
RANGES = ((0, 20), (20, 55))


def run(*arguments: object) -> None:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output


@pytest.fixture(scope="module")
def source() -> Path:
    return shared_path("models/coco-cc-mask-detectron")


@pytest.fixture(scope="module")
def model(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "model.onnx"
    run(
        "export",
        "detectron",
        "--cfg",
        source / "coco_cc_mask.yaml",
        "--weights",
        source / "coco_cc_mask.pkl",
        "-o",
        path,
    )
    return path


def detect(model: Path, source: Path, out: Path, *options: object) -> Path:
    data = (source / "coco_cc.json", "--images", shared_path("data/coco-cc"))
    run("detect", model, *data, "-o", out, "--format", "coco", "--format", "detectron", *options)
    return out


@pytest.fixture(scope="module")
def out(model: Path, source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return detect(model, source, tmp_path_factory.mktemp("out"), "--cpu-workers", 2)


def test_masks_are_the_originals(out: Path, source: Path) -> None:
    found = json.loads((out / "segmentations_results.json").read_text())
    expected = json.loads((source / "original_segmentations_results.json").read_text())
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected, strict=True):
        assert (mine["image_id"], mine["category_id"]) == (theirs["image_id"], theirs["category_id"])
        assert mine["score"] == pytest.approx(theirs["score"], abs=1e-4)
        size = theirs["segmentation"]["size"]
        assert mine["segmentation"]["size"] == size
        first, second = (decode_rle(one["segmentation"]["counts"], *size) for one in (mine, theirs))
        assert np.sum(first & second) >= LEAST_IOU * np.sum(first | second)
    same = sum(mine["segmentation"] == theirs["segmentation"] for mine, theirs in zip(found, expected, strict=True))
    assert same > 0.98 * len(expected)


def test_the_accuracy_is_the_originals(out: Path, source: Path) -> None:
    run("evaluate", out, source / "coco_cc.json")
    measured = json.loads((out / "metrics.json").read_text())["coco_cc"]
    for part, expected in json.loads((source / "metrics.json").read_text()).items():
        assert measured[part] == pytest.approx(expected, abs=0.001)


def test_runs_over_ranges_join_to_the_same_files(out: Path, model: Path, source: Path, tmp_path: Path) -> None:
    parts = [
        detect(model, source, tmp_path / f"{start}", "--cpu-workers", 1, "--range", start, end, "--batch-size", 4)
        for start, end in RANGES
    ]
    run("merge", *parts, "-o", tmp_path / "joined", "--format", "coco", "--format", "detectron")
    for name in ("bbox_results.json", "segmentations_results.json", "detections.pkl"):
        assert (tmp_path / "joined" / name).read_bytes() == (out / name).read_bytes(), name


def test_masks_are_drawn(out: Path, source: Path, tmp_path: Path) -> None:
    run("draw", out, source / "coco_cc.json", "--images", shared_path("data/coco-cc"), "-o", tmp_path / "drawn")
    assert len(list((tmp_path / "drawn").glob("*.jpg"))) > 40
