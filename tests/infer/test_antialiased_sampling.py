"""Pillow's way of resizing, against its own results where they are there, and by what it must do anywhere."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from detectron2_cases import recipe_of
from shared_data import shared_path

from roiline.core.spec import ImageRules
from roiline.infer.antialiased_sampling import resize_antialiased
from roiline.infer.preparation import network_size, prepare_picture

FOLDER = "golden/detectron2/ops"


def rules(scale, max_size, order="BGR"):
    means, stds = (103.5, 116.25, 123.75), (57.0, 58.0, 59.0)
    return ImageRules(order, means, stds, scale, max_size, "detectron2", 32, "apply", extent="resized")


@pytest.mark.parametrize("index", range(8))
def test_pillows_bits(index):
    name = f"resize_uint8_{index:03d}"
    rows = json.loads(shared_path(f"{FOLDER}/manifest.json").read_text())["cases"]
    row = next((one for one in rows if one["case"] == name), None)
    if row is None:
        pytest.skip(f"golden case {name} is kept apart")
    picture = recipe_of(re.match(r"\S+\([^)]*\)", row["args"]["image"])[0])
    with np.load(shared_path(f"{FOLDER}/ops.npz")) as arrays:
        expected = arrays[f"{name}/out/image"]
    height, width = expected.shape[:2]
    found = np.stack([resize_antialiased(picture[..., channel], height, width) for channel in range(3)], axis=-1)
    np.testing.assert_array_equal(found, expected)


def test_sizes():
    with np.load(shared_path(f"{FOLDER}/ops.npz")) as arrays:
        sizes, limits, expected = (arrays[f"output_shape_000/{key}"] for key in ("in/hw", "in/min_max", "out/new_hw"))
    for (height, width), (scale, most), wanted in zip(sizes.tolist(), limits.tolist(), expected, strict=True):
        size = network_size(height, width, rules(scale, most))
        assert [size.height, size.width] == list(wanted)


def test_a_side_that_keeps_its_length_is_left_alone():
    plane = np.random.default_rng(0).integers(0, 256, (20, 30), np.uint8)
    np.testing.assert_array_equal(resize_antialiased(plane, 20, 30), plane)
    wider = resize_antialiased(plane, 20, 45)
    np.testing.assert_array_equal(wider[7:8], resize_antialiased(plane[7:8], 1, 45))


@pytest.mark.parametrize("size", [(1, 1), (3, 70), (64, 5), (101, 33)])
@pytest.mark.parametrize("level", [0, 1, 127, 255])
def test_one_grey_stays_what_it_is(size, level):
    plane = np.full((17, 40), level, np.uint8)
    assert (resize_antialiased(plane, *size) == level).all()


def test_shrinking_averages():
    plane = (
        np.indices((64, 64)).sum(axis=0) % 2 * np.uint8(255)
    )  # a chessboard: sampling alone would keep black and white
    assert np.abs(resize_antialiased(plane.astype(np.uint8), 8, 8).astype(int) - 127).max() <= 2


def test_values_are_subtracted_after_sampling():
    picture = np.random.default_rng(1).integers(0, 256, (40, 50, 3), np.uint8)
    prepared = prepare_picture(picture, rules(32, 100, "RGB"))
    assert prepared.pixels.shape == (3, 32, 64)
    assert (prepared.height, prepared.width, prepared.extent_hw) == (32, 40, (32, 40))
    red = resize_antialiased(np.ascontiguousarray(picture[..., 2]), 32, 40).astype(np.float32)
    np.testing.assert_array_equal(prepared.pixels[0, :, :40], (red - np.float32(103.5)) / np.float32(57.0))
    assert not prepared.pixels[:, :, 40:].any()


def test_scale_zero_resizes_nothing():
    size = network_size(37, 53, rules(0, 10))
    assert size == (37, 53, 64, 64, 1.0)


def test_extreme_sides_keep_a_pixel():
    size = network_size(1, 100_000, rules(800, 1333))
    assert (size.height, size.width) == (1, 1333)
