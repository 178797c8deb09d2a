"""Writing ONNX nodes: one small writer for function bodies and for whole graphs.

`NodeWriter` appends nodes and names their results; where constants live differs (a function keeps them as `Constant` nodes, a graph as
initializers), so that is the one method left to the two kinds of writer. All names are derived from the order of calls: the same calls
give the same bytes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from roiline.core.errors import ExportError

OPSET = 20
IR_VERSION = 10
DOMAIN = "roiline"
DOMAIN_VERSION = 1
PLUGIN_NAMESPACE = "roiline"
PLUGIN_VERSION = "1"
PLUGIN_ATTRIBUTES = {"plugin_namespace": PLUGIN_NAMESPACE, "plugin_version": PLUGIN_VERSION}
"""What nodes of our domain say to an engine that looks for a plugin of their name; others pass over it."""

Attribute: TypeAlias = int | float | str | Sequence[int] | Sequence[float]
ConstantValue: TypeAlias = NDArray[np.generic] | np.generic | float | int | Sequence[int] | Sequence[float]

FIRST = np.iinfo(np.int64).min
LAST = np.iinfo(np.int64).max


def array_from_constant(value: ConstantValue) -> NDArray[np.generic]:
    """Returns a constant as an array: Python integers are int64, Python floats float32, arrays stay as they are.

    Raises:
        ExportError: a number does not fit its type.
    """
    if isinstance(value, (np.ndarray, np.generic)):
        return np.asarray(value)
    kind = np.asarray(value).dtype.kind
    return _fit_numbers(value, np.float32 if kind == "f" else np.int64)


def _fit_numbers(value: float | Sequence[int] | Sequence[float], dtype: type[np.generic]) -> NDArray[np.generic]:
    """Returns numbers, which mostly come from a configuration, as an array of the type that the model has them in."""
    try:
        with np.errstate(over="raise"):
            return np.array(value, dtype)
    except (OverflowError, FloatingPointError) as error:
        raise ExportError(
            f"{value!r:.80} does not fit the type {np.dtype(dtype).name} that the model has it in; correct the setting that it comes from"
        ) from error


def _check_attribute(value: Attribute) -> None:
    numbers = value if isinstance(value, (list, tuple)) else (value,)
    for number in numbers:
        if isinstance(number, int):
            _fit_numbers(number, np.int64)
        elif isinstance(number, float):
            _fit_numbers(number, np.float32)


class NodeWriter(ABC):
    """Appends ONNX nodes in call order and returns the names of their results."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self._count = 0

    @abstractmethod
    def constant(self, value: ConstantValue) -> str:
        """Returns the name of a tensor that holds `value`."""

    def op(self, op_type: str, *inputs: str, name: str | None = None, domain: str = "", **attributes: Attribute) -> str:
        """Appends a node with one result and returns its name; an empty input name is an absent optional input."""
        return self.multi(op_type, *inputs, names=(name,), domain=domain, overload="", **attributes)[0]

    def multi(
        self,
        op_type: str,
        *inputs: str,
        names: Sequence[str | None],
        domain: str = "",
        overload: str = "",
        **attributes: Attribute,
    ) -> tuple[str, ...]:
        """Appends a node with several results, named as given or (None) by the writer."""
        self._count += 1
        stem = f"{op_type}_{self._count}"
        results = tuple(name or (stem if len(names) == 1 else f"{stem}_{i}") for i, name in enumerate(names))
        for value in attributes.values():
            _check_attribute(value)
        node = helper.make_node(op_type, list(inputs), list(results), name=stem, domain=domain, **attributes)
        if overload:
            node.overload = overload
        self.nodes.append(node)
        return results

    def ints(self, *values: int) -> str:
        """Returns a 1-D int64 constant."""
        return self.constant(_fit_numbers(values, np.int64))

    def integer(self, value: int) -> str:
        """Returns an int64 scalar constant."""
        return self.constant(_fit_numbers(value, np.int64))

    def scalar(self, value: float) -> str:
        """Returns a float32 scalar constant."""
        return self.constant(_fit_numbers(value, np.float32))

    def dims(self, tensor: str, *axes: int) -> tuple[str, ...]:
        """Returns the given dimensions of a tensor, each as a 1-D int64 tensor of one element."""
        shape = self.op("Shape", tensor)
        return tuple(self.op("Gather", shape, self.ints(axis), axis=0) for axis in axes)

    def concat(self, *parts: str, axis: int = 0) -> str:
        """Joins tensors along an axis."""
        return parts[0] if len(parts) == 1 else self.op("Concat", *parts, axis=axis)

    def reshape(self, tensor: str, *dims: int | str) -> str:
        """Reshapes to dimensions given as numbers or as 1-D tensors; zeros are sizes, so empty tensors reshape too."""
        parts = [self.ints(dim) if isinstance(dim, int) else dim for dim in dims]
        return self.op("Reshape", tensor, self.concat(*parts), allowzero=1)

    def unsqueeze(self, tensor: str, *axes: int) -> str:
        """Adds axes of size 1."""
        return self.op("Unsqueeze", tensor, self.ints(*axes))

    def squeeze(self, tensor: str, *axes: int) -> str:
        """Drops axes of size 1."""
        return self.op("Squeeze", tensor, self.ints(*axes))

    def cast(self, tensor: str, dtype: type[np.generic]) -> str:
        """Converts to another element type."""
        return self.op("Cast", tensor, to=int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype))))

    def columns(self, tensor: str, start: int, stop: int, *, axis: int = -1) -> str:
        """Returns the slice [start, stop) of the last (or another) axis."""
        return self.op("Slice", tensor, self.ints(start), self.ints(stop), self.ints(axis))

    def range(self, stop: str) -> str:
        """Returns 0, 1, .. stop - 1 as int64 for a 1-D one-element tensor."""
        return self.op("Range", self.integer(0), self.squeeze(stop, 0), self.integer(1))

    def full(self, value: float, *dims: str) -> str:
        """Returns a float32 tensor of one value with dimensions given as 1-D tensors."""
        return self.op("Expand", self.scalar(value), self.concat(*dims))


class FunctionWriter(NodeWriter):
    """Writes the body of a model-local function in domain `roiline`."""

    def __init__(self) -> None:
        super().__init__()
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}

    def constant(self, value: ConstantValue) -> str:
        """Returns the result of a `Constant` node; equal constants share one."""
        array = array_from_constant(value)
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._constants:
            name = f"constant_{len(self._constants)}"
            node = helper.make_node("Constant", [], [name], name=name, value=numpy_helper.from_array(array, name))
            self.nodes.append(node)
            self._constants[key] = name
        return self._constants[key]

    def rename(self, tensor: str, name: str) -> str:
        """Gives a result the name that the function declares for it."""
        return self.op("Identity", tensor, name=name)

    def finish(self, name: str, inputs: Sequence[str], outputs: Sequence[str]) -> onnx.FunctionProto:
        """Returns the function; its constants are part of the body, attributes stay on the calling node."""
        return helper.make_function(
            DOMAIN, name, list(inputs), list(outputs), self.nodes, [helper.make_opsetid("", OPSET)]
        )
