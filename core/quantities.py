"""What counts as a number in data from outside: finite, of a size that later arithmetic can bear, and no truth value.

Every reader asks here, so that one file is not fine to one command and a fault to another.
"""

from __future__ import annotations

from typing import Any, TypeGuard, TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T", np.float32, np.float64)

LARGEST = 1e15
"""The largest magnitude of a number in a dataset or a result file: products of two still fit single precision."""

_INT64 = np.iinfo(np.int64)


def is_number(value: object) -> TypeGuard[float]:
    """Says whether a value is an integer or a float that a dataset may have."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and -LARGEST <= value <= LARGEST


def is_integer(value: object) -> TypeGuard[int]:
    """Says whether a value is an integer of at most 64 bits."""
    return isinstance(value, int) and not isinstance(value, bool) and _INT64.min <= value <= _INT64.max


def array_from_numbers(value: object, dtype: type[T]) -> NDArray[T]:
    """Returns nested lists or an array of numbers as an array of floats; what is too large for `dtype` becomes infinite, without a warning.

    Raises:
        ValueError: rows of different lengths, or something that is no real number (text, complex numbers, objects).
    """
    array: NDArray[Any] = np.asarray(value)
    if array.dtype.kind == "O":  # integers beyond 64 bits, or what is no number
        if not all(isinstance(item, (int, float, np.number)) for item in array.flat):
            raise ValueError("not all of its values are numbers")
        array = _floats_from_objects(array)
    if array.size and array.dtype.kind not in "biuf":
        raise ValueError(f"its values are of type {array.dtype}")
    if not array.size:
        return np.zeros(array.shape, dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(array, dtype)


def are_numbers(array: NDArray[np.floating[Any]]) -> bool:
    """Says whether all values of an array are finite and of a size that data may have."""
    return bool((np.abs(array) <= LARGEST).all())


def _floats_from_objects(array: NDArray[Any]) -> NDArray[np.float64]:
    flat = np.empty(array.size, np.float64)
    for position, item in enumerate(array.flat):
        try:
            flat[position] = item
        except OverflowError:
            flat[position] = np.inf
    return flat.reshape(array.shape)
