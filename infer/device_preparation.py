"""What a device needs to prepare a picture itself: bytes, value tables, and where samples lie, for the kernel `PrepareImage`.

The sizes, scales and values are those of `preparation.py`. Positions are computed here in double precision; only the interpolation is left
to the device, in single precision, as OpenCV and PyTorch have it. Against OpenCV with Intel's IPP (its x86 wheels) values are the same
but for the last bit or two of some; builds without IPP place samples a little differently.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roiline.core.errors import UsageError
from roiline.core.spec import ImageRules
from roiline.core.structures import Float32, Int64, UInt8
from roiline.infer.preparation import NetworkSize, network_size, sample_axis, value_tables


@dataclass(frozen=True, slots=True)
class DevicePreparation:
    """Is the kernel's input tensors in order, its attributes, and what becomes of the picture's size."""

    inputs: tuple[NDArray[Any], ...]
    attributes: dict[str, int]
    size: NetworkSize


def can_prepare_on_device(rules: ImageRules) -> bool:
    """Returns whether there is a kernel for these rules: for all but detectron2's, which resizes bytes by averaging."""
    return rules.resize != "detectron2"


def plan_device_preparation(picture: UInt8, rules: ImageRules) -> DevicePreparation:
    """Returns what the kernel needs to make network input of a BGR picture (H, W, 3).

    Raises:
        UsageError: these rules have no kernel.
        DataError: the picture has no pixels.
    """
    if not can_prepare_on_device(rules):
        raise UsageError(
            f"pictures with the resizing rule {rules.resize!r} are prepared on the host: this rule has no kernel"
        )
    height, width = picture.shape[:2]
    size = network_size(height, width, rules)
    rows_first = rules.resize in ("torchvision", "torchvision_stretch")
    if rows_first:
        axes = [sample_axis(height, size.height), sample_axis(width, size.width)]
        samples = [(axis.low, axis.fraction) for axis in axes]
    else:
        by_factor = rules.resize == "detectron" and (size.height, size.width) == (
            round(height * size.scale),
            round(width * size.scale),
        )
        samples = [
            _place_samples(pixels, count, 1 / size.scale if by_factor else pixels / count)
            for pixels, count in ((height, size.height), (width, size.width))
        ]
    (rows, row_shares), (columns, column_shares) = samples
    return DevicePreparation(
        (
            picture,
            np.stack(value_tables(rules)),
            rows.astype(np.int32),
            row_shares,
            columns.astype(np.int32),
            column_shares,
        ),
        {
            "padded_height": size.padded_height,
            "padded_width": size.padded_width,
            "swap_channels": int(rules.channel_order == "RGB"),
            "rows_first": int(rows_first),
        },
        size,
    )


def _place_samples(pixels: int, samples: int, step: float) -> tuple[Int64, Float32]:
    """Returns the first pixel and the share of the second of each sample at (i + 0.5) * step - 0.5, kept on the axis, as OpenCV."""
    position = (np.arange(samples) + 0.5) * step - 0.5
    low = np.floor(position)
    share = np.where((low < 0) | (low >= pixels - 1), 0, position - low).astype(np.float32)
    return np.clip(low, 0, pixels - 1).astype(np.int64), share
