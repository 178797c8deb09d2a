from __future__ import annotations

import numpy as np
import pytest
from golden_cases import golden_cases

from roiline.core.errors import ConfigError
from roiline.ops.box_voting import SCORING_METHODS, BoxVoting, vote_boxes, vote_score

SCORES = np.array([0.9, 0.6, 0.3], np.float32)
OVERLAPS = np.array([1.0, 0.9, 0.8], np.float32)


@pytest.mark.golden
@pytest.mark.parametrize("case", golden_cases("detectron_py", "box_voting"))
def test_matches_detectron(case):
    (kept, every), (expected,), args = case.inputs, case.outputs, case.args
    rule = BoxVoting(args["thresh"], args["scoring_method"], args["beta"])
    boxes, scores = vote_boxes(kept[:, :4], kept[:, 4], every[:, :4], every[:, 4], rule)
    np.testing.assert_array_equal(boxes, expected[:, :4])
    np.testing.assert_allclose(scores, expected[:, 4], atol=1e-7, rtol=0)


@pytest.mark.parametrize(
    ("method", "beta", "expected"),
    [
        ("AVG", 1.0, 0.6),
        ("IOU_AVG", 1.0, (0.9 + 0.54 + 0.24) / 2.7),
        ("GENERALIZED_AVG", 1.0, 0.6),
        ("GENERALIZED_AVG", 2.0, np.sqrt((0.81 + 0.36 + 0.09) / 3)),
        ("QUASI_SUM", 1.0, 0.6),
        ("QUASI_SUM", 0.5, 1.8 / np.sqrt(3)),
        ("TEMP_AVG", 1.0, 0.6),
        ("TEMP_AVG", 0.5, (0.81 / 0.82 + 0.36 / 0.52 + 0.09 / 0.58) / 3),
    ],
)
def test_scoring_methods(method, beta, expected):
    assert vote_score(SCORES, OVERLAPS, BoxVoting(0.5, method, beta)) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("method", SCORING_METHODS)
def test_one_voter_keeps_its_box_and_score(method):
    box, score = np.array([[1, 2, 8, 9]], np.float32), np.array([1.0], np.float32)
    boxes, scores = vote_boxes(box, score, box, score, BoxVoting(0.8, method))
    assert boxes.tolist() == box.tolist()
    assert scores.tolist() == [1.0]


def test_id_keeps_decayed_scores():
    box = np.array([[1, 2, 8, 9]], np.float32)
    _, scores = vote_boxes(box, np.array([0.2], np.float32), box, np.array([0.7], np.float32), BoxVoting(0.8))
    assert scores.tolist() == [np.float32(0.2)]


def test_nothing_kept_gives_nothing():
    none, no_scores = np.zeros((0, 4), np.float32), np.zeros(0, np.float32)
    boxes, scores = vote_boxes(none, no_scores, none, no_scores, BoxVoting(0.8, "AVG"))
    assert boxes.shape == (0, 4)
    assert scores.shape == (0,)


def test_an_unknown_method_is_refused():
    with pytest.raises(ConfigError, match="not 'MEDIAN'; set TEST"):
        BoxVoting(0.8, "MEDIAN")
