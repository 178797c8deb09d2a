"""What a kernel is: the declaration of one node that runs as a single CUDA kernel.

An operator is lowered to a chain of such nodes. One declaration serves the TensorRT plugin (which compiles it to PTX and states launch
parameters and arguments as expressions of dimensions), a direct launch, and the host (where tests run the same source by g++).

The source is a header with one function that computes one work item. Its signature never lists tensors: the struct `Arguments` is
written from the declaration, with a field for every input, argument and output under its own name, so that declaration and source
cannot disagree about an order. The entry point takes the input pointers, then `items` and the extra integers (floats travel as their
bits), then the output pointers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np

from roiline.ops.extents import Extent, Size, ceil_div, maximum, minimum
from roiline.ops.nodes import DOMAIN, PLUGIN_ATTRIBUTES, Attribute, NodeWriter

Argument: TypeAlias = Size | float | Sequence[Size] | Sequence[float]
"""A value that the kernel gets beside its tensors; a Python float arrives as a `float`, a sequence as an array."""

MOST_BLOCKS = 1 << 16


@dataclass(frozen=True, slots=True)
class KernelInput:
    """Is one input of a kernel: the element types that it may have, and its rank."""

    dtypes: tuple[str, ...]
    rank: int


@dataclass(frozen=True, slots=True)
class KernelOutput:
    """Is one output of a kernel: its element type (a type, or "as NAME" for that of an input) and its shape for a node."""

    dtype: str
    shape: Callable[[KernelNode], tuple[Size, ...]]


@dataclass(frozen=True, slots=True)
class Kernel:
    """Declares one kernel.

    `name` is the type of its node in domain `roiline`. `source` is a header below `roiline/ops`, `function` the device function in it
    that computes one item: `function(const Arguments& k, Index item)`, or with `cooperative`, where a whole block works on an
    item, `function(const Arguments& k, Index item, Block& block)`. An input whose name ends in `...` stands for one tensor a level; all
    inputs of that kind have equally many. `attributes` maps every attribute to its default (None: it must be given).

    `arguments(node)` returns what the kernel gets beside its tensors, by name and in order; `items(node)` the number of work items, at
    most 2^31 - 1; `shared_bytes(node)` the dynamic shared memory of a block (at most 48 KiB).
    """

    name: str
    source: str
    function: str
    inputs: Mapping[str, KernelInput]
    outputs: Mapping[str, KernelOutput]
    items: Callable[[KernelNode], Size]
    arguments: Callable[[KernelNode], Mapping[str, Argument]] = lambda _node: {}
    attributes: Mapping[str, Attribute | None] = field(default_factory=lambda: MappingProxyType({}))
    block: int = 256
    cooperative: bool = False
    shared_bytes: Callable[[KernelNode], Size] = lambda _node: 0

    @property
    def entry(self) -> str:
        """Is the name of the entry point in compiled code."""
        return f"roiline_{self.function}"

    def levels(self, input_count: int) -> int:
        """Returns how many tensors each variadic input has where there are so many in all (1 without variadic inputs).

        Raises:
            TypeError: no such number of tensors is possible.
        """
        variadic = sum(name.endswith("...") for name in self.inputs)
        single = len(self.inputs) - variadic
        levels, rest = divmod(input_count - single, variadic) if variadic else (1, input_count - single)
        if levels < 1 or rest:
            raise TypeError(
                f"kernel {self.name}: {input_count} input tensors do not fit its inputs {list(self.inputs)}"
            )
        return levels

    def op_type(self, input_count: int) -> str:
        """Returns the type of a node: with the number of levels where that varies, as a plugin has a fixed number of inputs."""
        levels = self.levels(input_count)
        return f"{self.name}{levels}" if any(name.endswith("...") for name in self.inputs) else self.name

    def node(self, input_count: int, attributes: Mapping[str, Any]) -> KernelNode:
        """Returns what the declaration says for so many input tensors and these attributes (others in the mapping are ignored).

        Raises:
            TypeError: an attribute is missing, or no such number of tensors is possible.
        """
        values = {name: attributes.get(name, default) for name, default in self.attributes.items()}
        missing = sorted(name for name, value in values.items() if value is None)
        if missing:
            raise TypeError(f"kernel {self.name}: missing attributes {missing}")
        return KernelNode(self, self.levels(input_count), values)


@dataclass(frozen=True, slots=True)
class KernelNode:
    """Is one node of a kernel: what the declaration comes to for its attributes and number of tensors."""

    kernel: Kernel
    levels: int
    attributes: Mapping[str, Any]

    def __getitem__(self, attribute: str) -> Any:
        return self.attributes[attribute]

    @property
    def op_type(self) -> str:
        """Is the type of the node."""
        return self.kernel.op_type(len(self.inputs))

    @property
    def inputs(self) -> list[tuple[str, int | None, KernelInput]]:
        """Is (name, level, rule) of every input tensor in order; the level is None for an input that is one tensor."""
        tensors: list[tuple[str, int | None, KernelInput]] = []
        for name, rule in self.kernel.inputs.items():
            if name.endswith("..."):
                tensors.extend((name.removesuffix("..."), level, rule) for level in range(self.levels))
            else:
                tensors.append((name, None, rule))
        return tensors

    def dim(self, name: str, axis: int, level: int = 0) -> Size:
        """Returns a dimension of an input (of a level, where it has them)."""
        index = [(tensor, at or 0) for tensor, at, _ in self.inputs].index((name, level))
        return Extent("dimension", index, axis)

    def count(self, name: str) -> int:
        """Returns the number of tensors of an input."""
        return sum(tensor == name for tensor, _, _ in self.inputs)

    @property
    def items(self) -> Size:
        """Is the number of work items."""
        return self.kernel.items(self)

    @property
    def arguments(self) -> dict[str, Argument]:
        """Is what the kernel gets between its inputs and outputs, by name: the items, then the declared arguments."""
        return {"items": self.items, **self.kernel.arguments(self)}

    @property
    def extra_integers(self) -> tuple[Size, ...]:
        """Is the same as a plugin passes it: one int32 a value, in order, floats as their bits."""
        flat: list[Size] = []
        for value in self.arguments.values():
            for one in value if isinstance(value, (list, tuple)) else (value,):
                flat.append(float_bits(one) if isinstance(one, float) else one)
        return tuple(flat)

    @property
    def grid(self) -> Size:
        """Is the number of blocks: never 0, and limited, as blocks loop over the items."""
        blocks = self.items if self.kernel.cooperative else ceil_div(self.items, self.kernel.block)
        return maximum(minimum(blocks, MOST_BLOCKS), 1)

    @property
    def shared_bytes(self) -> Size:
        """Is the dynamic shared memory of a block."""
        return self.kernel.shared_bytes(self)

    @property
    def output_shapes(self) -> tuple[tuple[Size, ...], ...]:
        """Is the shape of every output."""
        return tuple(output.shape(self) for output in self.kernel.outputs.values())

    def output_dtypes(self, input_dtypes: Sequence[str]) -> tuple[str, ...]:
        """Returns the element type of every output for those of all input tensors.

        Raises:
            TypeError: an input may not have its type.
        """
        first: dict[str, str] = {}
        for (name, _, rule), dtype in zip(self.inputs, input_dtypes, strict=True):
            if dtype not in rule.dtypes or first.setdefault(name, dtype) != dtype:
                expected = " or ".join(rule.dtypes)
                raise TypeError(
                    f"kernel {self.kernel.name}: input {name} is {dtype}, expected {expected}, one for all levels"
                )
        return tuple(
            first[output.dtype.removeprefix("as ")] if output.dtype.startswith("as ") else output.dtype
            for output in self.kernel.outputs.values()
        )


def float_bits(value: float) -> int:
    """Returns the bits of a float32 as an int32."""
    return int(np.float32(value).view(np.int32))


def write_kernel(
    w: NodeWriter,
    kernel: Kernel,
    *inputs: str,
    attributes: Mapping[str, Any],
    names: Sequence[str | None] | None = None,
) -> tuple[str, ...]:
    """Appends the node of a kernel, with its part of the attributes, and returns its outputs."""
    node = kernel.node(len(inputs), attributes)
    return w.multi(
        node.op_type,
        *inputs,
        names=names or (None,) * len(kernel.outputs),
        domain=DOMAIN,
        **node.attributes,
        **PLUGIN_ATTRIBUTES,
    )
