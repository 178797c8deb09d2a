from __future__ import annotations

import numpy as np
import pytest
from golden_cases import golden_cases
from operator_forms import FORMS

from roiline.ops.box_voting import BoxVoting
from roiline.ops.detection_output import DETECTION_OUTPUT, box_results, limit_detections
from roiline.ops.soft_nms import SoftNms

CLIP = float(np.log(1000.0 / 16.0))
CASES = golden_cases("detectron_py", "box_results_with_nms_and_limit")
RULES = {"score_thresh": 0.05, "nms_thresh": 0.3, "max_dets": 100}


def _rules(args: dict) -> dict:
    return {"score_thresh": args["SCORE_THRESH"], "nms_thresh": args["NMS"], "max_dets": args["DETECTIONS_PER_IM"]}


def _options(args: dict) -> dict:
    soft, vote = args["SOFT_NMS"], args["BBOX_VOTE"]
    return {
        "soft": SoftNms(soft["METHOD"], soft["SIGMA"]) if soft["ENABLED"] else None,
        "voting": BoxVoting(vote["VOTE_TH"], vote["SCORING_METHOD"]) if vote["ENABLED"] else None,
    }


def _check(case, boxes: np.ndarray, scores: np.ndarray, classes: np.ndarray, atol: float) -> None:
    expected_scores, expected_boxes, *per_class = case.outputs
    np.testing.assert_allclose(scores, expected_scores, atol=1e-7, rtol=0)
    np.testing.assert_allclose(boxes, expected_boxes, atol=atol, rtol=0)
    assert np.bincount(classes, minlength=len(per_class) + 1)[1:].tolist() == [len(rows) for rows in per_class]


@pytest.mark.golden
@pytest.mark.parametrize("case", CASES)
def test_box_results_match_detectron(case):
    scores, boxes = case.inputs
    got = box_results(scores, boxes, **_rules(case.args), **_options(case.args))
    _check(case, *got, atol=0)


@pytest.mark.golden
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("case", [case for case in CASES if not case.id or not case.id.endswith("_002")])
def test_hard_nms_and_limit_match_detectron(form, case):
    # The original was given decoded boxes that differ by class: each becomes an RoI of its own that scores in its class only.
    assert not case.args["SOFT_NMS"]["ENABLED"]
    scores, boxes = case.inputs
    rows, classes = scores.shape
    own = np.eye(classes, dtype=np.float32)[1:]
    cls_prob = (scores[:, None] * own[None]).reshape(-1, classes)
    rois = np.insert(boxes.reshape(rows, classes, 4)[:, 1:].reshape(-1, 4), 0, 0, axis=1)
    arrays = (
        rois,
        cls_prob,
        np.zeros((len(rois), 8), np.float32),
        np.array([[1e4, 1e4, 1]], np.float32),
        np.array([[1e4, 1e4]], np.float32),
        np.array([len(rois)], np.int64),
    )
    got = FORMS[form](
        DETECTION_OUTPUT,
        arrays,
        **_rules(case.args),
        bbox_reg_weights=(1.0, 1.0, 1.0, 1.0),
        class_agnostic=1,
        delta_clip=CLIP,
    )
    assert got[3].tolist() == [got[0].shape[1]]
    _check(case, *(array[0] for array in got[:3]), atol=1e-4)


def _row_of_boxes(scores: list[float]) -> tuple[np.ndarray, np.ndarray]:
    boxes = np.array([[20 * i, 0, 20 * i + 9, 9] * 2 for i in range(len(scores))], np.float32)
    return np.array([[1 - score, score] for score in scores], np.float32), boxes


def test_the_threshold_is_strict_and_rows_keep_their_order():
    boxes, scores, classes = box_results(*_row_of_boxes([0.05, 0.3, 0.9]), **RULES)
    assert boxes[:, 0].tolist() == [20, 40]
    assert scores.tolist() == [np.float32(0.3), np.float32(0.9)]
    assert classes.tolist() == [1, 1]


@pytest.mark.parametrize(("max_dets", "count"), [(2, 3), (3, 3), (1, 1), (0, 4), (-1, 4)])
def test_equal_scores_at_the_limit_all_stay(max_dets, count):
    scores = np.array([0.5, 0.9, 0.5, 0.1], np.float32)
    kept = limit_detections(np.zeros((4, 4), np.float32), scores, np.ones(4, np.int64), max_dets=max_dets)
    assert len(kept[1]) == count


def test_soft_nms_comes_in_the_order_of_choice_and_voting_refines():
    cls_prob, boxes = _row_of_boxes([0.3, 0.9])
    cls_prob, boxes = np.repeat(cls_prob, 2, axis=0), np.repeat(boxes, 2, axis=0)
    boxes[1::2, [2, 6]] += 2
    soft, scores, _ = box_results(cls_prob, boxes, **RULES, soft=SoftNms("linear"))
    assert (np.diff(scores) <= 0).all()
    assert len(soft) == 4
    voted, _, _ = box_results(cls_prob, boxes, **RULES, voting=BoxVoting(0.5))
    assert voted[:, 2].tolist() == [10, 30]


def test_no_rois_and_no_detections():
    for rows in (0, 3):
        boxes, scores, classes = box_results(np.zeros((rows, 3), np.float32), np.zeros((rows, 12), np.float32), **RULES)
        assert boxes.shape == (0, 4)
        assert scores.shape == classes.shape == (0,)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("later_first", "kept"), [(0, 0), (1, 2)])
def test_of_equal_detections_the_convention_says_which_stays(form, later_first, kept):
    rois = np.array([[0, 10, 10, 50, 50], [0, 80, 80, 99, 99], [0, 12, 10, 52, 50]], np.float32)
    probabilities = np.array([[0.2, 0.8], [0.2, 0.8], [0.2, 0.8]], np.float32)
    boxes, _, _, count = FORMS[form](
        DETECTION_OUTPUT,
        (
            rois,
            probabilities,
            np.zeros((3, 8), np.float32),
            np.array([[100, 100, 1]], np.float32),
            np.array([[100, 100]], np.float32),
            np.array([3]),
        ),
        score_thresh=0.05,
        nms_thresh=0.5,
        max_dets=100,
        bbox_reg_weights=(10.0, 10.0, 5.0, 5.0),
        delta_clip=4.0,
        later_first=later_first,
    )
    assert count.tolist() == [2]
    assert rois[kept, 1:].tolist() in boxes[0].tolist()
