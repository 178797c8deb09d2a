"""What a network costs by its graph: operations and bytes of its matrix layers, and which part of the network a node belongs to.

Layers are counted with the shapes that they have for given inputs: the model is run once with the shape of every tensor of interest as a
further output, so that the number of RoIs, which depends on the picture, is the true one. A multiplication and an addition are two
operations. Bytes are those of a layer's inputs, weights and outputs, each once. What is no matrix product (activations, NMS, sampling) is
not counted; its time is in the part's time all the same.
"""

from __future__ import annotations

import math
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from roiline.core.spec import ModelSpec
from roiline.engines.model_file import cut_model, load_model
from roiline.engines.profiling import NodeTimes
from roiline.engines.protocol import Device, Stage, Tensor
from roiline.engines.registry import open_engine

if TYPE_CHECKING:
    import onnx

Part: TypeAlias = Literal["trunk", "proposals", "heads"]
Shape: TypeAlias = tuple[int, ...]
PARTS: tuple[Part, ...] = ("trunk", "proposals", "heads")

_WEIGHTED: Mapping[str, tuple[int, int]] = {
    "Conv": (0, 1),
    "ConvInteger": (0, 1),
    "ConvTranspose": (0, 1),
    "Gemm": (0, 1),
    "MatMul": (0, 1),
    "MatMulInteger": (0, 1),
    "QLinearConv": (0, 3),
    "QLinearMatMul": (0, 3),
}
"""Operator -> which of its inputs are multiplied."""

_ELEMENT_BYTES: Mapping[str, int] = {"fp32": 4, "fp16": 2, "bf16": 2, "int8": 1}
_FUNCTION = re.compile(r"_inlfunc_([A-Za-z0-9]+)_")
_SUFFIX = re.compile(r"(_nchwc|/.*)$")


@dataclass(frozen=True, slots=True)
class LayerCost:
    """Is what one layer costs for the whole batch that it was counted with."""

    name: str
    op_type: str
    part: Part
    operations: int
    bytes: int


def assign_parts(model: onnx.ModelProto, spec: ModelSpec) -> dict[str, Part]:
    """Returns the part of every node by name: the trunk makes the features, proposals are what else proposals need, heads the rest.

    A model whose specification has no features is all trunk up to its proposals (or candidates).
    """
    producer = {name: node for node in model.graph.node for name in node.output}
    assigned: dict[str, Part] = {}
    for part, seam in (("trunk", "features"), ("proposals", "proposals")):
        pending = list(spec.seams.get(seam, ()))
        while pending:
            node = producer.get(pending.pop())
            if node is not None and node.name not in assigned:
                assigned[node.name] = part  # type: ignore[assignment]
                pending.extend(node.input)
    rest: Part = "heads" if assigned else "trunk"
    return {node.name: assigned.get(node.name, rest) for node in model.graph.node}


def count_layers(path: Path, spec: ModelSpec, feeds: Mapping[str, Tensor], *, stage: Stage | None) -> list[LayerCost]:
    """Returns the cost of every matrix layer for one batch.

    Raises:
        ModelError: the file is no model that can be run.
        EngineError: ONNX Runtime, which runs it, is not installed.
    """
    model = load_model(path)
    parts = assign_parts(model, spec)
    if stage is not None:
        model = cut_model(model, stage, where=str(path))
    nodes = [node for node in model.graph.node if node.domain == "" and node.op_type in _WEIGHTED]
    shapes = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    wanted = {name for node in nodes for name in (*_operands(node), node.output[0])} - set(shapes)
    shapes |= _measure_shapes(model, sorted(wanted), feeds)
    size = _ELEMENT_BYTES[spec.precision]
    return [_cost(node, parts[node.name], shapes, size) for node in nodes]


def _operands(node: onnx.NodeProto) -> tuple[str, str]:
    first, second = _WEIGHTED[node.op_type]
    return node.input[first], node.input[second]


def _measure_shapes(model: onnx.ModelProto, names: Sequence[str], feeds: Mapping[str, Tensor]) -> dict[str, Shape]:
    """Runs the model with the shapes of tensors as its only outputs."""
    import onnx
    from onnx import helper

    del model.graph.output[:]
    for index, name in enumerate(names):
        result = f"shape_of_tensor_{index}"
        model.graph.node.append(helper.make_node("Shape", [name], [result], name=result))
        model.graph.output.append(helper.make_tensor_value_info(result, onnx.TensorProto.INT64, [None]))
    with tempfile.TemporaryDirectory(prefix="roiline-") as folder:
        file = Path(folder) / "shapes.onnx"
        onnx.save(model, str(file))
        with open_engine(file, engine="onnxruntime", device=Device("cpu")) as engine:
            answers = engine.run({info.name: feeds[info.name] for info in engine.inputs})
    return {name: tuple(answers[f"shape_of_tensor_{index}"].tolist()) for index, name in enumerate(names)}


def _cost(node: onnx.NodeProto, part: Part, shapes: Mapping[str, Shape], size: int) -> LayerCost:
    data, weights = (shapes[name] for name in _operands(node))
    output = shapes[node.output[0]]
    operations = 2 * _multiplications(node, data, weights, output)
    moved = size * (math.prod(data) + math.prod(weights) + math.prod(output))
    return LayerCost(node.output[0], node.op_type, part, operations, moved)


def _multiplications(node: onnx.NodeProto, data: Shape, weights: Shape, output: Shape) -> int:
    """Returns the multiplications of a layer: each output (of ConvTranspose: input) element meets one filter's weights."""
    if node.op_type == "ConvTranspose":
        return math.prod(data) * math.prod(weights[1:])
    if node.op_type.endswith(("Conv", "ConvInteger")):
        return math.prod(output) * math.prod(weights[1:])
    if node.op_type == "Gemm":
        transposed = any(attribute.name == "transA" and attribute.i for attribute in node.attribute)
        return math.prod(output) * data[0 if transposed else 1]
    return math.prod(output) * data[-1]


class NodeParts:
    """Knows the part of a node by the name that an engine's profile has for it.

    An engine renames: a fused layer is named after its last result, a node of an operator's own function after the function. A node that
    the engine added (it changes a layout) counts with the one that ran before it.
    """

    def __init__(self, model: onnx.ModelProto, spec: ModelSpec) -> None:
        parts = assign_parts(model, spec)
        self._by_name: dict[str, Part] = dict(parts)
        self._by_function: dict[str, Part] = {}
        for node in model.graph.node:
            self._by_name.update(dict.fromkeys(node.output, parts[node.name]))
            if node.domain:
                self._by_function.setdefault(node.op_type, parts[node.name])

    def sum_times(self, nodes: NodeTimes) -> dict[Part, float]:
        """Returns the seconds of each part in one call."""
        seconds = dict.fromkeys(PARTS, 0.0)
        part: Part = PARTS[0]
        for node in nodes:
            part = self.find(node.name) or part
            seconds[part] += node.seconds
        return seconds

    def find(self, name: str) -> Part | None:
        """Returns the part of a node, None for one that the engine added."""
        function = _FUNCTION.match(name)
        if function is not None:
            return self._by_function.get(function[1])
        plain = name.removeprefix("fused ")
        return self._by_name.get(plain) or self._by_name.get(_SUFFIX.sub("", plain))


def join_costs(costs: Sequence[LayerCost]) -> dict[Part, tuple[int, int]]:
    """Returns (operations, bytes) of each part."""
    return {
        part: (
            int(np.sum([cost.operations for cost in costs if cost.part == part], dtype=np.int64)),
            int(np.sum([cost.bytes for cost in costs if cost.part == part], dtype=np.int64)),
        )
        for part in PARTS
    }
