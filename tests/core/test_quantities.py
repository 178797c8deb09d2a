from __future__ import annotations

import numpy as np
import pytest

from roiline.core.quantities import LARGEST, are_numbers, array_from_numbers, is_integer, is_number


@pytest.mark.parametrize("value", [0, -3, 2.5, LARGEST, -LARGEST])
def test_numbers(value: float) -> None:
    assert is_number(value)


@pytest.mark.parametrize("value", [True, None, "1", [], 1j, float("nan"), float("inf"), 1e308, 10**400, -(10**400)])
def test_what_is_no_number(value: object) -> None:
    assert not is_number(value)


def test_integers_have_at_most_64_bits() -> None:
    assert is_integer(2**63 - 1)
    assert is_integer(-(2**63))
    assert not any(map(is_integer, (2**63, 10**400, True, 1.0, "1")))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([[1, 2], [3, 4.5]], [[1, 2], [3, 4.5]]),
        (np.array([1, 2], object), [1, 2]),
        (np.array([1, 255], np.uint8), [1, 255]),
        ([2**63, 1], [float(2**63), 1]),
        ([10**400, 1], [np.inf, 1]),
        ([1e300], [np.inf]),
        ([], []),
        ([[], []], [[], []]),
    ],
)
def test_arrays_of_numbers(value: object, expected: list[object]) -> None:
    array = array_from_numbers(value, np.float32)
    assert array.dtype == np.float32
    assert array.tolist() == expected


@pytest.mark.parametrize("value", [["1"], [1j], np.array([1j]), [None], [[1], [1, 2]], "box", [[1, [2]]], {"a": 1}])
def test_arrays_of_something_else(value: object) -> None:
    with pytest.raises(ValueError, match=r"type|numbers|inhomogeneous"):
        array_from_numbers(value, np.float64)


def test_arrays_are_checked_without_warnings() -> None:
    assert are_numbers(np.array([1.0, -LARGEST]))
    assert are_numbers(np.zeros((0, 4), np.float32))
    assert not any(are_numbers(np.array([1, value], np.float32)) for value in (np.nan, np.inf, 1e20))
