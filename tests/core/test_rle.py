"""Run lengths against pycocotools, byte for byte, and back."""

from __future__ import annotations

import numpy as np
import pytest

from roiline.core.errors import DataError
from roiline.core.rle import compress_runs, decode_rle, decompress_runs, encode_crop, encode_mask, measure_area

coco_mask = pytest.importorskip("pycocotools.mask")


def _coco_counts(mask):
    return coco_mask.encode(np.asfortranarray(mask.astype(np.uint8)))["counts"]


def _stripes(height, width, *, by_column):
    index = np.arange(width) if by_column else np.arange(height)[:, None]
    return np.broadcast_to(index % 2 == 0, (height, width))


EDGES = {
    "empty": np.zeros((7, 9), bool),
    "full": np.ones((7, 9), bool),
    "one pixel": np.ones((1, 1), bool),
    "one background pixel": np.zeros((1, 1), bool),
    "no pixel": np.zeros((0, 4), bool),
    "first pixel": np.eye(1, 30, 0, dtype=bool).reshape(5, 6),
    "last pixel": np.eye(1, 30, 29, dtype=bool).reshape(5, 6),
    "whole columns": _stripes(6, 8, by_column=True),
    "whole rows": _stripes(6, 8, by_column=False),
    "one row": np.ones((1, 40), bool),
    "one column": np.ones((40, 1), bool),
    "long runs": np.pad(np.ones((900, 1100), bool), 40),
}


@pytest.mark.parametrize("mask", EDGES.values(), ids=EDGES.keys())
def test_edges_give_the_bytes_of_pycocotools(mask):
    assert encode_mask(mask) == _coco_counts(mask)
    assert np.array_equal(decode_rle(encode_mask(mask), *mask.shape), mask)


@pytest.mark.parametrize("density", [0.01, 0.1, 0.5, 0.9, 0.99])
def test_random_masks_give_the_bytes_of_pycocotools(density):
    random = np.random.default_rng(int(density * 100))
    for _ in range(200):
        mask = random.random(random.integers(1, 60, 2)) < density
        counts = encode_mask(mask)
        assert counts == _coco_counts(mask)
        assert np.array_equal(decode_rle(counts, *mask.shape), mask)
        assert measure_area(counts) == mask.sum()


def test_a_crop_gives_the_bytes_of_its_whole_mask():
    random = np.random.default_rng(5)
    for _ in range(300):
        height, width = random.integers(1, 30, 2)
        rows, columns = random.integers(0, height + 1), random.integers(0, width + 1)
        top, left = random.integers(0, height - rows + 1), random.integers(0, width - columns + 1)
        mask = np.zeros((height, width), bool)
        crop = random.random((rows, columns)) < 0.7
        mask[top : top + rows, left : left + columns] = crop
        assert encode_crop(crop, top, left, height, width) == _coco_counts(mask)


def test_masks_of_any_number_type_are_foreground_where_they_are_not_zero():
    mask = np.array([[0, 1], [2, 255]], np.uint8)
    assert encode_mask(mask) == _coco_counts(mask != 0)


def test_runs_come_back():
    runs = np.array([0, 5, 1, 70000, 3, 2, 2, 2, 100, 1, 0, 7], np.int64)
    assert np.array_equal(decompress_runs(compress_runs(runs)), runs)


def test_text_is_read_like_bytes():
    mask = np.eye(20, dtype=bool)
    assert np.array_equal(decode_rle(encode_mask(mask).decode(), 20, 20), mask)


def test_a_crop_beyond_the_mask_is_refused():
    with pytest.raises(DataError, match=r"3 x 3 at row 8, column 0 .* 10 x 10"):
        encode_crop(np.ones((3, 3), bool), 8, 0, 10, 10)


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        (b"", "compressed form"),
        (b"5\xff", "compressed form"),
        ("5é", "compressed form"),
        (b"0P", "compressed form"),
        (b"P" * 40 + b"0", "out of range"),
        (b"O2", "length -1"),
        (b"5", "add up to 5, expected 2 x 3 = 6"),
    ],
)
def test_what_is_no_mask_is_refused(counts, message):
    with pytest.raises(DataError, match=message):
        decode_rle(counts, 2, 3)
