from __future__ import annotations

import itertools

import numpy as np
import pytest
from operator_forms import FORMS, need_host_compiler

from roiline.ops.generate_proposals import GENERATE_PROPOSALS
from roiline.ops.kernel_host import run_on_host
from roiline.ops.mask_suppression import SCAN_MASK, SUPPRESSION_MASK
from roiline.ops.suppression import suppress_boxes

RULE = {"threshold": 0.5, "plus_one": 1.0, "inclusive": 1, "one_empty_box": 0}


def _keep(
    boxes: np.ndarray, labels: np.ndarray, limit: int = 0, *, threads: int = 1, **rule: float
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the kept rows (N, C, P) and their counts (N, C) of boxes in visiting order."""
    need_host_compiler()
    (mask,) = run_on_host(SUPPRESSION_MASK, [boxes, labels], {**RULE, **rule})
    kept, counts, _ = run_on_host(SCAN_MASK, [mask, labels], {"limit": limit}, threads=threads)
    return kept, counts


def _expected(boxes: np.ndarray, labels: np.ndarray, limit: int = 0, **rule: float) -> list[int]:
    """Returns the kept rows of one list, label by label suppressed by the reference."""
    options = {**RULE, **rule}
    options.update(inclusive=bool(options["inclusive"]), one_empty_box=bool(options["one_empty_box"]))
    rows: list[int] = []
    for label in np.unique(labels[labels > 0]):
        (own,) = np.nonzero(labels == label)
        falling = np.arange(len(own), 0, -1, dtype=np.float32)
        rows += own[suppress_boxes(boxes[own], falling, **options)].tolist()
    return sorted(rows)[: limit if limit > 0 else None]


def _boxes(*shape: int) -> np.ndarray:
    """Returns whole-numbered boxes that overlap a lot, some of them without area."""
    rng = np.random.default_rng(shape)
    low = rng.integers(0, 60, (*shape, 2))
    return np.concatenate([low, low + rng.integers(0, 25, (*shape, 2))], axis=-1).astype(np.float32)


@pytest.mark.parametrize("threads", [1, 8])
@pytest.mark.parametrize("entries", [0, 1, 63, 64, 65, 300])
@pytest.mark.parametrize("limit", [0, 1, 20, 1000])
def test_keeps_what_the_reference_keeps(entries, limit, threads):
    boxes = _boxes(2, 3, entries)
    labels = np.random.default_rng(entries).integers(0, 3, (2, 3, entries)).astype(np.int32)
    kept, counts = _keep(boxes, labels, limit, threads=threads)
    assert kept.shape[2] == min(entries, limit or entries)
    for image, column in itertools.product(range(2), range(3)):
        expected = _expected(boxes[image, column], labels[image, column], limit)
        assert counts[image, column] == len(expected)
        assert kept[image, column].tolist() == expected + [-1] * (kept.shape[2] - len(expected))


@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("inclusive", [0, 1])
@pytest.mark.parametrize(("plus_one", "one_empty_box"), [(1.0, 0), (0.0, 0), (0.0, 1)])
def test_every_rule(threshold, inclusive, plus_one, one_empty_box):
    boxes, labels = _boxes(1, 1, 200), np.ones((1, 1, 200), np.int32)
    boxes[0, 0, 5] = np.nan
    boxes[0, 0, 11, 2] = np.inf
    rule = {"threshold": threshold, "inclusive": inclusive, "plus_one": plus_one, "one_empty_box": one_empty_box}
    with np.errstate(invalid="ignore"):
        expected = _expected(boxes[0, 0], labels[0, 0], **rule)
    kept, counts = _keep(boxes, labels, **rule)
    assert kept[0, 0, : counts[0, 0]].tolist() == expected


def test_an_overlap_at_the_threshold_of_the_original():
    boxes = np.array([[[[0, 0, 9, 9], [0, 0, 9, 4]]]], np.float32)
    labels = np.ones((1, 1, 2), np.int32)
    assert _keep(boxes, labels, inclusive=1)[1].tolist() == [[1]]
    assert _keep(boxes, labels, inclusive=0)[1].tolist() == [[2]]


def test_12000_candidates_of_51200_go_through_suppression():
    rng = np.random.default_rng(12)
    anchors = np.array([[-22, -10, 25, 13], [-14, -14, 17, 17]], np.float32)
    feed = (
        rng.uniform(0, 1, (1, 2, 160, 160)).astype(np.float32),
        rng.normal(0, 0.3, (1, 8, 160, 160)).astype(np.float32),
        np.array([[640, 640, 1.0]], np.float32),
        anchors,
        np.array([4, 4], np.float32),
    )
    rules = {"pre_nms_top_n": 12_000, "post_nms_top_n": 2000, "nms_thresh": 0.7, "delta_clip": 4.0}
    expected = FORMS["reference"](GENERATE_PROPOSALS, feed, **rules)
    got = FORMS["kernels"](GENERATE_PROPOSALS, feed, **rules)
    assert got[2].tolist() == expected[2].tolist()
    np.testing.assert_array_equal(got[1], expected[1])
    np.testing.assert_allclose(got[0], expected[0], rtol=0, atol=1e-4)
