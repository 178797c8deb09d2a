"""Whole dataset runs through the commands, against the files that the original's own tools left."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
from click.testing import CliRunner
from model_cases import BOX_TOLERANCE, SCORE_TOLERANCE, write_weights
from shared_data import shared_path

from roiline.cli import main
from roiline.core.boxes import box_ious
from roiline.core.pickles import read_pickle

NMS_THRESHOLD = 0.7
RANGES = [(0, 4), (4, 8), (8, 12)]


def run(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture(scope="module")
def rpn(tmp_path_factory):
    """Returns the exported model, the dataset's options, and the folder of golden files."""
    golden = shared_path("golden/dataset")
    folder = tmp_path_factory.mktemp("rpn")
    info = json.loads((golden / "rpn.json").read_text())
    weights = write_weights(info, shared_path("golden/e2e_more"), folder)
    sets = [part for pair in zip(info["opts"][::2], info["opts"][1::2], strict=True) for part in ("--set", *pair)]
    model = folder / "rpn.onnx"
    run("export", "detectron", "--cfg", golden / "rpn.cfg.yaml", "--weights", weights, *sets, "-o", model)
    return model, [golden / "coco_cc12.json", "--images", golden / "images"], golden


@pytest.fixture(scope="module")
def whole(rpn, tmp_path_factory):
    model, data, _ = rpn
    out = tmp_path_factory.mktemp("whole")
    run("proposals", model, *data, "-o", out, "--cpu-workers", 2)
    return out


@pytest.fixture(scope="module")
def ranges(rpn, tmp_path_factory):
    model, data, _ = rpn
    outs = []
    for start, end in RANGES:
        outs.append(tmp_path_factory.mktemp(f"range_{start}_{end}"))
        run("proposals", model, *data, "-o", outs[-1], "--cpu-workers", 1, "--range", start, end)
    return outs


def _assert_same_proposals(ours, theirs):
    assert set(ours) == set(theirs) == {"boxes", "scores", "ids", "cfg"}
    assert list(ours["ids"]) == list(theirs["ids"])
    for kind in ("boxes", "scores"):
        for mine, golden in zip(ours[kind], theirs[kind], strict=True):
            assert (mine.dtype, mine.shape) == (golden.dtype, golden.shape)
    for image in range(len(ours["ids"])):
        scores, golden = ours["scores"][image], theirs["scores"][image]
        np.testing.assert_allclose(scores, golden, atol=SCORE_TOLERANCE, rtol=0)
        _assert_same_boxes(scores, ours["boxes"][image], theirs["boxes"][image])


def _assert_same_boxes(scores, boxes, golden):
    """Compares row by row, but for rows whose scores are one number: random weights saturate some.

    Where two boxes score the same to 1e-6, rounding decides their order, and, if they overlap beyond the NMS threshold, which one stays.
    """
    free = set(range(len(boxes)))
    for row, box in enumerate(golden):
        near = [other for other in free if abs(scores[other] - scores[row]) < 1e-6]
        chosen = min(near, key=lambda other: np.abs(boxes[other] - box).max())
        free.remove(chosen)
        tied = len(near) > 1 or np.sum(np.abs(scores - scores[row]) < 1e-6) > 1
        same = np.abs(boxes[chosen] - box).max() <= BOX_TOLERANCE
        assert same or (tied and box_ious(boxes[chosen][None], box[None])[0, 0] > NMS_THRESHOLD)


def test_a_whole_run_leaves_the_originals_proposals(rpn, whole):
    _assert_same_proposals(read_pickle(whole / "rpn_proposals.pkl"), read_pickle(rpn[2] / "rpn" / "rpn_proposals.pkl"))


@pytest.mark.parametrize("index", range(3))
def test_a_range_run_leaves_the_originals_range_file(rpn, ranges, index):
    name = "rpn_proposals_range_{}_{}.pkl".format(*RANGES[index])
    _assert_same_proposals(read_pickle(ranges[index] / name), read_pickle(rpn[2] / "rpn_3way" / name))


def test_joined_ranges_are_the_whole_run(whole, ranges, tmp_path):
    run("merge", *reversed(ranges), "-o", tmp_path / "joined")
    assert (tmp_path / "joined" / "rpn_proposals.pkl").read_bytes() == (whole / "rpn_proposals.pkl").read_bytes()


def test_recall_is_the_originals(rpn, whole):
    _, data, golden = rpn
    run("evaluate", whole, *data)
    measured = json.loads((whole / "metrics.json").read_text())["coco_cc12"]["box_proposal"]
    expected = json.loads((golden / "rpn" / "metrics.json").read_text())["recall"]["coco_cc12"]["box_proposal"]
    assert measured == pytest.approx(expected, abs=1e-9)


def test_recall_of_the_originals_own_file(rpn, tmp_path):
    _, data, golden = rpn
    run("evaluate", golden / "rpn" / "rpn_proposals.pkl", *data, "-o", tmp_path)
    measured = json.loads((tmp_path / "metrics.json").read_text())["coco_cc12"]["box_proposal"]
    expected = json.loads((golden / "rpn" / "metrics.json").read_text())["recall"]["coco_cc12"]["box_proposal"]
    assert measured == pytest.approx(expected, abs=1e-12)


def test_result_pickles_need_nothing_newer_than_detectron_had(whole):
    content = (whole / "rpn_proposals.pkl").read_bytes()
    assert b"numpy._core" not in content
    assert pickle.loads(content, encoding="latin1")["ids"]
    assert content[:2] == b"\x80\x02"
