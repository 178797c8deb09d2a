"""Mask paste by sampling: every pixel's centre is looked up in the mask, bilinearly, with zeros around it.

Source: the behaviour of detectron2's `paste_masks_in_image`. Positions are computed in single precision, as there.
"""

from __future__ import annotations

import numpy as np

from roiline.core.structures import Float32, Int64


def sample_mask(mask: Float32, box: Float32, height: int, width: int) -> tuple[Float32, int, int]:
    """Returns the probabilities (h, w) of the pixels that a mask (M, M) in its box can reach, and the row and column of the first one.

    `box` (4,) is in pixels of the picture, not rounded.
    """
    framed = np.pad(mask, 1)
    x1, y1, x2, y2 = box
    top, down, down_weight = _sample_axis(y1, y2, height, len(mask))
    left, across, across_weight = _sample_axis(x1, x2, width, len(mask))
    rows = framed[down] * (1 - down_weight)[:, None] + framed[down + 1] * down_weight[:, None]
    pixels = rows[:, across] * (1 - across_weight) + rows[:, across + 1] * across_weight
    return pixels.astype(np.float32, copy=False), top, left


def _sample_axis(low: np.float32, high: np.float32, size: int, cells: int) -> tuple[int, Int64, Float32]:
    """Returns the first pixel that the span reaches, and for each its cell in the framed mask and its distance from that cell's centre."""
    first, last = max(int(np.floor(low)) - 1, 0), min(int(np.ceil(high)) + 1, size)
    centres = np.arange(first, max(last, first), dtype=np.float32) + np.float32(0.5)
    relative = (centres - low) / (high - low) * np.float32(2) - np.float32(1)
    position = ((relative + np.float32(1)) * np.float32(cells) - np.float32(1)) / np.float32(2)
    position = np.clip(position, np.float32(-1), np.float32(cells))
    cell = np.minimum(np.floor(position), np.float32(cells - 1))
    return first, cell.astype(np.int64) + 1, (position - cell).astype(np.float32)
