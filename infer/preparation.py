"""Pictures to network input, bit for bit as the source framework prepares them.

Means are subtracted first, the float picture is sampled bilinearly, and the result is padded with zeros at the bottom and right. It is
done plane by plane, which gives the same bits as the interleaved way and is several times faster: subtraction is a table of 256 values,
and no transposition is left. Detectron's rule is OpenCV's sampling by the scale factor itself (not by the ratio of rounded sizes);
torchvision's is sampling by the ratio of sizes with positions in single precision, which OpenCV would place up to 2e-4 off in value.
detectron2's is Pillow's sampling of the 8-bit picture; means are subtracted after it.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from roiline.core.errors import DataError, UsageError
from roiline.core.spec import ImageRules
from roiline.core.structures import Float32, ImageBatch, ImageId, Int64, UInt8
from roiline.infer.antialiased_sampling import resize_antialiased
from roiline.infer.pictures import open_cv2

_TORCHVISION = ("torchvision", "torchvision_stretch")
_SINGLE_PRECISION = (*_TORCHVISION, "detectron2")


class NetworkSize(NamedTuple):
    """Is what becomes of a picture's size: resized `height` and `width`, `padded_height` and `padded_width`, and the `scale` factor."""

    height: int
    width: int
    padded_height: int
    padded_width: int
    scale: float


@dataclass(frozen=True, slots=True)
class PreparedPicture:
    """Is one picture as network input.

    `pixels` (3, Hp, Wp) float32 in the network's channel order; the picture fills the upper left `height` x `width`, zeros the rest.
    `scale` is network pixels per original pixel, `size_hw` the original (height, width). `extent_hw`: what the network is told of its
    size where that is not the padded one.
    """

    pixels: Float32
    height: int
    width: int
    scale: float
    size_hw: tuple[int, int]
    extent_hw: tuple[int, int] | None = None


def image_scale(height: int, width: int, rules: ImageRules) -> float:
    """Returns the factor that makes the shorter side `rules.scale`, or the longer side `rules.max_size` where it would exceed that.

    In double precision, and where Detectron's sampling is used with rounding half to even, as its `prep_im_for_blob`.

    Raises:
        DataError: a side is not positive.
    """
    if height <= 0 or width <= 0:
        raise DataError(f"a picture of {width} x {height} (width x height) has no pixels")
    shorter, longer = min(height, width), max(height, width)
    if rules.resize == "detectron2" and rules.scale == 0:
        return 1.0
    scale = float(rules.scale) / float(shorter)
    if rules.resize in _SINGLE_PRECISION:
        return min(scale, float(rules.max_size) / float(longer))
    if round(scale * longer) > rules.max_size:
        scale = float(rules.max_size) / float(longer)
    return scale


def network_size(height: int, width: int, rules: ImageRules) -> NetworkSize:
    """Returns what `prepare_picture` will make of a picture of this size; needs no pixels, so that runs can be planned.

    A side of an extreme picture that would round to nothing becomes one pixel.
    """
    scale = image_scale(height, width, rules)
    if rules.resize in ("detectron_stretch", "torchvision_stretch"):
        resized_h, resized_w = rules.max_size, rules.scale
    elif rules.resize == "detectron2":
        resized_h, resized_w = _round_sides(height, width, rules)
    else:
        whole = int if rules.resize in _TORCHVISION else round
        resized_h, resized_w = max(1, whole(height * scale)), max(1, whole(width * scale))
    multiple = max(1, rules.pad_multiple)
    return NetworkSize(
        resized_h, resized_w, -(-resized_h // multiple) * multiple, -(-resized_w // multiple) * multiple, scale
    )


def _round_sides(height: int, width: int, rules: ImageRules) -> tuple[int, int]:
    """Returns detectron2's sides: the shorter one is the scale exactly, both shrink once more where the longer exceeds the maximum."""
    if rules.scale == 0:
        return height, width
    ratio = rules.scale / min(height, width)
    sides: tuple[float, float] = (rules.scale, ratio * width) if height < width else (ratio * height, rules.scale)
    if max(sides) > rules.max_size:
        excess = rules.max_size / max(sides)
        sides = sides[0] * excess, sides[1] * excess
    return max(1, int(sides[0] + 0.5)), max(1, int(sides[1] + 0.5))


def prepare_picture(picture: UInt8, rules: ImageRules) -> PreparedPicture:
    """Turns a BGR picture into network input.

    `picture` is (H, W, 3) uint8 in BGR order, whatever the network's order is.

    Raises:
        UsageError: `picture` is not such an array.
        DataError: it has no pixels.
    """
    if not isinstance(picture, np.ndarray) or picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3:
        got = f"{picture.dtype} {picture.shape}" if isinstance(picture, np.ndarray) else type(picture).__name__
        raise UsageError(f"expected a BGR picture as a uint8 array (height, width, 3), got {got}")
    size_hw = (int(picture.shape[0]), int(picture.shape[1]))
    size = network_size(*size_hw, rules)
    cv2 = open_cv2()
    planes = cv2.split(np.ascontiguousarray(picture))
    if rules.channel_order == "RGB":
        planes = planes[::-1]
    pixels = np.empty((3, size.padded_height, size.padded_width), np.float32)
    pixels[:, size.height :] = 0
    pixels[:, : size.height, size.width :] = 0
    for plane, table, target in zip(planes, value_tables(rules), pixels, strict=True):
        resized = target[: size.height, : size.width]
        if rules.resize == "detectron2":
            resized[:] = cv2.LUT(resize_antialiased(plane, size.height, size.width), table)
            continue
        values = cv2.LUT(plane, table)
        if rules.resize in _TORCHVISION:
            _sample_plane(values, resized)
        else:
            _resize_plane(values, resized, size.scale if rules.resize == "detectron" else None)
    extent_hw = (size.height, size.width) if rules.extent == "resized" else None
    return PreparedPicture(pixels, size.height, size.width, size.scale, size_hw, extent_hw)


def leave_unprepared(picture: UInt8, rules: ImageRules) -> PreparedPicture:
    """Returns what is known of a BGR picture's network input without making it: its pixels are zeros that take no memory.

    Raises:
        DataError: the picture has no pixels.
    """
    size_hw = (int(picture.shape[0]), int(picture.shape[1]))
    size = network_size(*size_hw, rules)
    pixels = np.broadcast_to(np.float32(0), (3, size.padded_height, size.padded_width))
    extent_hw = (size.height, size.width) if rules.extent == "resized" else None
    return PreparedPicture(pixels, size.height, size.width, size.scale, size_hw, extent_hw)


def stack_batch(pictures: Sequence[PreparedPicture], ids: Sequence[ImageId], *, padded: bool = False) -> ImageBatch:
    """Joins prepared pictures to one batch, in order.

    All must have one padded shape; with `padded` smaller ones are filled up with zeros to the common maximum. Of pictures without pixels
    (`leave_unprepared`) the batch has none either.

    Raises:
        UsageError: no pictures, another number of ids, or several shapes without `padded`.
    """
    if not pictures or len(pictures) != len(ids):
        raise UsageError(f"a batch needs pictures and an id for each, got {len(pictures)} pictures and {len(ids)} ids")
    one = len(pictures) == 1
    pixels = pictures[0].pixels[None] if one else _stack_pixels([picture.pixels for picture in pictures], padded=padded)
    height, width = pixels.shape[2:]
    return ImageBatch(
        pixels,
        np.array([(*(picture.extent_hw or (height, width)), picture.scale) for picture in pictures], np.float32),
        np.array([picture.size_hw for picture in pictures], np.float32),
        tuple(ids),
    )


def _stack_pixels(pixels: Sequence[Float32], *, padded: bool) -> Float32:
    """Returns (N, 3, H, W) of several (3, H, W)."""
    shapes = {one.shape for one in pixels}
    if len(shapes) > 1 and not padded:
        raise UsageError(f"a batch needs pictures of one padded shape, got {sorted(shapes)}")
    _, height, width = map(max, zip(*shapes, strict=True))
    if not any(any(one.strides) for one in pixels):
        return np.broadcast_to(np.float32(0), (len(pixels), 3, height, width))
    if len(shapes) == 1:
        return np.stack(pixels)
    stacked = np.zeros((len(pixels), 3, height, width), np.float32)
    for target, one in zip(stacked, pixels, strict=True):
        target[:, : one.shape[1], : one.shape[2]] = one
    return stacked


@functools.lru_cache(maxsize=8)
def value_tables(rules: ImageRules) -> tuple[Float32, ...]:
    """Returns for each channel the network value of every uint8 value.

    Detectron's are computed in double and rounded once, as numpy does in place; the others' in single precision step by step.
    """
    kind: type[np.floating[Any]] = np.float32 if rules.resize in _SINGLE_PRECISION else np.float64
    values = np.arange(256, dtype=kind) / kind(rules.divisor)
    return tuple(
        ((values - kind(mean)) / kind(std)).astype(np.float32)
        for mean, std in zip(rules.means, rules.stds, strict=True)
    )


def _resize_plane(plane: Float32, target: Float32, scale: float | None) -> None:
    """Samples `plane` into `target` (a view of rows) by the factor `scale`, or (None) by the ratio of sizes."""
    cv2 = open_cv2()
    height, width = plane.shape
    if scale is not None and (round(height * scale), round(width * scale)) == target.shape:
        cv2.resize(plane, None, target, fx=scale, fy=scale, interpolation=cv2.INTER_LINEAR)
    else:  # by sizes, or a side was raised to one pixel: OpenCV refuses the factor then
        cv2.resize(plane, target.shape[::-1], target, interpolation=cv2.INTER_LINEAR)


def _sample_plane(plane: Float32, target: Float32) -> None:
    """Samples `plane` into `target` bilinearly by the ratio of sizes, positions in single precision: rows first, then columns."""
    down, across = sample_axis(plane.shape[0], target.shape[0]), sample_axis(plane.shape[1], target.shape[1])
    rows = plane[down.low]
    rows *= (1 - down.fraction)[:, None]
    rows += plane[down.high] * down.fraction[:, None]
    np.multiply(rows[:, across.low], 1 - across.fraction, out=target)
    target += rows[:, across.high] * across.fraction


class _Samples(NamedTuple):
    """Is where the samples of one axis lie: between which two pixels, and how far from the first."""

    low: Int64
    high: Int64
    fraction: Float32


@functools.lru_cache(maxsize=64)
def sample_axis(size: int, samples: int) -> _Samples:
    """Returns the positions size / samples * (i + 0.5) - 0.5, the ratio and the result rounded to single precision, kept on the axis."""
    ratio = np.float64(np.float32(size) / np.float32(samples))
    position = np.maximum((ratio * (np.arange(samples) + 0.5) - 0.5).astype(np.float32), np.float32(0))
    low = np.minimum(position.astype(np.int64), size - 1)
    fraction = np.where(low < size - 1, position - low, 0).astype(np.float32)
    return _Samples(low, np.minimum(low + 1, size - 1), fraction)
