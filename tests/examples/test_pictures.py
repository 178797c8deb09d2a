"""The demo's pictures and annotations: valid, inside their bounds, and what the committed script makes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

pytest.importorskip("roiline.examples", reason="a wheel holds no examples")

from roiline.examples.make_pictures import (
    CATEGORY_IDS,
    CLASS_NAMES,
    Glyphs,
    annotations_from_picture,
    compose_picture,
    iterate_held_out,
    write_data_set,
)

DIGITS = Path(__file__).resolve().parents[2] / "examples" / "digits"


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return json.loads((DIGITS / "annotations.json").read_text(encoding="utf-8"))


@pytest.fixture
def glyphs() -> Glyphs:
    """Ten made-up samples: a ring and a bar of varying width, so that the test needs no data set."""
    images = np.zeros((10, 8, 8), np.float32)
    for index in range(10):
        images[index, 0:8, 2 : 4 + index % 3] = 1.0
    return Glyphs(images, np.arange(10, dtype=np.int64))


def test_categories_keep_their_own_ids(document: dict[str, Any]) -> None:
    assert [category["id"] for category in document["categories"]] == list(range(11, 21))
    assert [category["name"] for category in document["categories"]] == list(CLASS_NAMES)


def test_every_picture_is_there_with_its_stated_size(document: dict[str, Any]) -> None:
    names = [image["file_name"] for image in document["images"]]
    assert len(names) == len(set(names)) == 24
    assert sorted(path.name for path in (DIGITS / "pictures").iterdir()) == sorted(names)
    for image in document["images"]:
        pixels = cv2.imread(str(DIGITS / "pictures" / image["file_name"]))
        assert pixels is not None, image["file_name"]
        assert pixels.shape == (image["height"], image["width"], 3)


def test_pictures_are_small_and_of_both_orientations(document: dict[str, Any]) -> None:
    assert sum(path.stat().st_size for path in (DIGITS / "pictures").iterdir()) < 1_200_000
    wider = [image["width"] > image["height"] for image in document["images"]]
    assert any(wider)
    assert not all(wider)
    assert all(240 <= side <= 420 for image in document["images"] for side in (image["height"], image["width"]))


def test_boxes_lie_inside_their_pictures(document: dict[str, Any]) -> None:
    sizes = {image["id"]: (image["width"], image["height"]) for image in document["images"]}
    for annotation in document["annotations"]:
        x, y, width, height = annotation["bbox"]
        assert x >= 0
        assert y >= 0
        assert width >= 1
        assert height >= 1
        assert x + width <= sizes[annotation["image_id"]][0]
        assert y + height <= sizes[annotation["image_id"]][1]
        assert annotation["area"] == width * height
        assert annotation["category_id"] in CATEGORY_IDS


def test_annotation_ids_are_unique_and_no_picture_or_class_is_empty(document: dict[str, Any]) -> None:
    annotations = document["annotations"]
    assert len({annotation["id"] for annotation in annotations}) == len(annotations)
    assert {annotation["image_id"] for annotation in annotations} == {image["id"] for image in document["images"]}
    assert {annotation["category_id"] for annotation in annotations} == set(CATEGORY_IDS)


def test_shipped_pictures_are_what_the_script_makes(document: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("sklearn", reason="the digit samples come from scikit-learn")
    write_data_set(tmp_path, seed=2024, count=2)
    made = json.loads((tmp_path / "annotations.json").read_text(encoding="utf-8"))
    assert made["images"] == document["images"][:2]
    first_two = {image["id"] for image in made["images"]}
    assert made["annotations"] == [a for a in document["annotations"] if a["image_id"] in first_two]


def test_a_held_out_picture_does_not_depend_on_how_many_are_made() -> None:
    pytest.importorskip("sklearn", reason="the digit samples come from scikit-learn")
    alone, first = next(iterate_held_out(5, 1)), next(iterate_held_out(5, 3))
    np.testing.assert_array_equal(alone.pixels, first.pixels)


@pytest.mark.parametrize("seed", range(6))
def test_composing_repeats_itself(glyphs: Glyphs, seed: int) -> None:
    first = compose_picture(np.random.default_rng(seed), glyphs, 250, 310, most=8)
    second = compose_picture(np.random.default_rng(seed), glyphs, 250, 310, most=8)
    np.testing.assert_array_equal(first.pixels, second.pixels)
    np.testing.assert_array_equal(first.boxes, second.boxes)
    np.testing.assert_array_equal(first.labels, second.labels)


@pytest.mark.parametrize("seed", range(6))
def test_composed_digits_are_inside_and_apart(glyphs: Glyphs, seed: int) -> None:
    picture = compose_picture(np.random.default_rng(seed), glyphs, 200, 320, most=8)
    assert picture.pixels.shape == (200, 320, 3)
    assert picture.pixels.dtype == np.uint8
    covered = np.zeros((200, 320), np.int64)
    for x1, y1, x2, y2 in picture.boxes:
        assert 0 <= x1 <= x2 < 320
        assert 0 <= y1 <= y2 < 200
        covered[y1 : y2 + 1, x1 : x2 + 1] += 1
    assert len(picture.boxes) == len(picture.labels) >= 1
    assert covered.max() == 1


def test_a_picture_too_small_for_its_digits_is_refused(glyphs: Glyphs) -> None:
    with pytest.raises(ValueError, match="at least 128 pixels a side, got 127 x 300"):
        compose_picture(np.random.default_rng(0), glyphs, 127, 300, most=3)


def test_annotations_count_both_edge_pixels(glyphs: Glyphs) -> None:
    picture = compose_picture(np.random.default_rng(1), glyphs, 200, 200, most=2)
    x1, y1, x2, y2 = picture.boxes[0].tolist()
    entry = annotations_from_picture(picture, 7, first_id=30)[0]
    assert entry["bbox"] == [x1, y1, x2 - x1 + 1, y2 - y1 + 1]
    assert entry["category_id"] == CATEGORY_IDS[picture.labels[0]]
    assert (entry["id"], entry["image_id"], entry["iscrowd"]) == (30, 7, 0)
