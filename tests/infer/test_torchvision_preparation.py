"""torchvision's way from a picture to network input, against what torchvision itself recorded of a picture."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from shared_data import shared_path

from roiline.core.spec import ImageRules
from roiline.infer.preparation import network_size, prepare_picture, stack_batch

MEANS, STDS = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def rules(scale: int, max_size: int, resize: str = "torchvision") -> ImageRules:
    return ImageRules("RGB", MEANS, STDS, scale, max_size, resize, 32, "ignore", divisor=255.0, extent="resized")


def sample_plainly(picture: np.ndarray, height: int, width: int) -> np.ndarray:
    """Returns RGB planes sampled at pixel centres in double precision."""
    values = (picture[:, :, ::-1].transpose(2, 0, 1) / 255.0 - np.reshape(MEANS, (3, 1, 1))) / np.reshape(
        STDS, (3, 1, 1)
    )
    for axis, size in ((1, height), (2, width)):
        length = values.shape[axis]
        position = np.maximum((np.arange(size) + 0.5) * length / size - 0.5, 0)
        low = np.minimum(position.astype(int), length - 1)
        high, part = np.minimum(low + 1, length - 1), (position - low).reshape(-1, *(1,) * (2 - axis))
        values = values.take(low, axis) * (1 - part) + values.take(high, axis) * part
    return values


def test_a_recorded_picture():
    folder = shared_path("models/bccd-torchvision")
    with np.load(folder / "reference.npz") as stored:
        want, name = stored["0/input"], str(stored["names"][0])
        size = stored["0/image_size_hw"]
    picture = cv2.imread(str(shared_path("data/bccd") / "JPEGImages" / name))
    batch = stack_batch([prepare_picture(picture, rules(288, 384))], [0])
    assert np.abs(batch.pixels - want).max() < 1e-5
    assert batch.im_info[0, :2].tolist() == size.tolist()


@pytest.mark.parametrize(
    ("size_hw", "scale", "max_size", "expected"),
    [
        ((480, 640), 800, 1333, (800, 1066)),  # 1066.67: sides are cut, not rounded
        ((427, 640), 800, 1333, (800, 1199)),
        ((200, 900), 320, 1333, (296, 1333)),
        ((100, 64), 64, 80, (80, 51)),
        ((3, 3000), 800, 1333, (1, 1333)),
    ],
)
def test_sizes_are_cut_to_whole_pixels(size_hw, scale, max_size, expected):
    size = network_size(*size_hw, rules(scale, max_size))
    assert (size.height, size.width) == expected
    assert (size.padded_height % 32, size.padded_width % 32) == (0, 0)


@pytest.mark.parametrize("resize", ["torchvision", "torchvision_stretch"])
def test_samples_lie_where_the_ratio_of_sizes_puts_them(resize):
    picture = np.random.default_rng(0).integers(0, 256, (37, 61, 3), dtype=np.uint8)
    prepared = prepare_picture(picture, rules(53, 70, resize))
    shape = (prepared.height, prepared.width)
    assert shape == ((70, 53) if resize == "torchvision_stretch" else (42, 70))
    content = prepared.pixels[:, : shape[0], : shape[1]]
    np.testing.assert_allclose(content, sample_plainly(picture, *shape), atol=5e-5, rtol=0)
    assert not prepared.pixels[:, shape[0] :].any()
    assert not prepared.pixels[:, :, shape[1] :].any()
    assert prepared.extent_hw == shape
