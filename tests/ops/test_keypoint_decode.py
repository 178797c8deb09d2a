"""Keypoints of heatmaps: the original's answers, large boxes, and the scores of result files."""

from __future__ import annotations

import json
import pickle
import tracemalloc

import numpy as np
import pytest
from golden_cases import golden_cases
from shared_data import shared_path

from roiline.core.errors import ConfigError, DataError
from roiline.ops.keypoint_decode import decode_keypoints, score_keypoints


@pytest.mark.parametrize("case", golden_cases("detectron_py", "heatmaps_to_keypoints"))
def test_golden_keypoints(case):
    maps, boxes = case.inputs
    keypoints = decode_keypoints(maps, boxes, min_size=case.args["inference_min_size"])
    (expected,) = case.outputs
    assert keypoints.dtype == np.float32
    np.testing.assert_allclose(keypoints[:, :2], expected[:, :2], rtol=0, atol=1e-4)
    np.testing.assert_allclose(keypoints[:, 2:], expected[:, 2:], rtol=1e-5, atol=1e-7)


def test_the_peak_is_the_centre_of_its_cell():
    maps = np.full((1, 1, 8, 8), -5, np.float32)
    maps[0, 0, 2, 5] = 5
    keypoints = decode_keypoints(maps, np.array([[100, 50, 108, 58]], np.float32))
    np.testing.assert_allclose(keypoints[0, :3, 0], [105.5, 52.5, 5])
    assert keypoints[0, 3, 0] == pytest.approx(1 / (1 + 63 * np.exp(-10)), rel=1e-6)


def test_maps_are_not_resized_below_the_least_size():
    maps = np.full((1, 1, 8, 8), -5, np.float32)
    maps[0, 0, 0, 7] = 5
    box = np.array([[0, 0, 2, 4]], np.float32)
    np.testing.assert_allclose(decode_keypoints(maps, box, min_size=8)[0, :2, 0], [7.5 * 2 / 8, 0.5 * 4 / 8])


def test_boxes_without_extent_are_one_pixel():
    keypoints = decode_keypoints(np.ones((1, 3, 8, 8), np.float32), np.array([[7, 9, 7, 9]], np.float32))
    np.testing.assert_allclose(keypoints[0, :, 0], [7.5, 9.5, 1, 1], rtol=1e-6)


def test_maps_of_large_boxes_are_resized_in_turn(monkeypatch):
    random = np.random.default_rng(0)
    maps = random.standard_normal((2, 17, 14, 14)).astype(np.float32)
    boxes = np.array([[3.5, 4, 160.2, 90], [0, 0, 31.5, 47]], np.float32)
    together = decode_keypoints(maps, boxes)
    monkeypatch.setattr("roiline.ops.keypoint_decode._MOST_CELLS_AT_ONCE", 1)
    in_turn = decode_keypoints(maps, boxes)
    np.testing.assert_allclose(in_turn[:, :2], together[:, :2], rtol=0, atol=1e-6)
    np.testing.assert_allclose(in_turn[:, 2:], together[:, 2:], rtol=1e-5)


def test_keypoints_of_a_box_of_12_megapixels_stay_below_300_megabytes():
    maps = np.zeros((1, 7, 56, 56), np.float32)
    for joint in range(7):
        maps[0, joint, joint + 1, 53 - joint] = 9
    tracemalloc.start()
    try:
        keypoints = decode_keypoints(maps, np.array([[0, 0, 4000, 3000]], np.float32))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 300e6
    cells = np.stack([53 - np.arange(7), np.arange(7) + 1])
    np.testing.assert_allclose(keypoints[0, :2], (cells + 0.5) * [[4000 / 56], [3000 / 56]], atol=1)


def test_no_detections():
    keypoints = decode_keypoints(np.zeros((0, 17, 56, 56), np.float32), np.zeros((0, 4), np.float32))
    assert keypoints.shape == (0, 4, 17)


@pytest.mark.parametrize(
    ("maps", "boxes", "message"),
    [
        (np.zeros((2, 3, 8, 8), np.float32), np.zeros((1, 4), np.float32), "expected maps"),
        (np.zeros((2, 8, 8), np.float32), np.zeros((2, 4), np.float32), "expected maps"),
        (np.zeros((1, 3, 8, 8), np.float32), np.full((1, 4), np.inf, np.float32), "not finite"),
    ],
)
def test_what_does_not_fit_is_refused(maps, boxes, message):
    with pytest.raises(DataError, match=message):
        decode_keypoints(maps, boxes)


@pytest.mark.parametrize("confidence", ["bbox", "logit", "prob"])
def test_golden_scores(confidence):
    folder = shared_path("golden/dataset/synth/kps")
    with (folder / "detections.pkl").open("rb") as stream:
        results = pickle.load(stream, encoding="latin1")
    keypoints = np.array([rows for cell in results["all_keyps"][1] for rows in cell])
    scores = np.concatenate([cell[:, 4] for cell in results["all_boxes"][1]])
    written = json.loads((folder / confidence / "keypoints_keypoints_coco_cc2_results.json").read_text())
    assert len(written) == len(keypoints)
    expected = np.array([record["score"] for record in written])
    np.testing.assert_allclose(score_keypoints(keypoints, scores, confidence), expected, rtol=0, atol=1e-6)


def test_an_unknown_confidence_is_refused():
    with pytest.raises(ConfigError, match="bbox, logit, prob, not 'area'"):
        score_keypoints(np.zeros((1, 4, 17), np.float32), np.zeros(1, np.float32), "area")
