from __future__ import annotations

import cv2
import numpy as np
import pytest
from operator_forms import need_host_compiler

from roiline.core.errors import DataError, UsageError
from roiline.core.spec import ImageRules
from roiline.infer.device_preparation import can_prepare_on_device, plan_device_preparation
from roiline.infer.preparation import prepare_picture
from roiline.ops.image_preparation import PREPARE_IMAGE
from roiline.ops.kernel_host import run_on_host

# One float at values from 128 to 256; OpenCV's own code, without Intel's library, rounds positions to single precision.
OPENCV_ATOL = 2.0**-16 if "Intel IPP:" in cv2.getBuildInformation() else 0.05
SIZES = ((48, 64), (33, 50), (64, 43), (10, 3), (90, 90))


def _rules(resize: str, **changes) -> ImageRules:
    return ImageRules(
        **{
            "channel_order": "BGR",
            "means": (102.9801, 115.9465, 122.7717),
            "stds": (1.0, 1.0, 1.0),
            "scale": 70,
            "max_size": 110,
            "resize": resize,
            "pad_multiple": 32,
            "exif": "apply",
        }
        | changes
    )


TORCHVISION = {"channel_order": "RGB", "divisor": 255.0, "means": (0.485, 0.456, 0.406), "stds": (0.229, 0.224, 0.225)}


def _prepare(picture: np.ndarray, rules: ImageRules) -> np.ndarray:
    need_host_compiler()
    plan = plan_device_preparation(picture, rules)
    (pixels,) = run_on_host(PREPARE_IMAGE, plan.inputs, plan.attributes)
    return pixels


def _picture(height: int, width: int) -> np.ndarray:
    return np.random.default_rng(height).integers(0, 256, (height, width, 3), np.uint8)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("resize", ["detectron", "detectron_stretch"])
@pytest.mark.parametrize("order", ["BGR", "RGB"])
def test_the_kernel_samples_as_opencv(order, resize, size):
    picture, rules = _picture(*size), _rules(resize, channel_order=order)
    expected, got = prepare_picture(picture, rules).pixels, _prepare(picture, rules)
    assert got.shape == expected.shape
    np.testing.assert_allclose(got, expected, rtol=0, atol=OPENCV_ATOL)


@pytest.mark.parametrize("size", [*SIZES, (1, 40), (40, 1)])
@pytest.mark.parametrize("resize", ["torchvision", "torchvision_stretch"])
def test_the_kernel_samples_as_torchvision_to_the_last_bit(resize, size):
    picture, rules = _picture(*size), _rules(resize, **TORCHVISION)
    np.testing.assert_array_equal(_prepare(picture, rules), prepare_picture(picture, rules).pixels)


def test_a_picture_of_the_right_size_keeps_its_values():
    picture = _picture(70, 80)
    rules = _rules("detectron")
    np.testing.assert_array_equal(_prepare(picture, rules), prepare_picture(picture, rules).pixels)


def test_detectron2s_rule_has_no_kernel():
    rules = _rules("detectron2")
    assert not can_prepare_on_device(rules)
    with pytest.raises(UsageError, match="'detectron2' are prepared on the host"):
        plan_device_preparation(_picture(4, 4), rules)


def test_a_picture_without_pixels_is_refused():
    with pytest.raises(DataError, match="no pixels"):
        plan_device_preparation(np.zeros((0, 3, 3), np.uint8), _rules("detectron"))
