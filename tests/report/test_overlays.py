from __future__ import annotations

import numpy as np
import pytest

from roiline.core.errors import DataError
from roiline.core.rle import encode_mask
from roiline.core.structures import UInt8
from roiline.infer.result_rows import NO_KEYPOINTS, NO_MASKS, KeypointRows, MaskRows
from roiline.report.labels import Color, Pen
from roiline.report.overlays import MASK_ALPHA, MASK_WHITE, SKELETON, paint_keypoints, paint_masks

GROUND = 80
PEN = Pen(line=1, thin=1, text=11, halo=1)
COLORS: list[Color] = [(200, 100, 0), (0, 150, 250)]


def canvas(height: int = 60, width: int = 80) -> UInt8:
    return np.full((height, width, 3), GROUND, np.uint8)


def whitened(color: Color) -> np.ndarray:
    return np.round((1 - MASK_WHITE) * np.array(color) + MASK_WHITE * 255)


def masks_of(*boxes: tuple[int, int, int, int], size_hw: tuple[int, int] = (60, 80)) -> MaskRows:
    """Masks that are boxes (top, left, bottom, right), of classes 1, 2, .."""
    counts = []
    for top, left, bottom, right in boxes:
        pixels = np.zeros(size_hw, np.bool_)
        pixels[top:bottom, left:right] = True
        counts.append(encode_mask(pixels))
    return MaskRows(np.ones(len(boxes), np.float32), np.arange(1, len(boxes) + 1), tuple(counts), size_hw)


def keypoints_of(*people: np.ndarray, logit: float = 5.0) -> KeypointRows:
    """Keypoints at points (2, J), all of one logit."""
    points = np.stack([np.concatenate([one, np.full_like(one, logit)]) for one in people]).astype(np.float32)
    return KeypointRows(np.ones(len(people), np.float32), np.ones(len(people), np.int64), points)


def test_a_mask_is_a_tint_with_a_white_edge() -> None:
    picture = canvas()
    paint_masks(picture, masks_of((10, 20, 40, 60)), COLORS, factor=1, pen=PEN)
    expected = np.round((1 - MASK_ALPHA) * GROUND + MASK_ALPHA * whitened(COLORS[0]))
    np.testing.assert_array_equal(picture[15:35, 25:55], np.broadcast_to(expected, (20, 30, 3)))
    assert (picture[10, 20:60] > 220).all()
    assert (picture[:8] == GROUND).all()
    assert (picture[:, 63:] == GROUND).all()


def test_small_masks_come_on_top_of_large_ones() -> None:
    picture = canvas()
    paint_masks(picture, masks_of((20, 20, 30, 30), (10, 10, 50, 70)), COLORS, factor=1, pen=PEN)
    below = np.round((1 - MASK_ALPHA) * GROUND + MASK_ALPHA * whitened(COLORS[1]))
    expected = np.round((1 - MASK_ALPHA) * below + MASK_ALPHA * whitened(COLORS[0]))
    assert picture[25, 25].tolist() == expected.tolist()


def test_masks_grow_with_an_enlarged_canvas() -> None:
    picture = canvas(180, 240)
    paint_masks(picture, masks_of((0, 0, 20, 20)), COLORS, factor=3, pen=PEN)
    assert (picture[5:55, 5:55] != GROUND).any(axis=2).all()
    assert (picture[62:] == GROUND).all()


def test_masks_of_another_picture_are_refused() -> None:
    with pytest.raises(DataError, match="of 60 x 80 pixels, the picture has 60 x 81"):
        paint_masks(canvas(60, 81), masks_of((0, 0, 9, 9)), COLORS, factor=1, pen=PEN)


def test_nothing_to_paint_leaves_the_picture() -> None:
    picture = canvas()
    paint_masks(picture, NO_MASKS, COLORS, factor=1, pen=PEN)
    paint_masks(picture, masks_of((0, 0, 0, 0)), COLORS, factor=1, pen=PEN)
    paint_keypoints(picture, NO_KEYPOINTS, factor=1, pen=PEN)
    paint_keypoints(picture, keypoints_of(np.full((2, 17), 30.0), logit=2.0), factor=1, pen=PEN)
    assert (picture == GROUND).all()


def test_the_skeleton_joins_visible_keypoints_only() -> None:
    person = np.full((2, 17), 300.0)
    person[:, 5], person[:, 6] = (10, 30), (70, 30)  # the shoulders, far apart
    shown = keypoints_of(person)
    picture = canvas()
    shown.points[0, 2, [joint for joint in range(17) if joint not in (5, 6)]] = 0
    paint_keypoints(picture, shown, factor=1, pen=PEN)
    assert (picture[30, 15:65] != GROUND).any(axis=1).all()
    assert (picture[:24] == GROUND).all()
    shown.points[0, 2, 6] = 0
    picture = canvas()
    paint_keypoints(picture, shown, factor=1, pen=PEN)
    assert (picture[30, 20:] == GROUND).all()
    assert (picture[30, 10] != GROUND).any()


def test_the_spine_joins_the_middles_of_shoulders_and_hips() -> None:
    person = np.zeros((2, 17))
    person[:, 5], person[:, 6], person[:, 11], person[:, 12] = (30, 10), (50, 10), (30, 50), (50, 50)
    shown = keypoints_of(person)
    shown.points[0, 2, [joint for joint in range(17) if joint not in (5, 6, 11, 12)]] = 0
    picture = canvas()
    paint_keypoints(picture, shown, factor=1, pen=PEN)
    assert (picture[14:46, 40] != GROUND).any(axis=1).all()
    assert (picture[20:40, 30] == GROUND).all()


def test_other_keypoints_than_a_persons_have_no_lines() -> None:
    picture = canvas()
    paint_keypoints(picture, keypoints_of(np.array([[10.0, 70], [30, 30]])), factor=1, pen=PEN)
    assert (picture[30, 20:60] == GROUND).all()
    assert (picture[30, [10, 70]] != GROUND).any(axis=1).all()


def test_points_outside_stay_at_the_edge() -> None:
    picture = canvas()
    paint_keypoints(picture, keypoints_of(np.array([[1e30], [-1e30]])), factor=1, pen=PEN)
    assert (picture[0, -1] != GROUND).any()


def test_a_skeleton_has_fifteen_lines_of_seventeen_keypoints() -> None:
    assert len(set(map(frozenset, SKELETON))) == 15
    assert {joint for line in SKELETON for joint in line} == set(range(17))
