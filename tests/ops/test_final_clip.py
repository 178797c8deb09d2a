"""The last clip of detections: both forms alike, and what it must do."""

from __future__ import annotations

import numpy as np
import pytest
from operator_forms import FORMS

from roiline.ops.detection_output import DETECTION_OUTPUT
from roiline.ops.final_clip import clip_finally
from roiline.ops.retinanet_output import RETINANET_OUTPUT


def test_boxes_outside_go_and_boxes_across_are_cut():
    boxes = np.array([[-5, -5, 10, 10], [100, 0, 120, 10], [3, 4, 3, 9], [20, 20, 99, 60]], np.float32)
    clipped, alive = clip_finally(boxes, np.array([50, 80], np.float32))
    np.testing.assert_array_equal(alive, [True, False, False, True])
    np.testing.assert_array_equal(clipped[alive], [[0, 0, 10, 10], [20, 20, 80, 50]])


def _candidates(seed, images, rows):
    rng = np.random.default_rng(seed)
    low = rng.uniform(-60, 120, (images, rows, 2))
    boxes = np.concatenate([low, low + rng.uniform(1, 60, (images, rows, 2))], axis=2).astype(np.float32)
    scores = rng.uniform(0, 1, (images, rows)).astype(np.float32)
    classes, levels = rng.integers(1, 4, (images, rows)), np.sort(rng.integers(0, 2, (images, rows)), axis=1)
    return boxes, scores, classes.astype(np.int64), levels.astype(np.int64)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rows", [0, 1, 60])
def test_dropped_boxes_count_for_the_limit(form, rows):
    size = np.array([[50, 80], [90, 30]], np.float32)
    attributes = {
        "num_classes": 4,
        "score_thresh": 0.05,
        "coarsest_score_thresh": 0.05,
        "nms_thresh": 0.5,
        "max_dets": 20,
        "nms_inclusive": 0,
        "size_offset": 0.0,
        "ranked": 1,
    }
    candidates = _candidates(rows, 2, rows)
    plain = FORMS["reference"](RETINANET_OUTPUT, candidates, **attributes)
    boxes, scores, classes, count = FORMS[form](RETINANET_OUTPUT, (*candidates, size), **attributes)
    for image in range(2):
        kept = slice(int(plain[3][image]))
        clipped, alive = clip_finally(plain[0][image, kept], size[image])
        assert count[image] == alive.sum()
        found = slice(int(count[image]))
        np.testing.assert_array_equal(boxes[image, found], clipped[alive])
        np.testing.assert_array_equal(scores[image, found], plain[1][image, kept][alive])
        np.testing.assert_array_equal(classes[image, found], plain[2][image, kept][alive])
    if rows == 60:
        assert 0 < count.min() < 20


@pytest.mark.parametrize("ranked", [0, 1])
@pytest.mark.parametrize("counts", [(0,), (30, 25), (0, 12)])
def test_forms_of_detections_agree(ranked, counts):
    rng = np.random.default_rng(sum(counts) + ranked)
    total = sum(counts)
    image = np.repeat(np.arange(len(counts)), counts)[:, None]
    low = rng.uniform(-20, 100, (total, 2))
    rois = np.concatenate([image, low, low + rng.uniform(1, 60, (total, 2))], axis=1).astype(np.float32)
    info = np.tile(np.array([[60, 90, 1]], np.float32), (len(counts), 1))
    feeds = (
        rois,
        rng.dirichlet(np.ones(4), total).reshape(total, 4).astype(np.float32),
        rng.normal(0, 0.5, (total, 16)).astype(np.float32),
        info,
        info[:, :2] * np.float32(1.7),
        np.array(counts, np.int64),
    )
    answers = [
        FORMS[form](
            DETECTION_OUTPUT,
            feeds,
            score_thresh=0.1,
            nms_thresh=0.5,
            max_dets=10,
            bbox_reg_weights=(10.0, 10.0, 5.0, 5.0),
            network_frame=1,
            ranked=ranked,
            final_clip=1,
            nms_inclusive=0,
            size_offset=0.0,
            corner_offset=0.0,
            delta_clip=4.0,
        )
        for form in FORMS
    ]
    np.testing.assert_array_equal(answers[0][3], answers[1][3])
    np.testing.assert_array_equal(answers[0][2], answers[1][2])
    np.testing.assert_allclose(answers[0][0], answers[1][0], atol=1e-4)
    np.testing.assert_allclose(answers[0][1], answers[1][1], atol=1e-6)
