"""What an operator is: one declaration and the forms that it has.

Every operator folder has a `declaration` of this type, a numpy `reference` (plain, the judge in tests and the host path of a run), and
a `function` that writes the same computation in standard ONNX operators for given attributes. A node of the operator carries all its
attributes; the function's body has them built in, so different attributes are different overloads of one function, and an engine with
kernels of its own reads the node and ignores the body.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray

from roiline.ops.kernels import Kernel
from roiline.ops.nodes import Attribute, NodeWriter

Arrays: TypeAlias = tuple[NDArray[Any], ...]
Lowering: TypeAlias = Callable[[NodeWriter, Sequence[str], Mapping[str, Any]], tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Operator:
    """Declares one operator.

    `attributes` maps every attribute to its default (None: it must be given). `inputs` name the tensors (a name that ends in `...`
    stands for one tensor a level, one that ends in `?` may be left out at the end), `outputs` map names to element type and rank.
    `reference(*arrays, **attributes)` returns the outputs; `function(input_count, attributes)` returns the function body.

    `lower(writer, inputs, attributes)` writes the nodes that take the operator's place in an engine with kernels (nodes of `kernels`, and
    standard ones) and returns their results in the order of `outputs`, padded to fixed sizes where the operator's own are data-dependent.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: Mapping[str, tuple[str, int]]
    attributes: Mapping[str, Attribute | None]
    reference: Callable[..., Arrays]
    function: Callable[[int, Mapping[str, Any]], onnx.FunctionProto]
    kernels: tuple[Kernel, ...] = ()
    lower: Lowering | None = None

    def complete(self, attributes: Mapping[str, Attribute]) -> dict[str, Attribute]:
        """Returns all attributes with defaults filled in.

        Raises:
            TypeError: an attribute is unknown or one without default is missing.
        """
        unknown = sorted(set(attributes) - set(self.attributes))
        values = {name: attributes.get(name, default) for name, default in self.attributes.items()}
        missing = sorted(name for name, value in values.items() if value is None)
        if unknown or missing:
            raise TypeError(f"operator {self.name}: unknown attributes {unknown}, missing {missing}")
        return {name: value for name, value in values.items() if value is not None}

    def run(self, *arrays: NDArray[Any], **attributes: Attribute) -> Arrays:
        """Runs the numpy reference."""
        return self.reference(*arrays, **self.complete(attributes))

    def write(self, input_count: int, attributes: Mapping[str, Attribute]) -> onnx.FunctionProto:
        """Writes the ONNX function for complete attributes."""
        return self.function(input_count, attributes)


def below(threshold: float) -> float:
    """Returns the largest float32 under a threshold, 0 at the least: to be above it is to be at least the threshold."""
    return max(float(np.nextafter(np.float32(threshold), np.float32(-1))), 0.0)
