"""What the chains of kernels promise beyond what all forms share: bits, capacity, ties at the limit, padding."""

from __future__ import annotations

import numpy as np
import pytest
from operator_forms import FORMS, need_host_compiler, run_lowered

from roiline.ops.box_with_nms_limit import BOX_WITH_NMS_LIMIT
from roiline.ops.collect_proposals import COLLECT_PROPOSALS
from roiline.ops.detection_lists import SPARE_ROWS
from roiline.ops.detection_output import DETECTION_OUTPUT
from roiline.ops.generate_proposals import GENERATE_PROPOSALS
from roiline.ops.kernel_host import run_on_host
from roiline.ops.retinanet_candidates import RETINANET_CANDIDATES
from roiline.ops.retinanet_output import RETINANET_OUTPUT
from roiline.ops.retinanet_output.lowering import LABEL_CANDIDATES

DETECTION_RULES = {
    "score_thresh": 0.05,
    "nms_thresh": 0.5,
    "max_dets": 100,
    "bbox_reg_weights": (10.0, 10.0, 5.0, 5.0),
    "delta_clip": 4.0,
}
TORCHVISION = {"size_offset": 0.0, "corner_offset": 0.0, "nms_inclusive": 0, "network_frame": 1, "ranked": 1}
PROPOSAL_RULES = {"pre_nms_top_n": 200, "post_nms_top_n": 50, "nms_thresh": 0.6, "delta_clip": 4.0}
INFO = np.array([[480, 640, 1.6]], np.float32)
SIZE = np.array([[300, 400]], np.float32)


def _assert_same_bits(operator, feed, **attributes):
    expected = FORMS["reference"](operator, feed, **attributes)
    got = FORMS["kernels"](operator, feed, **attributes)
    for name, array, other in zip(operator.outputs, got, expected, strict=True):
        assert (array.dtype, array.shape) == (other.dtype, other.shape), name
        np.testing.assert_array_equal(array, other, err_msg=name)


def _without_growth(deltas: np.ndarray, *, axis: int) -> np.ndarray:
    """Returns deltas that move boxes and do not change their sides: the exponential is the one step whose last bit is a library's own."""
    kept = np.arange(deltas.shape[axis]) % 4 < 2
    return deltas * kept.reshape([-1 if at == axis else 1 for at in range(deltas.ndim)]).astype(np.float32)


def _detection_feed(rois: int, classes: int, *, spread: float = 8.0, seed: int = 0) -> tuple[np.ndarray, ...]:
    """Returns one picture's RoIs around a few objects."""
    rng = np.random.default_rng([rois, classes, seed])
    objects = rng.uniform(20, 400, (6, 2))[rng.integers(0, 6, rois)]
    low = np.maximum(objects + rng.normal(0, spread, (rois, 2)), 0)
    boxes = np.concatenate([low, low + rng.uniform(60, 70, (rois, 2))], axis=1)
    return (
        np.insert(boxes, 0, 0, axis=1).astype(np.float32),
        np.round(rng.uniform(0.06, 1, (rois, classes)), 3).astype(np.float32),
        _without_growth(rng.normal(0, 0.2, (rois, 4 * classes)).astype(np.float32), axis=1),
        INFO,
        SIZE,
        np.array([rois], np.int64),
    )


@pytest.mark.parametrize(
    "rules",
    [
        {},
        {"class_agnostic": 1},
        {"later_first": 1},
        {"final_clip": 1, "size_offset": 0.0, "corner_offset": 0.0},
        TORCHVISION,
        {**TORCHVISION, "regress": 0, "max_dets": 0},
    ],
    ids=["detectron", "class_agnostic", "later_first", "final_clip", "torchvision", "no_regression"],
)
def test_detections_have_the_bits_of_the_reference(rules):
    _assert_same_bits(DETECTION_OUTPUT, _detection_feed(60, 5), **{**DETECTION_RULES, **rules})


@pytest.mark.parametrize("rules", [{}, {"min_size": 16.0, "min_size_in_network": 1}, {"size_offset": 0.0}])
@pytest.mark.parametrize("special", [False, True])
def test_proposals_have_the_bits_of_the_reference(rules, special):
    rng = np.random.default_rng(5)
    scores = np.round(rng.uniform(0, 1, (2, 3, 12, 15)), 2).astype(np.float32)
    if special:
        scores[:, 1, 3] = np.nan
        scores[:, 2, 5] = np.inf
        scores[:, 0, 7] = -0.0
    feed = (
        scores,
        _without_growth(rng.normal(0, 0.5, (2, 12, 12, 15)).astype(np.float32), axis=1),
        np.array([[190, 230, 0.8], [170, 240, 1.3]], np.float32),
        np.array([[-22, -10, 25, 13], [-14, -14, 17, 17], [-10, -22, 13, 25]], np.float32),
        np.array([16, 16], np.float32),
    )
    _assert_same_bits(GENERATE_PROPOSALS, feed, **{**PROPOSAL_RULES, "pre_nms_top_n": 0, **rules})


@pytest.mark.parametrize("top_n", [0, 9, 1000])
def test_what_is_not_finite_is_not_collected(top_n):
    rng = np.random.default_rng(6)
    levels = [rng.uniform(0, 99, (2, rows, 4)).astype(np.float32) for rows in (30, 12)]
    scores = [np.round(rng.uniform(0, 1, (2, rows)), 1).astype(np.float32) for rows in (30, 12)]
    scores[0][:, 3] = np.nan
    scores[1][0, 5] = np.inf
    scores[1][1, 6:] = -np.inf
    _assert_same_bits(COLLECT_PROPOSALS, (*levels, *scores), post_nms_top_n=top_n)


@pytest.mark.parametrize("rules", [{}, {"network_frame": 1, "first_class": 0}, {"clip": 0}])
def test_retinanet_candidates_have_the_bits_of_the_reference(rules):
    rng = np.random.default_rng(7)
    cells = ((9, 11), (5, 6))
    feed = (
        *(np.round(rng.uniform(0, 1, (2, 3 * 7, *at)), 2).astype(np.float32) for at in cells),
        *(_without_growth(rng.normal(0, 0.6, (2, 12, *at)).astype(np.float32), axis=1) for at in cells),
        rng.uniform(-30, 30, (2, 3, 4)).astype(np.float32),
        np.repeat(INFO, 2, axis=0),
        np.repeat(SIZE, 2, axis=0),
        np.array([[15.5, 16], [31, 32.5]], np.float32),
    )
    _assert_same_bits(
        RETINANET_CANDIDATES, feed, strides=(16.0, 32.0), pre_nms_top_n=1500, **{"delta_clip": 4.0, **rules}
    )


def test_80_classes_of_1000_rois_are_all_candidates():
    feed = _detection_feed(1000, 81, spread=3.0)
    assert (feed[1] > DETECTION_RULES["score_thresh"]).all()
    _assert_same_bits(DETECTION_OUTPUT, feed, **DETECTION_RULES)


@pytest.mark.parametrize("max_dets", [0, 100])
@pytest.mark.parametrize("ranked", [0, 1])
def test_no_limit_and_no_suppression_keep_everything(max_dets, ranked):
    feed = _detection_feed(60, 41)
    rules = {**DETECTION_RULES, "nms_thresh": 1.0, "nms_inclusive": 0, "max_dets": max_dets, "ranked": ranked}
    boxes, *_, count = FORMS["kernels"](DETECTION_OUTPUT, feed, **rules)
    assert count[0] == boxes.shape[1] >= (max_dets or 60 * 40)
    _assert_same_bits(DETECTION_OUTPUT, feed, **rules)


def test_5000_candidates_of_80_classes_suppress_within_their_class():
    rng = np.random.default_rng(8)
    low = rng.uniform(0, 300, (1, 5000, 2))
    boxes = np.concatenate([low, low + rng.uniform(5, 90, (1, 5000, 2))], axis=2).astype(np.float32)
    scores = np.round(rng.uniform(0, 1, (1, 5000)), 3).astype(np.float32)
    classes, levels = rng.integers(1, 81, (1, 5000)), np.sort(rng.integers(0, 5, (1, 5000)), axis=1)
    rules = {"num_classes": 81, "score_thresh": 0.05, "nms_thresh": 0.5, "max_dets": 100}
    _assert_same_bits(RETINANET_OUTPUT, (boxes, scores, classes, levels), **rules)


@pytest.mark.parametrize("max_dets", [0, 30])
def test_caffe2_limits_have_the_bits_of_the_reference(max_dets):
    feed = _detection_feed(90, 9)
    rows = feed[1], np.tile(feed[0][:, 1:], (1, 9))
    _assert_same_bits(BOX_WITH_NMS_LIMIT, rows, nms_thresh=0.5, max_dets=max_dets)
    splits = np.array([40, 0, 50], np.float32)
    _assert_same_bits(BOX_WITH_NMS_LIMIT, (*rows, splits), nms_thresh=0.5, max_dets=max_dets)


def _apart(scores: list[float]) -> tuple[np.ndarray, ...]:
    """Returns RoIs of one picture that do not overlap, and their scores in the one class."""
    rows = len(scores)
    low = np.stack([np.arange(rows) % 25 * 16, np.arange(rows) // 25 * 16], axis=1).astype(np.float32)
    rois = np.concatenate([np.zeros((rows, 1), np.float32), low, low + 9], axis=1)
    probabilities = np.array([[1 - score, score] for score in scores], np.float32)
    return rois, probabilities, np.zeros((rows, 8), np.float32), np.array([[480, 640, 1]], np.float32)


@pytest.mark.parametrize("equal", [3, SPARE_ROWS - 1, SPARE_ROWS, 70])
def test_more_equal_scores_than_there_is_room_for_are_counted(equal):
    feed = (*_apart([0.5] * equal + [0.4] * 40), np.array([[480, 640]], np.float32), np.array([equal + 40]))
    rules = {**DETECTION_RULES, "max_dets": 3}
    for final_clip in (0, 1):
        boxes, scores, _, count = run_lowered(DETECTION_OUTPUT, feed, **rules, final_clip=final_clip)
        assert count.tolist() == [equal], "the true number, so that whoever cuts the padding sees what is missing"
        assert boxes.shape == (1, SPARE_ROWS, 4)
        assert (scores[0, :equal] == 0.5).all()
    if equal <= SPARE_ROWS:
        _assert_same_bits(DETECTION_OUTPUT, feed, **rules)


def test_rows_of_another_picture_or_of_none_never_count():
    rois, probabilities, deltas, info = _apart([0.9, 0.8, 0.7, 0.6, 0.5, 0.4])
    rois[:, 0] = [0, -1, -1, 1, 1, -1]
    rois[[1, 2, 5], 1:] = np.nan
    probabilities[[2, 5]] = np.nan
    feed = rois, probabilities, deltas, np.repeat(info, 2, axis=0), np.repeat(info[:, :2], 2, axis=0), np.array([1, 2])
    _, scores, classes, count = run_lowered(DETECTION_OUTPUT, feed, **DETECTION_RULES)
    assert count.tolist() == [1, 2]
    assert scores[0, :1].tolist() == [np.float32(0.9)]
    assert scores[1, :2].tolist() == [np.float32(0.6), np.float32(0.5)]
    assert (classes.sum(axis=1) == count).all()
    assert np.isneginf(scores[0, 1:]).all()


@pytest.mark.parametrize("entries", [0, 1, 9, 700])
def test_candidates_are_labelled_alike_by_one_thread_and_by_many(entries):
    need_host_compiler()
    rng = np.random.default_rng(entries)
    shape = (3, entries)
    feed = rng.uniform(0, 1, shape).astype(np.float32), rng.integers(-1, 6, shape), rng.integers(0, 4, shape)
    rules = {"num_classes": 5, "score_thresh": 0.7, "coarsest_score_thresh": 0.2}
    alone = run_on_host(LABEL_CANDIDATES, feed, rules, threads=1)
    together = run_on_host(LABEL_CANDIDATES, feed, rules, threads=8)
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_array_equal(one, other)
    threshold = np.where(feed[2] == feed[2].max(axis=1, initial=0)[:, None], np.float32(0.2), np.float32(0.7))
    counts = (feed[0] > threshold) & (feed[1] >= 1) & (feed[1] < 5)
    np.testing.assert_array_equal(alone[1][:, 0], np.where(counts, feed[1], 0))
