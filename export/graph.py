"""Building the graph of one model: structure first, weights last.

`GraphWriter` appends nodes and notes, for every parameter, which blobs it is made of, their expected shapes, and a recipe. Nothing is
computed while the graph is laid out, so all that is wrong with a weights file can be said at once, before a single array is touched;
`finish` then makes the initializers one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from roiline.core.spec import METADATA_KEY, ModelSpec
from roiline.ops.nodes import (
    DOMAIN,
    DOMAIN_VERSION,
    IR_VERSION,
    OPSET,
    Attribute,
    ConstantValue,
    NodeWriter,
    array_from_constant,
)
from roiline.ops.operator import Operator

Blobs: TypeAlias = Mapping[str, NDArray[np.float32]]
Shape: TypeAlias = tuple[int | None, ...]
Recipe: TypeAlias = Callable[[Blobs], NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class BlobRequirement:
    """Is one blob that a model needs: its shape (None where the weights decide), what for, and the configuration key that sets it."""

    name: str
    shape: Shape
    purpose: str
    config_key: str | None = None


class GraphWriter(NodeWriter):
    """Writes the graph of one model over blobs whose shapes are known and whose values are not needed yet."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        super().__init__()
        self.requirements: list[BlobRequirement] = []
        self._shapes = shapes
        self._parameters: dict[str, Recipe] = {}
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._constant_values: dict[str, NDArray[Any]] = {}
        self._declared: list[onnx.ValueInfoProto] = []
        self._functions: dict[tuple[str, bytes], onnx.FunctionProto] = {}

    def dim(self, blob: str, axis: int) -> int | None:
        """Returns one dimension of a blob of the weights file, or None where the file cannot say."""
        shape = self._shapes.get(blob, ())
        return shape[axis] if axis < len(shape) else None

    def require(self, name: str, shape: Shape, purpose: str, config_key: str | None = None) -> str:
        """Notes that the model needs a blob, and returns its name."""
        self.requirements.append(BlobRequirement(name, shape, purpose, config_key))
        return name

    def parameter(self, name: str, recipe: Recipe) -> str:
        """Declares an initializer that `recipe` makes from the blobs when the model is finished."""
        self._parameters.setdefault(name, recipe)
        return name

    def constant(self, value: ConstantValue) -> str:
        """Returns an initializer that holds `value`; equal constants share one."""
        array = array_from_constant(value)
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._constants:
            name = f"constant_{len(self._constants)}"
            self._constants[key] = name
            self._constant_values[name] = array
        return self._constants[key]

    def call(
        self, operator: Operator, *inputs: str, names: Sequence[str | None], **attributes: Attribute
    ) -> tuple[str, ...]:
        """Appends a node of one of our operators, and its function for these attributes."""
        complete = operator.complete(attributes)
        function = operator.write(len(inputs), complete)
        key = (operator.name, function.SerializeToString(deterministic=True))
        if key not in self._functions:
            same_name = sum(1 for name, _ in self._functions if name == operator.name)
            function.overload = f"v{same_name + 1}" if same_name else ""
            self._functions[key] = function
        overload = self._functions[key].overload
        return self.multi(operator.name, *inputs, names=names, domain=DOMAIN, overload=overload, **complete)

    def declare(self, *tensors: onnx.ValueInfoProto) -> None:
        """Notes the types of tensors at seams, where a stage of the model may begin or end."""
        self._declared.extend(tensors)

    def finish(
        self,
        spec: ModelSpec,
        blobs: Blobs,
        inputs: Sequence[onnx.ValueInfoProto],
        outputs: Sequence[onnx.ValueInfoProto],
    ) -> onnx.ModelProto:
        """Returns the model: every parameter made from the blobs, the spec in its metadata."""
        graph = helper.make_graph(self.nodes, spec.architecture, list(inputs), list(outputs))
        for name, recipe in self._parameters.items():
            _add_initializer(graph, name, np.ascontiguousarray(recipe(blobs), np.float32))
        for name, array in self._constant_values.items():
            _add_initializer(graph, name, array)
        ends = {info.name for info in (*inputs, *outputs)}
        graph.value_info.extend({info.name: info for info in self._declared if info.name not in ends}.values())
        model = helper.make_model(
            graph,
            functions=list(self._functions.values()),
            opset_imports=[helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, DOMAIN_VERSION)],
            ir_version=IR_VERSION,
            producer_name="roiline",
        )
        helper.set_model_props(model, {METADATA_KEY: spec.to_json()})
        return model


def _add_initializer(graph: onnx.GraphProto, name: str, array: NDArray[Any]) -> None:
    tensor = graph.initializer.add()
    tensor.CopyFrom(numpy_helper.from_array(array, name))
