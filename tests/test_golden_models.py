"""Every golden whole-model case through the public API: export, open, answer, in one process."""

from __future__ import annotations

import numpy as np
import pytest
from model_cases import BOX_TOLERANCE, SCORE_TOLERANCE, assert_same_detections, assert_same_proposals, build_case
from shared_data import shared_files

import roiline
from roiline.core.rle import decode_rle
from roiline.infer.pictures import read_picture

pytestmark = pytest.mark.golden

AS_SETS = {"cascade_R50_FPN_stage2_b", "opt_rpn_topn_b", "rpn_R50_FPN_anchors_b"}
"""Scores that are equal in the original: the data's own readme asks to compare these as sets."""
KEYPOINT_TOLERANCE = 0.05
MOST_MASK_PIXELS = 2


def _cases() -> list[object]:
    found = [*shared_files("golden/e2e/*.json"), *shared_files("golden/e2e_more/*.json")]
    return [case for case in found if case.id != "stability"]


def _answer(description, folder):
    """Returns the case and what the exported model answers."""
    case = build_case(description, folder)
    model = folder / f"{case.name}.onnx"
    roiline.export_detectron(case.cfg, case.weights, model, overrides=case.overrides)
    with roiline.open(model) as opened:
        picture = read_picture(case.picture)
        if opened.spec.tasks == ("proposals",):
            return case, opened.propose(picture)
        given = case.expected.get("box_proposals")
        return case, opened.detect(picture, given) if given is not None else opened.detect(picture)


@pytest.mark.parametrize("description", _cases())
def test_the_model_answers_like_the_original(description, tmp_path):
    case, answer = _answer(description, tmp_path)
    if "proposal_boxes" in case.expected:
        expected = case.expected["proposal_boxes"], case.expected["proposal_scores"].reshape(-1)
        if case.name in AS_SETS:
            _assert_same_set(np.column_stack([*expected, np.zeros(len(expected[1]))]), answer.boxes, answer.scores)
        else:
            assert_same_proposals(expected, answer.boxes, answer.scores)
        return
    rows = case.expected["dets_x1y1x2y2_score_class"]
    if case.name in AS_SETS:
        _assert_same_set(rows, answer.boxes, answer.scores)
        return
    assert_same_detections(rows, answer.boxes, answer.scores, answer.classes)
    if case.info.get("segms_rle"):
        _assert_same_masks(case.info["segms_rle"], answer)
    if "keypoints_xyls" in case.expected and len(case.expected["keypoints_xyls"]):
        _assert_same_keypoints(case.expected["keypoints_xyls"], answer)


def _assert_same_set(rows, boxes, scores):
    assert len(rows) == len(scores)
    free = set(range(len(scores)))
    for row in rows:
        best = min(free, key=lambda index: np.abs(boxes[index] - row[:4]).max() + abs(scores[index] - row[4]))
        free.remove(best)
        np.testing.assert_allclose(boxes[best], row[:4], atol=BOX_TOLERANCE, rtol=0)
        np.testing.assert_allclose(scores[best], row[4], atol=SCORE_TOLERANCE, rtol=0)


def _assert_same_masks(expected, answer):
    assert len(expected) == len(answer.masks)
    for (label, (height, width), counts), ours, own in zip(expected, answer.masks, answer.classes, strict=True):
        assert label == own
        assert (height, width) == answer.size_hw
        if counts.encode() == ours:
            continue
        theirs, mine = decode_rle(counts, height, width), decode_rle(ours, height, width)
        union = np.logical_or(theirs, mine).sum()
        assert (
            np.logical_xor(theirs, mine).sum() <= MOST_MASK_PIXELS or np.logical_and(theirs, mine).sum() / union > 0.99
        )


def _assert_same_keypoints(expected, answer):
    assert answer.keypoints.shape[0] >= len(expected)
    ours = answer.keypoints[answer.classes == 1]
    np.testing.assert_allclose(ours[:, :2], expected[:, :2], atol=KEYPOINT_TOLERANCE, rtol=0)


def test_sets_are_compared_strictly():
    rows = np.array([[0, 0, 10, 10, 0.5, 1], [5, 5, 20, 20, 0.5, 1]])
    _assert_same_set(rows, rows[::-1, :4].copy(), rows[::-1, 4].copy())
    with pytest.raises(AssertionError):
        _assert_same_set(rows, rows[:, :4] + 1, rows[:, 4])
