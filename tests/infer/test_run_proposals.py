"""Runs of models that take proposals from a file or from another model, and runs of several models."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner
from model_cases import BOX_TOLERANCE, SCORE_TOLERANCE, write_weights
from run_support import make_request, make_spec, write_model, write_pictures
from shared_data import shared_path

from roiline.cli import main
from roiline.core.errors import DataError, UsageError
from roiline.core.pickles import read_pickle
from roiline.core.spec import GivenProposals
from roiline.core.structures import RoidbEntry
from roiline.export.detectron.exporter import export_detectron
from roiline.infer.dry_run import plan_run
from roiline.infer.request import Companions
from roiline.infer.run import run_dataset
from roiline.infer.run_proposals import check_companions, load_given_proposals

RULE = GivenProposals(limit=2, dedup=1 / 16)
FAST = {"MODEL.FASTER_RCNN": "False", "TEST.PROPOSAL_FILES": "('p',)", "TEST.DATASETS": "('d',)"}


def write_proposals(path, boxes_by_id):
    boxes = list(boxes_by_id.values())
    content = {"boxes": boxes, "scores": [np.ones(len(rows), np.float32) for rows in boxes], "ids": [*boxes_by_id]}
    path.write_bytes(pickle.dumps(content, protocol=2))
    return path


@pytest.fixture
def root(tmp_path):
    """A folder with a model that takes proposals, one that makes them, one that does both, and pictures."""
    seams = {**make_spec().seams, "given_rois": ("rois", "roi_index", "roi_count")}
    write_model(tmp_path / "model.onnx", make_spec(given_proposals=RULE, tasks=("detections",), seams=seams))
    write_model(tmp_path / "rpn.onnx", make_spec(tasks=("proposals",), detection=None))
    write_model(tmp_path / "whole.onnx")
    write_pictures(tmp_path / "pictures", 5, ids=[1, 2, 3, 4, 5])
    rows = np.array([[0, 0, 30, 30], [5, 5, 35, 35], [9, 9, 39, 39]], np.float32)
    write_proposals(tmp_path / "p.pkl", dict.fromkeys([5, 3, 1, 2, 4, 99], rows))
    return tmp_path


def request_with(root, *, model="model.onnx", file=None, **companions):
    request = make_request(root, root / "out", model=root / model, companions=Companions(**companions))
    return replace(request, data=(replace(request.data[0], proposals=file),))


def test_options_that_fit(root):
    taking, whole = make_spec(given_proposals=RULE), make_spec()
    assert check_companions(request_with(root, file=root / "p.pkl"), taking) == RULE
    assert check_companions(request_with(root, proposals_from=root / "rpn.onnx"), taking) == RULE
    assert check_companions(request_with(root, proposals_from=root / "whole.onnx"), taking) == RULE
    assert check_companions(request_with(root, model="whole.onnx"), whole) is None
    others = (root / "model.onnx",)
    assert check_companions(request_with(root, model="whole.onnx", others=others, file=root / "p.pkl"), whole) == RULE


@pytest.mark.parametrize(
    ("model", "file", "companions", "message"),
    [
        ("model.onnx", None, {}, r"makes no proposals of its own: give a file .*--proposals-from MODEL"),
        ("model.onnx", "p.pkl", {"proposals_from": "rpn.onnx"}, "give --proposals or --proposals-from, not both"),
        ("whole.onnx", "p.pkl", {}, "makes its own proposals"),
        ("whole.onnx", None, {"proposals_from": "rpn.onnx"}, "makes its own proposals"),
        ("model.onnx", None, {"proposals_from": "model.onnx"}, "makes detections, not proposals"),
        ("whole.onnx", None, {"others": ("rpn.onnx",)}, "makes proposals, not detections"),
    ],
)
def test_options_that_do_not_fit_are_refused_before_anything_is_opened(root, model, file, companions, message):
    paths = {
        name: tuple(root / part for part in value) if isinstance(value, tuple) else root / value
        for name, value in companions.items()
    }
    request = request_with(root, model=model, file=file and root / file, **paths)
    with pytest.raises(UsageError, match=message):
        run_dataset(replace(request, predictor="run_support:open_refuses"), progress=False)
    with pytest.raises(UsageError, match=message):
        plan_run(request)


def test_proposals_are_for_detections_only(root):
    request = replace(
        request_with(root, model="whole.onnx", others=(root / "whole.onnx",)), task="proposals", formats=()
    )
    with pytest.raises(UsageError, match="for detections only"):
        run_dataset(request, progress=False)


def test_loading_follows_the_file_loaders_rules_and_leaves_unreadable_pictures_out(root):
    entries = [
        RoidbEntry(3, root / "3.png", 20, 25),
        RoidbEntry(4, root / "4.png", 0, 0),
        RoidbEntry(5, root / "5.png", 40, 60),
    ]
    first, none, last = load_given_proposals(root / "p.pkl", entries, RULE)
    assert first.tolist() == [[0, 0, 24, 19], [5, 5, 24, 19]]
    assert none is None
    assert last.tolist() == [[0, 0, 30, 30], [5, 5, 35, 35]]


def test_a_file_of_another_dataset_is_refused(root):
    write_proposals(root / "p.pkl", {1: np.zeros((1, 4), np.float32)})
    with pytest.raises(DataError, match="has no proposals for 4 of the dataset's 5 pictures"):
        run_dataset(request_with(root, file=root / "p.pkl"), progress=False)


def test_another_proposal_file_or_companion_is_another_run(root):
    assert run_dataset(request_with(root, file=root / "p.pkl"), progress=False).exit_code == 0
    assert run_dataset(request_with(root, file=root / "p.pkl"), progress=False).exit_code == 0
    manifest = json.loads((root / "out" / "run.json").read_text())
    assert len(manifest["settings"]["proposals"]) == 64
    write_proposals(root / "q.pkl", dict.fromkeys(range(1, 6), np.zeros((1, 4), np.float32)))
    with pytest.raises(UsageError, match="proposals: "):
        plan_run(request_with(root, file=root / "q.pkl"))
    with pytest.raises(UsageError, match="proposals_from: None there"):
        plan_run(request_with(root, proposals_from=root / "rpn.onnx"))


def run(*arguments):
    result = CliRunner().invoke(main, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture(scope="module")
def fast_digits(digits, tmp_path_factory):
    out = tmp_path_factory.mktemp("fast") / "fast.onnx"
    names = (digits / "classes.txt").read_text().split()
    export_detectron(
        digits / "digits.yaml", digits / "digits.pkl", out, overrides=tuple(FAST.items()), class_names=names
    )
    return out


@pytest.mark.golden
def test_proposals_of_a_file_and_of_a_model_and_combined_models(digits, digits_model, fast_digits, tmp_path):
    data = (digits / "annotations.json", "--images", digits / "pictures", "--limit", 4, "--cpu-workers", 1)
    run("proposals", digits_model, *data, "-o", tmp_path / "p")
    file = tmp_path / "p" / "rpn_proposals.pkl"
    run("detect", fast_digits, *data, "-o", tmp_path / "file", "--proposals", file)
    run("detect", fast_digits, *data, "-o", tmp_path / "model", "--proposals-from", digits_model, "--batch-size", 2)
    run("detect", digits_model, *data, "-o", tmp_path / "both", "--with", fast_digits, "--proposals", file)
    read = {name: json.loads((tmp_path / name / "bbox_results.json").read_text()) for name in ("file", "model", "both")}
    assert len(read["file"]) > 20
    assert read["both"] == read["file"]
    strong = {name: sorted(_strong(rows)) for name, rows in read.items()}
    assert len(strong["file"]) > 5
    np.testing.assert_allclose(
        strong["model"], strong["file"], atol=0.5
    )  # the loader clips to the picture, the model does not


def _strong(rows):
    return [(row["image_id"], row["category_id"], *row["bbox"]) for row in rows if row["score"] > 0.8]


@pytest.mark.golden
def test_a_run_over_a_proposal_file_leaves_the_originals_detections(tmp_path):
    golden = shared_path("golden/dataset")
    info = json.loads((golden / "fast.json").read_text())
    weights = write_weights(info, shared_path("golden/e2e_more"), tmp_path)
    sets = [part for pair in zip(info["opts"][::2], info["opts"][1::2], strict=True) for part in ("--set", *pair)]
    run(
        "export", "detectron", "--cfg", golden / "fast.cfg.yaml", "--weights", weights, *sets, "-o", tmp_path / "m.onnx"
    )
    data = (golden / "coco_cc12.json", "--images", golden / "images", "--cpu-workers", 1, "--format", "detectron")
    proposals = golden / "rpn" / "rpn_proposals.pkl"
    run("detect", tmp_path / "m.onnx", *data, "-o", tmp_path / "out", "--proposals", proposals, "--batch-size", 4)
    ours, theirs = (read_pickle(path / "detections.pkl")["all_boxes"] for path in (tmp_path / "out", golden / "fast"))
    assert len(ours) == len(theirs)
    for mine, expected in zip(ours[1:], theirs[1:], strict=True):
        for rows, original in zip(mine, expected, strict=True):
            _assert_same_rows(rows, original)


def _assert_same_rows(rows, original):
    """Compares by descending score: of proposals that are one RoI the original leaves open which one stays, and so its place."""
    assert rows.shape == original.shape
    rows, original = (one[np.argsort(-one[:, 4], kind="stable")] for one in (rows, original))
    np.testing.assert_allclose(rows[:, :4], original[:, :4], atol=BOX_TOLERANCE, rtol=0)
    np.testing.assert_allclose(rows[:, 4], original[:, 4], atol=SCORE_TOLERANCE, rtol=0)
