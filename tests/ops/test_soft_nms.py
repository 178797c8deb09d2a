from __future__ import annotations

import numpy as np
import pytest
from golden_cases import golden_cases

from roiline.core.errors import ConfigError
from roiline.ops.soft_nms import SoftNms, soft_nms


@pytest.mark.golden
@pytest.mark.parametrize("case", golden_cases("detectron_py", "soft_nms"))
def test_matches_detectron(case):
    (dets,), (expected, rows), args = case.inputs, case.outputs, case.args
    rule = SoftNms(args["method"], args["sigma"], args["score_thresh"])
    scores, kept = soft_nms(dets[:, :4], dets[:, 4], rule, overlap_thresh=args["overlap_thresh"])
    np.testing.assert_array_equal(kept, rows)
    np.testing.assert_allclose(scores, expected[:, 4], atol=1e-7, rtol=0)


@pytest.mark.parametrize("method", ["linear", "gaussian", "hard"])
def test_no_box_gives_no_box(method):
    scores, kept = soft_nms(np.zeros((0, 4), np.float32), np.zeros(0, np.float32), SoftNms(method), overlap_thresh=0.5)
    assert scores.shape == kept.shape == (0,)


def test_a_weak_box_apart_stays_unless_distant_ones_are_dropped():
    boxes = np.array([[0, 0, 9, 9], [50, 50, 59, 59]], np.float32)
    scores = np.array([0.9, 0.01], np.float32)
    rule = SoftNms("linear", score_thresh=0.1)
    assert soft_nms(boxes, scores, rule, overlap_thresh=0.3)[1].tolist() == [0, 1]
    assert soft_nms(boxes, scores, rule, overlap_thresh=0.3, drop_distant=True)[1].tolist() == [0]


def test_scores_decay_by_the_overlap():
    boxes = np.array([[0, 0, 9, 9], [0, 0, 9, 4], [30, 30, 39, 39]], np.float32)
    scores = np.array([0.8, 0.6, 0.5], np.float32)
    linear, order = soft_nms(boxes, scores, SoftNms("linear"), overlap_thresh=0.3)
    assert order.tolist() == [0, 2, 1]
    np.testing.assert_allclose(linear, [0.8, 0.5, 0.3], rtol=1e-6)
    gaussian, _ = soft_nms(boxes, scores, SoftNms("gaussian", sigma=0.5), overlap_thresh=0.3)
    np.testing.assert_allclose(gaussian, [0.8, 0.5, 0.6 * np.exp(-0.5)], rtol=1e-6)


def test_the_place_of_a_dropped_box_is_taken_by_the_last():
    boxes = np.array([[0, 0, 9, 9], [0, 0, 9, 9], [30, 0, 39, 9], [60, 0, 69, 9]], np.float32)
    scores = np.array([0.9, 0.8, 0.5, 0.5], np.float32)
    _, order = soft_nms(boxes, scores, SoftNms("hard"), overlap_thresh=0.5)
    assert order.tolist() == [0, 3, 2]


def test_input_is_left_alone():
    boxes, scores = np.zeros((3, 4), np.float32), np.full(3, 0.5, np.float32)
    soft_nms(boxes, scores, SoftNms("linear"), overlap_thresh=0.3)
    assert scores.tolist() == [0.5] * 3


def test_an_unknown_method_is_refused():
    with pytest.raises(ConfigError, match="linear, gaussian, hard, not 'cubic'; set TEST"):
        SoftNms("cubic")
