from __future__ import annotations

import numpy as np
import pytest

from roiline.ops.extents import OPERATIONS, Extent, build_size, ceil_div, evaluate_size, maximum, minimum

ROWS, COLUMNS = Extent("dimension", 0, 0), Extent("dimension", 1, 2)
SHAPES = [(7, 5), (2, 3, 11)]


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (ROWS, 7),
        (COLUMNS, 11),
        (ROWS + 3, 10),
        (3 + ROWS, 10),
        (ROWS - 3, 4),
        (30 - ROWS, 23),
        (ROWS * COLUMNS, 77),
        (2 * ROWS, 14),
        (COLUMNS // 4, 2),
        (ceil_div(COLUMNS, 4), 3),
        (minimum(ROWS, COLUMNS), 7),
        (maximum(ROWS, COLUMNS), 11),
        (minimum(ceil_div(ROWS * 4 + COLUMNS, 2), 1000), 20),
    ],
)
def test_an_expression_is_a_number_once_shapes_are_known(size, expected):
    assert evaluate_size(size, SHAPES) == expected


def test_numbers_stay_numbers():
    assert ceil_div(7, 2) == 4
    assert minimum(7, 2) == 2
    assert maximum(7, 2) == 7
    assert evaluate_size(5, []) == 5


def test_shapes_may_be_numpys():
    assert type(evaluate_size(ROWS, [np.array([7], np.int64)])) is int


def test_an_expression_is_rebuilt_in_another_arithmetic():
    symbols = {name: lambda first, second, name=name: f"({first} {name} {second})" for name in OPERATIONS}
    built = build_size(ceil_div(ROWS * 4 + COLUMNS, 2), str, lambda tensor, axis: f"t{tensor}[{axis}]", symbols)
    assert built == "(((t0[0] * 4) + t1[2]) ceil_div 2)"


def test_a_dimension_is_named_by_numbers():
    with pytest.raises(TypeError, match="named by numbers"):
        evaluate_size(Extent("dimension", ROWS, 0), SHAPES)
