"""Pasted masks: the original's bits, boxes at and beyond the edge, and memory on large pictures."""

from __future__ import annotations

import tracemalloc

import cv2
import numpy as np
import pytest
from golden_cases import golden_cases

from roiline.core.errors import DataError
from roiline.core.rle import decode_rle, encode_mask
from roiline.ops.mask_paste import grow_boxes, paste_masks


@pytest.mark.parametrize("case", golden_cases("detectron_py", "segm_results"))
def test_golden_bits(case):
    masks, boxes = case.inputs
    height, width = case.args["im_h"], case.args["im_w"]
    shape = case.outputs[1]
    expected = np.unpackbits(case.outputs[0])[: shape.prod()].reshape(shape).astype(bool)
    chosen = masks[np.arange(len(masks)), case.args["classes"]]
    pasted = paste_masks(chosen, boxes, height, width, threshold=case.args["thresh_binarize"])
    assert len(pasted) == len(expected)
    for counts, mask in zip(pasted, expected, strict=True):
        assert counts == encode_mask(mask)


def _paste_on_canvas(mask, box, height, width, threshold):
    """The plain way: a framed mask, resized to its grown box, copied pixel by pixel into a whole picture."""
    size = len(mask)
    half = (box[2:] - box[:2]) * np.float32(0.5) * np.float32((size + 2.0) / size)
    centre = (box[2:] + box[:2]) * np.float32(0.5)
    x1, y1, x2, y2 = (int(value) for value in (*(centre - half), *(centre + half)))
    framed = np.zeros((size + 2, size + 2), np.float32)
    framed[1:-1, 1:-1] = mask
    resized = cv2.resize(framed, (max(x2 - x1 + 1, 1), max(y2 - y1 + 1, 1)))
    canvas = np.zeros((height, width), bool)
    for row in range(max(y1, 0), min(y2 + 1, height)):
        for column in range(max(x1, 0), min(x2 + 1, width)):
            canvas[row, column] = resized[row - y1, column - x1] > threshold
    return canvas


@pytest.mark.parametrize("threshold", [0.3, 0.5])
@pytest.mark.parametrize("size", [7, 14, 28])
def test_boxes_at_the_edges_match_the_plain_way(size, threshold):
    random = np.random.default_rng(size)
    boxes = np.array(
        [
            [0, 0, 59, 39],
            [-8.5, -3.2, 12.1, 9.9],
            [50.3, 30.1, 72.8, 55.5],
            [10.2, 11.3, 10.2, 11.3],
            [0, 0, 3, 3],
            [20.5, 5.5, 44.25, 30.75],
            [59, 0, 59, 39],
            [80, 50, 90, 60],
        ],
        np.float32,
    )
    masks = random.random((len(boxes), size, size), np.float32)
    pasted = paste_masks(masks, boxes, 40, 60, threshold=threshold)
    for counts, mask, box in zip(pasted, masks, boxes, strict=True):
        assert np.array_equal(decode_rle(counts, 40, 60), _paste_on_canvas(mask, box, 40, 60, threshold))


def test_corners_are_cut_toward_zero():
    boxes = np.array([[10, 20, 50, 90], [0, 0, 3, 3]], np.float32)
    assert grow_boxes(boxes, 28).tolist() == [[8, 17, 51, 92], [0, 0, 3, 3]]


def test_no_masks():
    assert paste_masks(np.zeros((0, 28, 28), np.float32), np.zeros((0, 4), np.float32), 40, 60, threshold=0.5) == []


def test_300_masks_on_12_megapixels_stay_below_200_megabytes():
    random = np.random.default_rng(3)
    corners = random.uniform((0, 0), (3200, 2300), (300, 2))
    boxes = np.concatenate([corners, corners + random.uniform(20, 500, (300, 2))], axis=1).astype(np.float32)
    boxes[::60] = 0, 0, 3999, 2999
    masks = np.stack([cv2.blur(random.random((28, 28), np.float32), (7, 7)) for _ in boxes])
    tracemalloc.start()
    try:
        pasted = paste_masks(masks, boxes, 3000, 4000, threshold=0.5)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(pasted) == 300
    assert all(0 < len(counts) < 1_000_000 for counts in pasted)
    assert peak < 200e6
    assert decode_rle(pasted[0], 3000, 4000).any()


@pytest.mark.parametrize(
    ("masks", "boxes", "message"),
    [
        (np.zeros((2, 28, 28), np.float32), np.zeros((3, 4), np.float32), "expected masks"),
        (np.zeros((2, 28, 14), np.float32), np.zeros((2, 4), np.float32), "expected masks"),
        (np.zeros((1, 28, 28), np.float32), np.full((1, 4), np.nan, np.float32), "not finite"),
    ],
)
def test_what_does_not_fit_is_refused(masks, boxes, message):
    with pytest.raises(DataError, match=message):
        paste_masks(masks, boxes, 40, 60, threshold=0.5)


def test_an_unknown_convention_is_refused():
    with pytest.raises(DataError, match="`detectron`, not 'other'"):
        paste_masks(
            np.zeros((0, 28, 28), np.float32), np.zeros((0, 4), np.float32), 40, 60, threshold=0.5, convention="other"
        )
