"""A model's trunk in a half type, fp16 or bf16: typed tensors and casts in the graph, weights stored in the type.

Half are the layers (`export.trunk`), and the operators between them that move, join or compare values and add up no long sums. What an
output layer makes is cast to fp32 where it leaves the layer, and all that is numeric stays fp32: anchors, boxes, RoIs, NMS, probabilities,
pooling over RoIs, statistics of normalisation. Inputs, outputs, taps and tensors at seams keep their names and types, so the model is cut
and fed as before; a half tensor is named after the fp32 one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from roiline.core.errors import ExportError
from roiline.core.structures import Float32
from roiline.export.trunk import LAYER_OPS, Trunk, find_trunk, reads_shape_only

_MOST_FP16 = float(np.finfo(np.float16).max)
_EVERY = -1
_CARRIERS: Mapping[str, int] = {
    "Relu": 1,
    "LeakyRelu": 1,
    "MaxPool": 1,
    "AveragePool": 1,
    "GlobalAveragePool": 1,
    "GlobalMaxPool": 1,
    "Resize": 1,
    "Reshape": 1,
    "Flatten": 1,
    "Transpose": 1,
    "Squeeze": 1,
    "Unsqueeze": 1,
    "Identity": 1,
    "Slice": 1,
    "Gather": 1,
    "Add": _EVERY,
    "Concat": _EVERY,
}
"""Operators that carry features between layers, and how many of their first inputs are features."""


@dataclass(frozen=True, slots=True)
class HalfType:
    """Is a half type: its name in a specification, its number in ONNX, and the opset from which on every layer takes it."""

    name: str
    element: int
    opset: int

    def store(self, name: str, array: Float32, *, source: str) -> onnx.TensorProto:
        """Returns the weights `source` rounded to the type, ties to even.

        Raises:
            ExportError: a value is beyond the type's range.
        """
        bits = _round_fp16(array, source) if self.element == onnx.TensorProto.FLOAT16 else _round_bf16(array)
        return helper.make_tensor(name, self.element, array.shape, bits.astype("<u2").tobytes(), raw=True)


FP16 = HalfType("fp16", onnx.TensorProto.FLOAT16, 20)
BF16 = HalfType("bf16", onnx.TensorProto.BFLOAT16, 22)


def check_fp16_range(ranges: Mapping[str, float]) -> None:
    """Holds that measured features stay within fp16, which an engine that computes them in fp32 would not notice.

    Raises:
        ExportError: some are beyond it; they are named.
    """
    beyond = [f"{name} ({value:.4g})" for name, value in ranges.items() if value > _MOST_FP16]
    if beyond:
        raise ExportError(
            f"--precision fp16: features exceed 65504, where fp16 ends: {', '.join(beyond[:5])}; bf16 has the range of fp32"
        )


def _round_fp16(array: Float32, name: str) -> NDArray[np.uint16]:
    most = float(np.abs(array).max(initial=0.0))
    if most > _MOST_FP16:
        raise ExportError(
            f"--precision fp16: weights {name} reach {most:.4g}, and fp16 ends at 65504; bf16 has the range of fp32"
        )
    return array.astype(np.float16).view(np.uint16)


def _round_bf16(array: Float32) -> NDArray[np.uint16]:
    bits = np.ascontiguousarray(array).view(np.uint32)
    rounded: NDArray[np.uint16] = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return rounded


def convert_to_half(model: onnx.ModelProto, kind: HalfType) -> onnx.ModelProto:
    """Returns a model with its trunk in a half type; `model` is left as it is.

    Raises:
        ExportError: weights are beyond the type's range, or the model has no layer.
    """
    trunk = find_trunk(model.graph)
    if not trunk.layers:
        raise ExportError(f"--precision {kind.name}: the model has no layer with weights that could be of that type")
    converted = onnx.ModelProto()
    converted.CopyFrom(model)
    _raise_opset(converted, kind.opset)
    graph = converted.graph
    writer = _HalfWriter(model.graph, kind, trunk)
    nodes = list(writer.convert())
    del graph.node[:], graph.initializer[:]
    graph.node.extend(nodes)
    read = {name for node in nodes for name in node.input}
    graph.initializer.extend(tensor for tensor in model.graph.initializer if tensor.name in read)
    graph.initializer.extend(writer.weights)
    return converted


def _raise_opset(model: onnx.ModelProto, opset: int) -> None:
    """Declares a later opset, in which the operators of a model differ in the types that they take only."""
    for imports in (model.opset_import, *(function.opset_import for function in model.functions)):
        for entry in imports:
            if entry.domain == "":
                entry.version = max(entry.version, opset)


class _HalfWriter:
    """Writes the nodes of one graph anew, and the half weights that they read."""

    def __init__(self, graph: onnx.GraphProto, kind: HalfType, trunk: Trunk) -> None:
        self.weights: list[onnx.TensorProto] = []
        self._graph = graph
        self._kind = kind
        self._trunk = trunk
        self._stored = {tensor.name: tensor for tensor in graph.initializer}
        self._fixed = {info.name for info in (*graph.input, *graph.output, *graph.value_info)}
        self._half: dict[str, str] = {}
        self._nodes = {node.name for node in self._find_half_nodes()}
        self._wanted = self._fixed | {
            name for node in graph.node if node.name not in self._nodes for name in self._float_inputs(node)
        }
        self._taken = {name for node in graph.node for name in (*node.input, *node.output)}

    def _find_half_nodes(self) -> Iterator[onnx.NodeProto]:
        """Yields layers, and the carriers whose features all come from half nodes; what an output layer makes counts as fp32."""
        carried: set[str] = set()
        layers = set(self._trunk.layers)
        for node in self._graph.node:
            features = self._features(node)
            if node.name in layers:
                carried.update(() if node.name in self._trunk.outputs else node.output)
                yield node
            elif features and carried.issuperset(features):
                carried.update(node.output)
                yield node

    def _features(self, node: onnx.NodeProto) -> list[str]:
        """Returns the inputs of a carrier that are features; constants (those of an Add) are none."""
        if node.domain or node.op_type not in _CARRIERS:
            return []
        count = _CARRIERS[node.op_type]
        inputs = node.input if count == _EVERY else node.input[:count]
        return [name for name in inputs if name not in self._stored]

    def _float_inputs(self, node: onnx.NodeProto) -> Iterator[str]:
        if not reads_shape_only(node):
            yield from node.input

    def convert(self) -> Iterator[onnx.NodeProto]:
        """Yields all nodes in the order of computation, casts among them."""
        for node in self._graph.node:
            changed = onnx.NodeProto()
            changed.CopyFrom(node)
            if node.name in self._nodes:
                yield from self._convert_node(changed)
                continue
            if reads_shape_only(node):
                changed.input[0] = self._half.get(node.input[0], node.input[0])
            yield changed

    def _convert_node(self, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        typed = len(node.input) if node.op_type in LAYER_OPS else _CARRIERS[node.op_type]
        for index, name in enumerate(node.input):
            if name and (typed == _EVERY or index < typed):
                if name not in self._half:
                    yield from self._make_half(name)
                node.input[index] = self._half[name]
        (name,) = node.output
        half = node.output[0] = self._name(name)
        yield node
        if name in self._wanted:
            yield _cast(half, name, onnx.TensorProto.FLOAT)
        if name not in self._fixed:
            self._half[name] = half

    def _make_half(self, name: str) -> Iterator[onnx.NodeProto]:
        """Makes the half form of weights, or of an fp32 tensor: one at a seam is read from there, so that a stage may begin at it."""
        half = self._half[name] = self._name(name)
        stored = self._stored.get(name)
        if stored is None:
            yield _cast(name, half, self._kind.element)
        else:
            self.weights.append(self._kind.store(half, numpy_helper.to_array(stored), source=name))

    def _name(self, name: str) -> str:
        half = f"{name}_{self._kind.name}"
        while half in self._taken:
            half += "_"
        self._taken.add(half)
        return half


def _cast(source: str, target: str, element: int) -> onnx.NodeProto:
    return helper.make_node("Cast", [source], [target], name=f"Cast_{target}", to=element)
