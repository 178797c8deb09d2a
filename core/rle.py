"""COCO's compressed run lengths of binary masks: made from a crop or a mask, and read back.

A mask (H, W) is taken column by column; runs of zeros and ones alternate, zeros first. From the fourth run on, a run is written as its
difference from the run two places before; each value is written in groups of five bits, lowest first, one character a group (the bits
plus 48, with bit 5 set where more groups follow). This is the form of the COCO API, byte for byte.
"""

from __future__ import annotations

import numpy as np

from roiline.core.errors import DataError
from roiline.core.structures import Bool, Int64, UInt8

_GROUP_BITS = 5
_MORE = 1 << _GROUP_BITS
_SIGN = 1 << (_GROUP_BITS - 1)
_FIRST_CHARACTER = 48
_MOST_GROUPS = 12
"""Groups of the longest number that is read: 60 bits."""


def encode_mask(mask: Bool | UInt8) -> bytes:
    """Returns the compressed run lengths of a mask (H, W); what is not 0 is foreground."""
    height, width = mask.shape
    return encode_crop(mask, 0, 0, height, width)


def encode_crop(crop: Bool | UInt8, top: int, left: int, height: int, width: int) -> bytes:
    """Returns the compressed run lengths of a mask (height, width) that is `crop` from row `top` and column `left`, and 0 elsewhere.

    The mask itself is never made: the work and the memory are those of the crop.

    Raises:
        DataError: the crop does not lie within the mask.
    """
    rows, columns = crop.shape
    if not (0 <= top <= height - rows and 0 <= left <= width - columns):
        raise DataError(
            f"a crop of {rows} x {columns} at row {top}, column {left} does not lie within {height} x {width}"
        )
    starts, ends = _find_runs(np.asarray(crop, np.bool_), top, left, height)
    total = height * width
    edges = np.empty(2 * len(starts) + 2, np.int64)
    edges[0], edges[1:-1:2], edges[2:-1:2], edges[-1] = 0, starts, ends, total
    runs = np.diff(edges)
    ends_in_foreground = len(starts) > 0 and ends[-1] == total
    return compress_runs(runs[:-1] if ends_in_foreground else runs)


def _find_runs(crop: Bool, top: int, left: int, height: int) -> tuple[Int64, Int64]:
    """Returns where each run of ones starts and where it has ended, as positions in the column-major mask."""
    rows, columns = crop.shape
    framed = np.zeros((rows + 2, columns), np.bool_)
    framed[1:-1] = crop
    row, column = np.divmod(np.flatnonzero(framed[1:] != framed[:-1]), max(columns, 1))
    positions = np.sort((left + column) * height + top + row)
    starts, ends = positions[0::2], positions[1::2]
    joined = np.flatnonzero(ends[:-1] == starts[1:])
    return np.delete(starts, joined + 1), np.delete(ends, joined)


def compress_runs(runs: Int64) -> bytes:
    """Returns the compressed form of run lengths (zeros first)."""
    values = runs.astype(np.int64)
    values[3:] -= runs[1:-2]
    groups: list[UInt8] = []
    going: list[Bool] = []
    open_ = np.ones(len(values), np.bool_)
    while open_.any():
        low = values & (_MORE - 1)
        values = values >> _GROUP_BITS
        more = np.where(low & _SIGN, values != -1, values != 0)
        groups.append((low + _MORE * more + _FIRST_CHARACTER).astype(np.uint8))
        going.append(open_)
        open_ = open_ & more
    return np.stack(groups, axis=1)[np.stack(going, axis=1)].tobytes()


def decompress_runs(counts: bytes | str) -> Int64:
    """Returns the run lengths (zeros first) of their compressed form.

    Raises:
        DataError: this is not the form, or a run has a negative length.
    """
    data = counts.encode("latin1", "replace") if isinstance(counts, str) else counts
    groups = np.frombuffer(data, np.uint8).astype(np.int64) - _FIRST_CHARACTER
    if not groups.size or groups.min() < 0 or groups.max() >= 2 * _MORE or groups[-1] & _MORE:
        raise DataError(f"run lengths of a mask: {data[:40]!r} is not COCO's compressed form")
    last = np.flatnonzero(groups < _MORE)
    first = np.concatenate([[0], last[:-1] + 1])
    lengths = last - first + 1
    if lengths.max() > _MOST_GROUPS:
        raise DataError(
            f"run lengths of a mask: a number of {lengths.max()} characters in {data[:40]!r} is out of range"
        )
    shifts = _GROUP_BITS * (np.arange(len(groups)) - np.repeat(first, lengths))
    values = np.add.reduceat((groups & (_MORE - 1)) << shifts, first)
    negative = (groups[last] & _SIGN) != 0
    values -= np.where(negative, np.int64(1) << (_GROUP_BITS * lengths), 0)
    runs = _undo_differences(values)
    if runs.min() < 0:
        raise DataError(f"run lengths of a mask: {data[:40]!r} has a run of length {runs.min()}")
    return runs


def _undo_differences(values: Int64) -> Int64:
    """Returns runs r of r[i] - r[i - 2] (i > 2): odd and even places are two running sums; the first run belongs to neither."""
    runs = values.copy()
    runs[1::2] = np.cumsum(values[1::2])
    runs[2::2] = np.cumsum(values[2::2])
    return runs


def decode_rle(counts: bytes | str, height: int, width: int) -> Bool:
    """Returns the mask (height, width) of compressed run lengths.

    Raises:
        DataError: this is not the compressed form, or the runs do not add up to the size.
    """
    runs = decompress_runs(counts)
    if runs.sum() != height * width:
        raise DataError(
            f"run lengths of a mask: they add up to {runs.sum()}, expected {height} x {width} = {height * width}"
        )
    values = np.zeros(len(runs), np.bool_)
    values[1::2] = True
    return np.repeat(values, runs).reshape(width, height).T


def measure_area(counts: bytes | str) -> int:
    """Returns the number of foreground pixels of compressed run lengths."""
    return int(decompress_runs(counts)[1::2].sum())
