from __future__ import annotations

import numpy as np
import pytest

from roiline.core.structures import UInt8
from roiline.report.labels import Pen, Rectangle, choose_class_color, draw_label

GROUND = 77


def canvas(height: int, width: int) -> UInt8:
    return np.full((height, width, 3), GROUND, np.uint8)


def label(picture: UInt8, box: Rectangle, name: str = "cat", placed: tuple[Rectangle, ...] = ()) -> Rectangle | None:
    pen = Pen.for_size(*picture.shape[:2])
    return draw_label(picture, box, name, "0.98", choose_class_color(1), pen, placed)


def painted(picture: UInt8) -> Rectangle:
    rows, columns = np.nonzero((picture != GROUND).any(axis=2))
    return int(columns.min()), int(rows.min()), int(columns.max()), int(rows.max())


@pytest.mark.parametrize(
    "box", [(100, 100, 200, 200), (0, 0, 50, 50), (300, 5, 319, 100), (-50, -50, 400, 400), (310, 235, 319, 239)]
)
def test_a_label_paints_its_rectangle_and_nothing_else(box: Rectangle) -> None:
    picture = canvas(240, 320)
    place = label(picture, box)
    assert place == painted(picture)
    assert place is not None
    assert 0 <= place[0] < place[2] < 320
    assert 0 <= place[1] < place[3] < 240


def test_a_label_stands_above_its_box_if_there_is_room() -> None:
    place = label(canvas(240, 320), (100, 100, 200, 200))
    assert place is not None
    assert place[0] == 100
    assert place[3] == 99


def test_labels_move_aside_for_each_other() -> None:
    picture = canvas(240, 320)
    first = label(picture, (100, 100, 200, 200))
    assert first is not None
    second = label(picture, (100, 100, 200, 200), placed=(first,))
    assert second is not None
    assert second[1] > first[3] or second[0] > first[2]


def test_long_names_are_cut_and_keep_the_score() -> None:
    place = label(canvas(240, 320), (10, 100, 60, 160), name="a name without any end " * 9)
    assert place is not None
    assert place[2] - place[0] < 0.65 * 320


@pytest.mark.parametrize("shape", [(3, 600), (600, 3), (1, 1)])
def test_pictures_too_thin_for_letters_get_none(shape: tuple[int, int]) -> None:
    picture = canvas(*shape)
    assert label(picture, (0, 0, shape[1] - 1, shape[0] - 1)) is None
    assert (picture == GROUND).all()


def test_letters_grow_with_the_picture() -> None:
    sizes = [Pen.for_size(side, side) for side in (300, 1000, 6000)]
    assert [pen.text for pen in sizes] == sorted({pen.text for pen in sizes})
    assert [pen.line for pen in sizes] == sorted({pen.line for pen in sizes})


def test_neighbouring_classes_are_far_apart_in_colour() -> None:
    colors = np.array([choose_class_color(index) for index in range(1, 82)], np.float64)
    assert len(np.unique(colors, axis=0)) == 81
    assert np.linalg.norm(np.diff(colors, axis=0), axis=1).min() > 80


def test_labels_never_cover_each_other_however_many_there_are() -> None:
    picture = canvas(240, 320)
    random = np.random.default_rng(1)
    placed: list[Rectangle] = []
    left_out = 0
    for left, top in random.integers(0, 200, (120, 2)).tolist():
        place = label(picture, (left, top, left + 60, top + 40), "a long class name", tuple(placed))
        if place is None:
            left_out += 1
            continue
        for other in placed:
            apart = place[2] < other[0] or other[2] < place[0] or place[3] < other[1] or other[3] < place[1]
            assert apart, (place, other)
        placed.append(place)
    assert len(placed) > 20
    assert left_out > 0


@pytest.mark.parametrize("size", [(100, 75), (640, 480), (6000, 4000)])
def test_letters_are_of_the_same_share_of_any_picture(size: tuple[int, int]) -> None:
    width, height = size
    pen = Pen.for_size(height, width)
    assert pen.text >= 11
    assert width < 600 or 0.012 < pen.text / np.hypot(height, width) < 0.02
    assert pen.halo <= pen.line
