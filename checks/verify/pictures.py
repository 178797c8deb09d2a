"""Pictures for the reference: made up ones, and how a source's program makes network input of a picture, from its rule alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from roiline.core.errors import ConfigError
from roiline.core.spec import ImageRules
from roiline.core.structures import Float32, Float64, UInt8

GENERATED_SIZES = ((240, 320), (300, 200))
"""(height, width) of the pictures that are made up where none are given: one lies, one stands."""


class NetworkInput(NamedTuple):
    """Is one picture as a network takes it: `data` (1, 3, H, W), `im_info` (1, 3), `im_size` (1, 2), all float32."""

    data: Float32
    im_info: Float32
    im_size: Float32


def generate_picture(seed: int, height: int, width: int) -> UInt8:
    """Returns a BGR picture (height, width, 3) of smooth colours, boxes and discs, the same for the same seed."""
    random = np.random.default_rng(seed)
    down, across = np.mgrid[0:height, 0:width] / max(height, width)
    picture = np.zeros((height, width, 3))
    for channel in range(3):
        waves = random.uniform(2, 14, (4, 3))
        picture[:, :, channel] = sum(np.sin(a * down * 3 + b * across * 3 + c) for a, b, c in waves) * 25 + 110
    for _ in range(12):
        y, x = random.uniform(0, height), random.uniform(0, width)
        size = random.uniform(0.05, 0.3) * min(height, width)
        colour = random.uniform(0, 255, 3)
        rows, columns = np.abs(down * max(height, width) - y), np.abs(across * max(height, width) - x)
        inside = (rows < size) & (columns < size * 0.7) if random.random() < 0.5 else rows**2 + columns**2 < size**2
        picture[inside] = colour
    noisy = picture + random.normal(0, 6, picture.shape)
    return np.clip(noisy, 0, 255).astype(np.uint8)


def prepare_input(picture: UInt8, rules: ImageRules) -> NetworkInput:
    """Returns network input of a BGR picture (H, W, 3) as the source's program makes it.

    Raises:
        ConfigError: the reference does not know how the source resizes.
    """
    prepare = _RULES.get(rules.resize)
    if prepare is None:
        raise ConfigError(f"the reference does not know the resizing rule {rules.resize!r}")
    plane, scale = prepare(picture, rules)
    height, width = plane.shape[:2]
    multiple = max(1, rules.pad_multiple)
    padded = np.zeros((-(-height // multiple) * multiple, -(-width // multiple) * multiple, 3), np.float32)
    padded[:height, :width] = plane
    extent = padded.shape[:2] if rules.extent == "padded" else (height, width)
    return NetworkInput(
        np.ascontiguousarray(padded.transpose(2, 0, 1)[None]),
        np.array([[*extent, scale]], np.float32),
        np.array([picture.shape[:2]], np.float32),
    )


def _prepare_detectron(picture: UInt8, rules: ImageRules) -> tuple[Float32, float]:
    """Subtracts means, then samples bilinearly by the scale factor itself."""
    height, width = picture.shape[:2]
    scale = rules.scale / min(height, width)
    if round(scale * max(height, width)) > rules.max_size:
        scale = rules.max_size / max(height, width)
    plane = (picture.astype(np.float64) - np.array(rules.means)).astype(np.float32)
    down = _bilinear(height, round(height * scale), 1 / scale)
    across = _bilinear(width, round(width * scale), 1 / scale)
    return _sample(plane, down, across), scale


def _prepare_stretched(picture: UInt8, rules: ImageRules) -> tuple[Float32, float]:
    """Subtracts means, then makes every picture of one size; the scale is the usual one all the same."""
    height, width = picture.shape[:2]
    scale = rules.scale / min(height, width)
    if round(scale * max(height, width)) > rules.max_size:
        scale = rules.max_size / max(height, width)
    plane = (picture.astype(np.float64) - np.array(rules.means)).astype(np.float32)
    down = _bilinear(height, rules.max_size, height / rules.max_size)
    across = _bilinear(width, rules.scale, width / rules.scale)
    return _sample(plane, down, across), scale


def _prepare_detectron2(picture: UInt8, rules: ImageRules) -> tuple[Float32, float]:
    """Resizes the 8-bit picture as Pillow does, smoothed where it shrinks and rounded after each pass; then means and stds."""
    height, width = picture.shape[:2]
    sides = np.array([height, width], np.float64)
    if rules.scale > 0:
        sides *= rules.scale / min(height, width)
        sides *= min(1.0, rules.max_size / sides.max())
    down, across = (int(side + 0.5) for side in sides)
    ordered = picture if rules.channel_order == "BGR" else picture[:, :, ::-1]
    values = ordered.astype(np.float64)
    if across != width:
        values = _round_half_up(np.einsum("ow,hwc->hoc", _triangle(width, across), values))
    if down != height:
        values = _round_half_up(np.einsum("oh,hwc->owc", _triangle(height, down), values))
    normal = (values.astype(np.float32) - np.array(rules.means, np.float32)) / np.array(rules.stds, np.float32)
    scale = 1.0 if rules.scale == 0 else min(rules.scale / min(height, width), rules.max_size / max(height, width))
    return normal.astype(np.float32), scale


_RULES: dict[str, Callable[[UInt8, ImageRules], tuple[Float32, float]]] = {
    "detectron": _prepare_detectron,
    "detectron_stretch": _prepare_stretched,
    "detectron2": _prepare_detectron2,
}


def _bilinear(size: int, samples: int, step: float) -> Float64:
    """Returns the weights (samples, size) of bilinear sampling at (i + 0.5) * step - 0.5, kept on the axis."""
    places = np.clip((np.arange(samples) + 0.5) * step - 0.5, 0, size - 1)
    low = np.floor(places).astype(np.int64)
    weights = np.zeros((samples, size))
    index = np.arange(samples)
    np.add.at(weights, (index, low), 1 - (places - low))
    np.add.at(weights, (index, np.minimum(low + 1, size - 1)), places - low)
    return weights


def _sample(plane: Float32, down: Float64, across: Float64) -> Float32:
    rows = np.tensordot(down, plane, axes=(1, 0))
    return np.asarray(np.einsum("ow,hwc->hoc", across, rows, optimize=True), np.float32)


def _triangle(size: int, samples: int) -> Float64:
    """Returns the weights (samples, size) of a triangle as wide as a sample, two pixels at the least."""
    step = size / samples
    reach = max(step, 1.0)
    weights = np.zeros((samples, size))
    for index in range(samples):
        centre = (index + 0.5) * step
        first, last = max(int(centre - reach + 0.5), 0), min(int(centre + reach + 0.5), size)
        taps = np.maximum(0, 1 - np.abs((np.arange(first, last) - centre + 0.5) / reach))
        weights[index, first:last] = taps / taps.sum()
    return np.rint(weights * (1 << 22)) / (1 << 22)


def _round_half_up(values: Float64) -> Float64:
    return np.clip(np.floor(values + 0.5), 0, 255)
