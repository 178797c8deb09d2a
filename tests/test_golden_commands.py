"""Golden models through the real commands: export, then proposals or detect over a folder, then the result file."""

from __future__ import annotations

import json
import lzma

import numpy as np
import pytest
from click.testing import CliRunner
from model_cases import assert_same_detections, assert_same_proposals, build_case
from shared_data import shared_path

from roiline.cli import main
from roiline.core.pickles import read_pickle

DETECTORS = ["faster_R50_FPN_tiny", "faster_R50_FPN_small", "faster_R50_FPN_small_agnostic"]


def _run(*arguments: object) -> str:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def _export(case, weights, model):
    sets = [part for pair in case.overrides for part in ("--set", *pair)]
    _run("export", "detectron", "--cfg", case.cfg, "--weights", weights, *sets, "-o", model)


def _detect(model, picture, out):
    _run("detect", model, picture, "-o", out, "--cpu-workers", 1, "--format", "detectron")
    cells = read_pickle(out / "detections.pkl")["all_boxes"]
    rows = [(cells[k][0], np.full(len(cells[k][0]), k)) for k in range(1, len(cells))]
    boxes = np.concatenate([cell.reshape(-1, 5) for cell, _ in rows])
    return boxes[:, :4], boxes[:, 4], np.concatenate([classes for _, classes in rows])


@pytest.mark.parametrize("name", DETECTORS)
def test_detections(name, tmp_path):
    case = build_case(shared_path(f"golden/e2e/{name}.json"), tmp_path)
    _export(case, case.weights, tmp_path / "model.onnx")
    answer = _detect(tmp_path / "model.onnx", case.picture, tmp_path / "out")
    assert_same_detections(case.expected["dets_x1y1x2y2_score_class"], *answer)


def test_detections_from_a_real_python_2_pickle(tmp_path):
    case = build_case(shared_path("golden/e2e/faster_R50_FPN_tiny.json"), tmp_path)
    packed = shared_path("golden/e2e/faster_R50_FPN_tiny.py2.pkl.xz")
    weights = tmp_path / "py2.pkl"
    weights.write_bytes(lzma.decompress(packed.read_bytes()))
    _export(case, weights, tmp_path / "model.onnx")
    answer = _detect(tmp_path / "model.onnx", case.picture, tmp_path / "out")
    assert_same_detections(case.expected["dets_x1y1x2y2_score_class"], *answer)


def test_proposals(tmp_path):
    case = build_case(shared_path("golden/e2e/rpn_R50_FPN_small.json"), tmp_path)
    _export(case, case.weights, tmp_path / "model.onnx")
    _run("proposals", tmp_path / "model.onnx", case.picture, "-o", tmp_path / "out", "--cpu-workers", 1)
    found = read_pickle(tmp_path / "out" / "rpn_proposals.pkl")
    expected = case.expected["proposal_boxes"], case.expected["proposal_scores"]
    assert_same_proposals(expected, found["boxes"][0], found["scores"][0])


@pytest.fixture(scope="module")
def blood_cells(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bccd")
    source = shared_path("models/bccd-detectron")
    for name in ("bccd", "bccd_rpn"):
        _run(
            *("export", "detectron", "--cfg", source / f"{name}.yaml", "--weights", source / "bccd.pkl"),
            *("--classes", "RBC,WBC,Platelets", "-o", folder / f"{name}.onnx"),
        )
    return folder


COCO = ("models/bccd-detectron/test_coco.json", "--images", "data/bccd/JPEGImages")
VOC = ("data/bccd", "--split", "test")


def _locate(data):
    return [part if part.startswith("--") or part == "test" else shared_path(part) for part in data]


@pytest.mark.parametrize(
    ("command", "model", "task", "data"),
    [
        ("detect", "bccd", "box", COCO),
        ("detect", "bccd", "box", VOC),
        ("proposals", "bccd_rpn", "box_proposal", COCO),
        ("proposals", "bccd_rpn", "box_proposal", VOC),
    ],
)
def test_trained_model_has_the_originals_accuracy(blood_cells, tmp_path, command, model, task, data):
    located = _locate(data)
    names = ["--classes", "RBC,WBC,Platelets"] if data is VOC else []
    out = tmp_path / "out"
    _run(command, blood_cells / f"{model}.onnx", *located, "-o", out, "--cpu-workers", 2)
    _run("evaluate", out, *located, *names)
    measured = json.loads((out / "metrics.json").read_text())
    (dataset,) = (value for key, value in measured.items() if key != "format_version")
    original = json.loads(shared_path("models/bccd-detectron/metrics.json").read_text())[task]
    for key, value in original.items():
        assert dataset[task][key] == pytest.approx(value, abs=0.001), key
