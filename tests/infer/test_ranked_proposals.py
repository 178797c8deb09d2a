"""Proposals given to a model that takes them as detectron2 does: by score, scaled by both ratios, clipped, without empty ones."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from roiline.core.errors import DataError
from roiline.core.spec import GivenProposals
from roiline.core.structures import RoidbEntry
from roiline.infer.given_proposals import stack_clipped_rois
from roiline.infer.proposal_files import read_proposal_file
from roiline.infer.run_proposals import load_given_proposals

BOXES = np.array([[10, 10, 30, 40], [0, 0, 5, 5], [0, 0, 5, 5], [90, 90, 120, 95]], np.float32)
LOGITS = np.array([-2.0, 3.0, 0.5, 1.0], np.float32)
RULE = GivenProposals(limit=2, dedup=0.0, network_frame=True)


def write(folder, **changes):
    content = {"boxes": [BOXES], "objectness_logits": [LOGITS], "ids": [7], "bbox_mode": 0, **changes}
    path = folder / "proposals.pkl"
    path.write_bytes(pickle.dumps({key: value for key, value in content.items() if value is not None}))
    return path


def test_a_file_of_detectron2(tmp_path):
    entry = RoidbEntry(7, tmp_path / "a.jpg", 100, 100)
    (boxes,) = load_given_proposals(write(tmp_path), [entry], RULE)
    np.testing.assert_array_equal(boxes, BOXES[[1, 3, 2, 0]])  # nothing is dropped, clipped or limited yet


def test_boxes_with_sizes_become_corners(tmp_path):
    found = read_proposal_file(write(tmp_path, bbox_mode=1))
    np.testing.assert_array_equal(found.boxes[0][0], [10, 10, 40, 50])
    with pytest.raises(DataError, match="bbox_mode"):
        read_proposal_file(write(tmp_path, bbox_mode=4))


def test_files_without_scores_are_none(tmp_path):
    with pytest.raises(DataError, match="expected a proposal file"):
        read_proposal_file(write(tmp_path, objectness_logits=None))


def test_rows_in_network_pixels():
    sizes, network = np.array([[100, 100], [50, 80]], np.float32), np.array([[50, 200], [100, 160]], np.float32)
    given = stack_clipped_rois([BOXES, BOXES[3:]], sizes, network, RULE)
    np.testing.assert_allclose(
        given.rois, [[0, 20, 5, 60, 20], [0, 0, 0, 10, 2.5]]
    )  # two of the first, none of the second
    np.testing.assert_array_equal(given.roi_count, [2, 0])
    np.testing.assert_array_equal(given.roi_index, [0, 1])


def test_no_limit_and_no_boxes():
    size = np.array([[100, 100]], np.float32)
    everything = stack_clipped_rois([BOXES], size, size, GivenProposals(0, 0.0, network_frame=True))
    assert len(everything.rois) == 4
    assert everything.rois[3].tolist() == [0, 90, 90, 100, 95]
    assert len(stack_clipped_rois([BOXES[:0]], size, size, RULE).rois) == 0
