"""Sizes that are not known yet: integer expressions over the dimensions of a node's inputs.

A kernel states its output shapes, arguments and work items once, as expressions. They are evaluated with numbers where shapes are known
(tests, the host), and rebuilt in a builder's own arithmetic where they are not (an engine with dynamic shapes). Expressions of plain
numbers are plain numbers at once.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Extent:
    """Is an integer expression: an operation (a key of `OPERATIONS`) on two sizes, or "dimension" of (input tensor, axis).

    Input tensors of a node are counted from 0, axes from the left. Divisors are positive.
    """

    operation: str
    first: Size
    second: Size

    def __add__(self, other: Size) -> Size:
        return combine("+", self, other)

    def __radd__(self, other: Size) -> Size:
        return combine("+", other, self)

    def __sub__(self, other: Size) -> Size:
        return combine("-", self, other)

    def __rsub__(self, other: Size) -> Size:
        return combine("-", other, self)

    def __mul__(self, other: Size) -> Size:
        return combine("*", self, other)

    def __rmul__(self, other: Size) -> Size:
        return combine("*", other, self)

    def __floordiv__(self, other: Size) -> Size:
        return combine("//", self, other)


Size: TypeAlias = int | Extent

OPERATIONS: Mapping[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "ceil_div": lambda first, second: -(-first // second),
    "min": min,
    "max": max,
}
"""What an expression is made of, and what it means for numbers."""


def combine(operation: str, first: Size, second: Size) -> Size:
    """Returns the expression of two operands, a number where both are numbers."""
    if isinstance(first, int) and isinstance(second, int):
        return OPERATIONS[operation](first, second)
    return Extent(operation, first, second)


def minimum(first: Size, second: Size) -> Size:
    """Returns the smaller of two sizes."""
    return combine("min", first, second)


def maximum(first: Size, second: Size) -> Size:
    """Returns the larger of two sizes."""
    return combine("max", first, second)


def ceil_div(first: Size, second: Size) -> Size:
    """Returns the quotient, rounded up."""
    return combine("ceil_div", first, second)


def build_size(
    size: Size,
    constant: Callable[[int], T],
    dimension: Callable[[int, int], T],
    operations: Mapping[str, Callable[[T, T], T]],
) -> T:
    """Rebuilds an expression in another arithmetic.

    `constant(number)`, `dimension(tensor, axis)` and the `operations` (all of `OPERATIONS`) say what its parts are there.
    """
    if isinstance(size, int):
        return constant(size)
    if size.operation == "dimension":
        return dimension(_number(size.first), _number(size.second))
    first, second = (build_size(one, constant, dimension, operations) for one in (size.first, size.second))
    return operations[size.operation](first, second)


def _number(size: Size) -> int:
    if isinstance(size, Extent):
        raise TypeError(f"a dimension is named by numbers, not by {size}")
    return size


def evaluate_size(size: Size, shapes: Sequence[Sequence[int]]) -> int:
    """Returns the number that an expression is for the shapes of all input tensors of the node."""
    return build_size(size, int, lambda tensor, axis: int(shapes[tensor][axis]), OPERATIONS)
