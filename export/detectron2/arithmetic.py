"""Reads the Python expressions that detectron2's configurations may hold (`[[x, x * 2**(1.0/3)] for x in [32, 64]]`), as arithmetic.

detectron2 gives such a text to Python's `eval`. Here its syntax tree is walked instead: numbers, texts, lists, tuples, the operators of
arithmetic, `range`, and comprehensions over them; nothing else has a meaning, and the work is bounded.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

_OPERATORS: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_MOST_STEPS = 20_000
_LARGEST = 1e12


def evaluate_arithmetic(text: str) -> Any:
    """Returns the value of an expression.

    Raises:
        ValueError: it is no expression, has a part that is no arithmetic, or does not end soon.
    """
    try:
        return _Evaluation().value_of(ast.parse(text.strip(), mode="eval").body, {})
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"no expression: {error}") from error
    except (ArithmeticError, TypeError) as error:
        raise ValueError(str(error)) from error


class _Evaluation:
    """Walks one syntax tree, and counts its steps."""

    def __init__(self) -> None:
        self._steps = 0

    def value_of(self, node: ast.expr, names: Mapping[str, Any]) -> Any:
        self._steps += 1
        if self._steps > _MOST_STEPS:
            raise ValueError(f"more than {_MOST_STEPS} steps")
        match node:
            case ast.Constant(value=int() | float() | str() | None as value):
                return value
            case ast.Name(id=name) if name in names:
                return names[name]
            case ast.List(elts=parts):
                return [self.value_of(part, names) for part in parts]
            case ast.Tuple(elts=parts):
                return tuple(self.value_of(part, names) for part in parts)
            case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=operand):
                value = self._number_of(operand, names)
                return -value if isinstance(sign, ast.USub) else value
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                return self._combine(op, self._number_of(left, names), self._number_of(right, names))
            case ast.Call(func=ast.Name(id="range"), args=arguments, keywords=[]):
                return self._range_of([self._number_of(argument, names) for argument in arguments])
            case ast.ListComp(elt=element, generators=[ast.comprehension(target=ast.Name(id=name), ifs=[]) as loop]):
                return [self.value_of(element, {**names, name: item}) for item in self._items_of(loop.iter, names)]
        raise ValueError(f"{ast.unparse(node)[:60]!r} is no arithmetic")

    def _number_of(self, node: ast.expr, names: Mapping[str, Any]) -> Any:
        value = self.value_of(node, names)
        if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > _LARGEST:
            raise ValueError(f"{ast.unparse(node)[:60]!r} is no number within reach")
        return value

    def _items_of(self, node: ast.expr, names: Mapping[str, Any]) -> list[Any]:
        items = self.value_of(node, names)
        if not isinstance(items, list | tuple):
            raise ValueError(f"{ast.unparse(node)[:60]!r} is no list")
        return list(items)

    @staticmethod
    def _combine(op: ast.operator, left: Any, right: Any) -> Any:
        if isinstance(op, ast.Pow) and abs(right) > 64:
            raise ValueError(f"the power {right} is out of reach")
        return _OPERATORS[type(op)](left, right)

    @staticmethod
    def _range_of(arguments: list[Any]) -> list[int]:
        numbers = range(*arguments)
        if len(numbers) > _MOST_STEPS:
            raise ValueError(f"a range of {len(numbers)} numbers")
        return list(numbers)
