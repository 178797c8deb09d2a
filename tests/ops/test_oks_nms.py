"""OKS NMS against COCO's formula written out, and its order."""

from __future__ import annotations

import math

import numpy as np
import pytest

from roiline.core.errors import DataError
from roiline.ops.oks_nms import COCO_SIGMAS, compute_oks, nms_oks


def _similarity(first, second, box):
    area = (box[2] - box[0] + 1) * (box[3] - box[1] + 1)
    total = 0.0
    for joint, sigma in enumerate(COCO_SIGMAS):
        distance = (first[0, joint] - second[0, joint]) ** 2 + (first[1, joint] - second[1, joint]) ** 2
        total += math.exp(-distance / (2 * (2 * sigma) ** 2 * area))
    return total / len(COCO_SIGMAS)


def _scattered_persons(count, scatter):
    random = np.random.default_rng(count)
    keypoints = random.normal(0, scatter, (count, 4, 17)) + random.uniform(0, 90, (1, 4, 17))
    boxes = np.tile(np.array([[0, 0, 99, 79]]), (count, 1)) + random.uniform(-5, 5, (count, 4))
    return keypoints.astype(np.float32), boxes.astype(np.float32)


def test_similarity_is_cocos():
    keypoints, boxes = _scattered_persons(6, 8)
    area = float((boxes[0, 2] - boxes[0, 0] + 1) * (boxes[0, 3] - boxes[0, 1] + 1))
    expected = [_similarity(keypoints[0].astype(float), other.astype(float), boxes[0]) for other in keypoints]
    np.testing.assert_allclose(compute_oks(keypoints[0], area, keypoints, COCO_SIGMAS), expected, rtol=1e-5)
    assert expected[0] == 1


@pytest.mark.parametrize("scatter", [3, 12, 40])
def test_similar_persons_go_and_the_rest_comes_by_mean_logit(scatter):
    keypoints, boxes = _scattered_persons(30, scatter)
    left = sorted(range(30), key=lambda row: -keypoints[row, 2].mean())
    expected = []
    while left:
        best = left.pop(0)
        expected.append(best)
        left = [row for row in left if _similarity(keypoints[best].astype(float), keypoints[row], boxes[best]) <= 0.3]
    assert nms_oks(keypoints, boxes).tolist() == expected
    assert 1 <= len(expected) <= 30


def test_a_threshold_of_one_keeps_all():
    keypoints, boxes = _scattered_persons(12, 5)
    assert sorted(nms_oks(keypoints, boxes, threshold=1.0)) == list(range(12))


def test_no_detections():
    assert nms_oks(np.zeros((0, 4, 17), np.float32), np.zeros((0, 4), np.float32)).shape == (0,)


def test_another_number_of_keypoints_is_refused():
    with pytest.raises(DataError, match="17 keypoints, the model has 5"):
        nms_oks(np.zeros((2, 4, 5), np.float32), np.zeros((2, 4), np.float32))
