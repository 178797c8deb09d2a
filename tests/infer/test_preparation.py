from __future__ import annotations

import json

import cv2
import numpy as np
import pytest
from shared_data import shared_path

from roiline.core.errors import DataError, UsageError
from roiline.core.spec import ImageRules
from roiline.infer.preparation import image_scale, network_size, prepare_picture, stack_batch

MEANS = (102.9801, 115.9465, 122.7717)


def rules(scale: int = 800, max_size: int = 1333, pad: int = 32, **changes: object) -> ImageRules:
    fields = {"channel_order": "BGR", "means": MEANS, "stds": (1.0, 1.0, 1.0), "exif": "apply", **changes}
    return ImageRules(scale=scale, max_size=max_size, resize="detectron", pad_multiple=pad, **fields)


def random_picture(height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def prepare_plainly(picture: np.ndarray, scale: float) -> np.ndarray:
    """The interleaved way: subtract in place (float32 less float64), resize by the factor, transpose."""
    values = picture.astype(np.float32)
    values -= np.array([[MEANS]])
    return cv2.resize(values, None, None, fx=scale, fy=scale, interpolation=cv2.INTER_LINEAR).transpose(2, 0, 1)


def test_golden_blobs():
    """Made with OpenCV 4.7: another version samples 12 of 155,000 values one unit in the last place (1.9e-6) differently."""
    folder = shared_path("golden/detectron_py")
    cases = [
        case for case in json.loads((folder / "manifest.json").read_text())["cases"] if case["op"] == "get_image_blob"
    ]
    arrays = np.load(folder / "get_image_blob.npz")
    assert len(cases) == 3
    for case in cases:
        args, name = case["args"], case["case"]
        pad = args["coarsest_stride"] if args["fpn_on"] else 1
        means = tuple(args["pixel_means"][0][0])
        prepared = prepare_picture(
            arrays[f"{name}/in0"], rules(args["target_scale"], args["max_size"], pad, means=means)
        )
        batch = stack_batch([prepared], [name])
        want = arrays[f"{name}/out0"]
        assert batch.pixels.shape == want.shape
        assert np.abs(batch.pixels - want).max() < 2e-6
        assert np.count_nonzero(batch.pixels != want) <= 12
        assert prepared.scale == arrays[f"{name}/out1"]
        assert np.array_equal(batch.im_info, arrays[f"{name}/out2"])


@pytest.mark.parametrize("seed", range(12))
def test_plane_by_plane_gives_the_bits_of_the_interleaved_way(seed):
    random = np.random.default_rng(seed)
    height, width = (int(side) for side in random.integers(20, 400, 2))
    picture = random_picture(height, width, seed)
    prepared = prepare_picture(picture, rules(int(random.integers(64, 500)), int(random.integers(200, 700))))
    plain = prepare_plainly(picture, prepared.scale)
    assert plain.shape[1:] == (prepared.height, prepared.width)
    assert np.array_equal(prepared.pixels[:, : prepared.height, : prepared.width], plain)
    assert not prepared.pixels[:, prepared.height :].any()
    assert not prepared.pixels[:, :, prepared.width :].any()


@pytest.mark.parametrize(
    ("size", "scale", "resized", "padded32", "padded128"),
    [
        ((480, 640), 1.6666667, (800, 1067), (800, 1088), (896, 1152)),
        ((427, 640), 1.8735363, (800, 1199), (800, 1216), (896, 1280)),
        ((333, 500), 2.4024024, (800, 1201), (800, 1216), (896, 1280)),
        ((375, 1242), 1.0732689, (402, 1333), (416, 1344), (512, 1408)),
    ],
)
def test_sizes_of_the_usual_pictures(size, scale, resized, padded32, padded128):
    got = network_size(*size, rules())
    assert got.scale == pytest.approx(scale, abs=5e-8)
    assert (got.height, got.width) == resized
    assert (got.padded_height, got.padded_width) == padded32
    assert network_size(*size, rules(pad=128))[2:4] == padded128
    assert network_size(*size, rules(pad=1))[2:4] == resized


def test_the_limit_of_the_longer_side_rounds_half_to_even():
    # 2.5 * 533 = 1332.5 rounds to 1332, which is allowed; 444.5 * 3 = 1333.5 rounds to 1334, which is not.
    assert image_scale(400, 533, rules(1000, 1332)) == 2.5
    assert image_scale(200, 533, rules(500, 1332)) == 2.5
    assert image_scale(2, 3, rules(889, 1333)) == 1333 / 3


def test_sides_of_the_resized_picture_round_half_to_even():
    assert network_size(2, 5, rules(1, 100, 1))[:2] == (1, 2)
    assert network_size(2, 7, rules(1, 100, 1))[:2] == (1, 4)


@pytest.mark.parametrize("size", [(1, 1), (2, 1), (1, 2), (1, 5000), (5000, 1), (3, 40000)])
def test_extreme_pictures_have_at_least_one_pixel_a_side(size):
    small = rules(64, 128)
    plan = network_size(*size, small)
    prepared = prepare_picture(random_picture(*size), small)
    assert (prepared.height, prepared.width) == plan[:2]
    assert prepared.pixels.shape == (3, *plan[2:4])
    assert min(plan[:2]) >= 1
    assert np.isfinite(prepared.pixels).all()
    assert prepared.scale == image_scale(*size, small)


@pytest.mark.parametrize("size", [(0, 5), (5, 0), (-1, 5)])
def test_no_pixels_is_an_error(size):
    with pytest.raises(DataError, match="has no pixels"):
        network_size(*size, rules())


def test_channel_order_and_deviation():
    picture = random_picture(64, 64)
    plain = prepare_picture(picture, rules(64, 64))
    swapped = prepare_picture(picture, rules(64, 64, channel_order="RGB", means=MEANS[::-1], stds=(2.0, 4.0, 8.0)))
    assert np.array_equal(swapped.pixels * np.array([2, 4, 8], np.float32)[:, None, None], plain.pixels[::-1])


def test_views_are_prepared_as_their_copies():
    picture = random_picture(60, 40)
    for view in (picture[:, ::-1], picture[:, :, ::-1], picture[5:50, 3:30], picture.transpose(1, 0, 2)):
        assert np.array_equal(
            prepare_picture(view, rules(64, 90)).pixels, prepare_picture(view.copy(), rules(64, 90)).pixels
        )


@pytest.mark.parametrize(
    "wrong", [np.zeros((4, 4), np.uint8), np.zeros((4, 4, 4), np.uint8), np.zeros((4, 4, 3), np.float32), None]
)
def test_other_arrays_are_refused(wrong):
    with pytest.raises(UsageError, match="expected a BGR picture as a uint8 array"):
        prepare_picture(wrong, rules())


def test_the_picture_itself_is_not_changed():
    picture = random_picture(30, 30)
    before = picture.copy()
    prepare_picture(picture, rules(64, 64))
    assert np.array_equal(picture, before)


def test_batches():
    small = rules(64, 128)
    wide, also_wide, tall = (
        prepare_picture(random_picture(*size, seed), small)
        for seed, size in enumerate([(60, 100), (58, 96), (100, 60)])
    )
    batch = stack_batch([wide, also_wide], [7, "b"])
    assert batch.pixels.shape == (2, 3, 64, 128)
    assert batch.ids == (7, "b")
    assert np.array_equal(batch.pixels[1], also_wide.pixels)
    assert batch.sizes.tolist() == [[60, 100], [58, 96]]
    assert batch.im_info.dtype == batch.pixels.dtype == np.float32
    assert np.array_equal(batch.im_info, np.array([(64, 128, wide.scale), (64, 128, also_wide.scale)], np.float32))
    with pytest.raises(UsageError, match="one padded shape"):
        stack_batch([wide, tall], [1, 2])
    mixed = stack_batch([wide, tall], [1, 2], padded=True)
    assert mixed.pixels.shape == (2, 3, 128, 128)
    assert np.array_equal(mixed.pixels[0, :, :64], wide.pixels)
    assert not mixed.pixels[0, :, 64:].any()
    assert np.array_equal(mixed.pixels[1, :, :, :64], tall.pixels)
    assert mixed.im_info[:, :2].tolist() == [[128, 128], [128, 128]]
    for pictures, ids in (([], []), ([wide], [1, 2])):
        with pytest.raises(UsageError, match="an id for each"):
            stack_batch(pictures, ids)
