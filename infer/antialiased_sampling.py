"""Resizing of 8-bit planes as Pillow does it, bit for bit: bilinear, with a filter that widens where a picture shrinks.

Sides are resized one after the other, across first, and what comes of the first is rounded to whole grey levels; a side that keeps its
length is left alone. Weights are whole numbers of 2^-22. Rows are gathered whole, so the pass across works on the transposed plane, and a
few at a time, so that sums stay in the processor's cache.
Source: the behaviour of Pillow's `Image.resize` with `BILINEAR`.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from roiline.core.structures import Int32, Int64, UInt8
from roiline.infer.pictures import open_cv2

_BITS = 22
_VALUES_AT_ONCE = 1 << 15


class _Taps(NamedTuple):
    """Is what each of n rows is made of: rows (n, taps) of the plane and their weights (n, taps), 0 where there is none."""

    rows: Int64
    weights: Int32


def resize_antialiased(plane: UInt8, height: int, width: int) -> UInt8:
    """Returns a plane (H, W) with `height` rows of `width` pixels."""
    cv2 = open_cv2()
    if plane.shape[1] != width:
        plane = cv2.transpose(_resample_rows(cv2.transpose(plane), width))
    if plane.shape[0] != height:
        plane = _resample_rows(plane, height)
    return plane


def _resample_rows(plane: UInt8, count: int) -> UInt8:
    taps = _taps_of(plane.shape[0], count)
    resampled = np.empty((count, plane.shape[1]), np.uint8)
    block = max(_VALUES_AT_ONCE // max(plane.shape[1], 1), 1)
    total, part = (np.empty((block, plane.shape[1]), np.int32) for _ in range(2))
    for start in range(0, count, block):
        target = resampled[start : start + block]
        totals, parts = total[: len(target)], part[: len(target)]
        totals[:] = 1 << (_BITS - 1)
        for rows, weights in zip(taps.rows.T, taps.weights.T, strict=True):
            here = slice(start, start + len(target))
            totals += np.multiply(plane[rows[here]], weights[here, None], out=parts)
        totals >>= _BITS
        target[:] = np.minimum(totals, 255, out=totals)
    return resampled


@functools.lru_cache(maxsize=64)
def _taps_of(size: int, count: int) -> _Taps:
    """Returns the taps of `count` rows over `size` ones."""
    ratio = size / count
    reach = max(ratio, 1.0)
    centres = (np.arange(count) + 0.5) * ratio
    first = np.maximum((centres - reach + 0.5).astype(np.int64), 0)
    last = np.minimum((centres + reach + 0.5).astype(np.int64), size)
    rows = first[:, None] + np.arange(int((last - first).max()))
    weights = np.maximum(1.0 - np.abs((rows - centres[:, None] + 0.5) * (1.0 / reach)), 0.0)
    weights[rows >= last[:, None]] = 0.0
    weights /= weights.sum(axis=1, keepdims=True)
    whole = (weights * (1 << _BITS) + 0.5).astype(np.int32)
    order = np.argsort(whole == 0, axis=1, kind="stable")[
        :, : int((whole > 0).sum(axis=1).max())
    ]  # zeros last, and off
    rows, whole = (np.take_along_axis(values, order, axis=1) for values in (np.minimum(rows, size - 1), whole))
    return _Taps(rows, whole)
