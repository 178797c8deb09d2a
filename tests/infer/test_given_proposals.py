"""Given proposals as network input, against Detectron's own RoI blobs where there are any."""

from __future__ import annotations

import json

import numpy as np
import pytest
from shared_data import shared_path

from roiline.core.spec import GivenProposals
from roiline.infer.given_proposals import stack_given_rois

RULE = GivenProposals(limit=2000, dedup=1 / 16)


def test_duplicates_run_once_and_come_back_by_the_index():
    boxes = np.array([[44, 44, 90, 90], [0, 0, 15, 15], [45, 44, 90, 91], [44, 44, 90, 90]], np.float32)
    given = stack_given_rois([boxes], [1.0], RULE)
    np.testing.assert_array_equal(given.rois, [[0, 0, 0, 15, 15], [0, 44, 44, 90, 90]])
    np.testing.assert_array_equal(given.roi_index, [1, 0, 1, 1])
    assert given.roi_count.tolist() == [4]


def test_rounding_is_half_to_even():
    boxes = np.array([[8, 0, 160, 160], [0, 0, 160, 160], [24, 0, 160, 160], [32, 0, 160, 160]], np.float32)
    given = stack_given_rois([boxes], [1.0], RULE)
    assert given.roi_index.tolist() == [0, 0, 1, 1]
    assert given.rois[:, 1].tolist() == [8, 24]


def test_without_a_factor_every_proposal_runs():
    boxes = np.ones((3, 4), np.float32) * 20
    given = stack_given_rois([boxes], [2.0], GivenProposals(limit=0, dedup=0.0))
    np.testing.assert_array_equal(given.rois, np.tile([[0, 40, 40, 40, 40]], (3, 1)))
    assert given.roi_index.tolist() == [0, 1, 2]


def test_a_batch_is_its_images_one_after_the_other():
    rng = np.random.default_rng(3)
    proposals = [np.sort(rng.random((n, 2, 2)) * 60, axis=1).reshape(n, 4).astype(np.float32) for n in (20, 0, 7)]
    scales = [1.6, 1.0, 0.7]
    joined = stack_given_rois(proposals, scales, RULE)
    assert joined.roi_count.tolist() == [20, 0, 7]
    expanded = joined.rois[joined.roi_index]
    start = 0
    for image, (boxes, scale) in enumerate(zip(proposals, scales, strict=True)):
        alone = stack_given_rois([boxes], [scale], RULE)
        rows = expanded[start : start + len(boxes)]
        start += len(boxes)
        np.testing.assert_array_equal(rows[:, 1:], alone.rois[alone.roi_index][:, 1:])
        assert (rows[:, 0] == image).all()


def test_no_proposals_at_all_have_their_types():
    given = stack_given_rois([np.zeros((0, 4), np.float32)], [1.0], RULE)
    assert (given.rois.shape, given.rois.dtype) == ((0, 5), np.float32)
    assert (given.roi_index.dtype, given.roi_count.tolist()) == (np.int64, [0])


@pytest.mark.parametrize(
    ("case", "factor"), [("e2e/fast_R50_FPN_small", 1 / 16), ("e2e_more/mask_fast_R50_C4_b", 0.125)]
)
def test_rois_are_bit_for_bit_the_originals(case, factor):
    path = shared_path(f"golden/{case}.npz")
    scale = json.loads(path.with_suffix(".json").read_text())["im_scale"]
    with np.load(path) as stored:
        proposals, expected = stored["box_proposals"].astype(np.float32), stored["blob/rois"]
    given = stack_given_rois([proposals], [scale], GivenProposals(1000, factor))
    np.testing.assert_array_equal(given.rois, expected)
    assert len(given.roi_index) == len(proposals)
