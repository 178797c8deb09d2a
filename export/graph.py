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
from onnx import helper

from roiline.core.errors import ExportError
from roiline.core.spec import METADATA_KEY, ModelSpec
from roiline.ops.nodes import (
    DOMAIN,
    DOMAIN_VERSION,
    IR_VERSION,
    OPSET,
    PLUGIN_ATTRIBUTES,
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
    """Writes the graph of one model over blobs whose shapes are known and whose values are not needed yet.

    `resolve` maps the name of a parameter to the one that the weights file has it under (the same, as a rule).
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], resolve: Callable[[str], str] = str) -> None:
        super().__init__()
        self._requirements: dict[tuple[str, Shape], BlobRequirement] = {}
        self._shapes = shapes
        self._resolve = resolve
        self._parameters: dict[str, Recipe] = {}
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._constant_values: dict[str, NDArray[Any]] = {}
        self._declared: dict[str, onnx.ValueInfoProto] = {}
        self._functions: dict[tuple[str, bytes], onnx.FunctionProto] = {}

    @property
    def requirements(self) -> list[BlobRequirement]:
        """Is every blob that the model needs; layers that share one need it once."""
        return list(self._requirements.values())

    @property
    def blobs(self) -> list[str]:
        """Is every result that was given a name, in the order of computation."""
        return [name for node in self.nodes for name in node.output if not name.startswith(node.name)]

    def dim(self, blob: str, axis: int) -> int | None:
        """Returns one dimension of a blob of the weights file, or None where the file cannot say."""
        shape = self._shapes.get(self._resolve(blob), ())
        return shape[axis] if axis < len(shape) else None

    def require(self, name: str, shape: Shape, purpose: str, config_key: str | None = None) -> str:
        """Notes that the model needs a blob, and returns the name that the weights file has it under."""
        self._requirements.setdefault((name, shape), BlobRequirement(name, shape, purpose, config_key))
        return self._resolve(name)

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
        """Appends a node of one of our operators, and its function for these attributes.

        The node also says which plugin may take its place; where there is none, the function is what counts.
        """
        complete = operator.complete(attributes)
        function = operator.write(len(inputs), complete)
        key = (operator.name, function.SerializeToString(deterministic=True))
        if key not in self._functions:
            same_name = sum(1 for name, _ in self._functions if name == operator.name)
            function.overload = f"v{same_name + 1}" if same_name else ""
            self._functions[key] = function
        overload = self._functions[key].overload
        results = self.multi(
            operator.name, *inputs, names=names, domain=DOMAIN, overload=overload, **complete, **PLUGIN_ATTRIBUTES
        )
        for name, (dtype, rank) in zip(results, operator.outputs.values(), strict=False):
            kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
            self._declared.setdefault(name, helper.make_tensor_value_info(name, kind, [None] * rank))
        return results

    def declare(self, *tensors: onnx.ValueInfoProto) -> None:
        """Notes the types of tensors at seams, where a stage of the model may begin or end."""
        self._declared.update((info.name, info) for info in tensors)

    def finish(
        self,
        spec: ModelSpec,
        blobs: Blobs,
        inputs: Sequence[onnx.ValueInfoProto],
        outputs: Sequence[onnx.ValueInfoProto],
    ) -> onnx.ModelProto:
        """Returns the model: every parameter made from the blobs, the spec in its metadata, its taps as outputs after the others."""
        graph = helper.make_graph(self.nodes, spec.architecture, list(inputs), list(outputs))
        for name, recipe in self._parameters.items():
            _add_initializer(graph, name, np.ascontiguousarray(recipe(blobs), np.float32))
        for name, array in self._constant_values.items():
            _add_initializer(graph, name, array)
        ends = {info.name for info in (*inputs, *outputs)}
        graph.value_info.extend(info for name, info in self._declared.items() if name not in ends)
        model = helper.make_model(
            graph,
            functions=list(self._functions.values()),
            opset_imports=[helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, DOMAIN_VERSION)],
            ir_version=IR_VERSION,
            producer_name="roiline",
        )
        helper.set_model_props(model, {METADATA_KEY: spec.to_json()})
        _add_outputs(model, [name for name in spec.taps if name not in ends])
        return model


def _add_outputs(model: onnx.ModelProto, names: Sequence[str]) -> None:
    """Makes results that are computed anyway outputs, of the type that follows from the graph."""
    if not names:
        return
    inferred = onnx.shape_inference.infer_shapes(model).graph.value_info
    types = {info.name: info for info in inferred}
    unknown = [name for name in names if not types[name].type.tensor_type.HasField("shape")]
    if unknown:
        raise ExportError(f"tapped blobs of unknown rank: {', '.join(unknown)}")
    model.graph.output.extend(types[name] for name in names)


def _add_initializer(graph: onnx.GraphProto, name: str, array: NDArray[Any]) -> None:
    """Adds a tensor in place: large ones would be held twice otherwise."""
    tensor = graph.initializer.add()
    tensor.name = name
    tensor.data_type = helper.np_dtype_to_tensor_dtype(array.dtype)
    tensor.dims.extend(array.shape)
    tensor.raw_data = array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
