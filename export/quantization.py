"""int8 by pairs of QuantizeLinear and DequantizeLinear in the graph, on inputs and weights of the trunk's layers.

Symmetric throughout (zero point 0): weights per output channel, features per tensor, with scales measured beforehand
(`export.activation_ranges`). Biases stay fp32. First layers and output layers (objectness, deltas, class scores, maps) stay fp32
altogether, and so do transposed convolutions and all that is numeric. Affine channels were folded while the model was built.
The recipe is that of ONNX Runtime's static quantisation (QDQ, per channel, symmetric); TensorRT reads the same pairs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import onnx
from onnx import helper, numpy_helper

from roiline.core.errors import ExportError
from roiline.core.structures import Float32
from roiline.export.trunk import WEIGHT_INPUT, find_trunk

MOST = 127
_QUANTIZED_OPS = frozenset({"Conv", "Gemm", "MatMul"})
_SMALLEST_SCALE = np.float32(2.0**-100)


def find_quantized(graph: onnx.GraphProto) -> dict[str, str]:
    """Returns the layers that become int8, by the names of their nodes, each with the tensor that it takes."""
    trunk = find_trunk(graph)
    chosen = set(trunk.layers) - trunk.first - trunk.outputs
    return {node.name: node.input[0] for node in graph.node if node.name in chosen and node.op_type in _QUANTIZED_OPS}


def quantize(model: onnx.ModelProto, ranges: Mapping[str, float]) -> onnx.ModelProto:
    """Returns an int8 model; `ranges` has for every tensor that is quantised the magnitude that becomes 127. `model` stays as it is.

    Raises:
        ExportError: the model has no layer that could be int8.
    """
    layers = find_quantized(model.graph)
    if not layers:
        raise ExportError(
            "--precision int8: the model has no layer between its first and its output layers that could be int8"
        )
    quantized = onnx.ModelProto()
    quantized.CopyFrom(model)
    graph = quantized.graph
    writer = _PairWriter(model.graph, {name: ranges[name] for name in layers.values()})
    nodes = list(writer.convert(layers))
    del graph.node[:], graph.initializer[:]
    graph.node.extend(nodes)
    read = {name for node in nodes for name in node.input}
    graph.initializer.extend(tensor for tensor in model.graph.initializer if tensor.name in read)
    graph.initializer.extend(writer.stored)
    return quantized


class _PairWriter:
    """Writes the nodes of one graph anew with pairs before layers, and the int8 weights and scales that they read."""

    def __init__(self, graph: onnx.GraphProto, ranges: Mapping[str, float]) -> None:
        self.stored: list[onnx.TensorProto] = []
        self._graph = graph
        self._ranges = ranges
        self._weights = {tensor.name: tensor for tensor in graph.initializer}
        self._done: dict[str, str] = {}
        self._taken = {name for node in graph.node for name in (*node.input, *node.output)}
        self._zero = self._store("int8_zero", np.zeros((), np.int8))

    def convert(self, layers: Mapping[str, str]) -> Iterator[onnx.NodeProto]:
        """Yields all nodes in the order of computation, those of pairs among them."""
        for node in self._graph.node:
            changed = onnx.NodeProto()
            changed.CopyFrom(node)
            if node.name in layers:
                weight, x = node.input[WEIGHT_INPUT], node.input[0]
                yield from self._pair_features(x)
                yield from self._unpack_weight(weight, _channel_axis(node))
                changed.input[0], changed.input[WEIGHT_INPUT] = self._done[x], self._done[weight]
            yield changed

    def _pair_features(self, name: str) -> Iterator[onnx.NodeProto]:
        if name in self._done:
            return
        scale = self._store(f"{name}_scale", choose_scales(np.float32(self._ranges[name])))
        whole, result = self._name(f"{name}_int8"), self._name(f"{name}_dequantized")
        self._done[name] = result
        yield helper.make_node("QuantizeLinear", [name, scale, self._zero], [whole], name=f"QuantizeLinear_{whole}")
        yield helper.make_node(
            "DequantizeLinear", [whole, scale, self._zero], [result], name=f"DequantizeLinear_{result}"
        )

    def _unpack_weight(self, name: str, axis: int) -> Iterator[onnx.NodeProto]:
        if name in self._done:
            return
        weight = numpy_helper.to_array(self._weights[name])
        others = tuple(other for other in range(weight.ndim) if other != axis)
        scales = choose_scales(np.abs(weight).max(axis=others, initial=0.0).astype(np.float32))
        shape = [1] * weight.ndim
        shape[axis] = -1
        whole = np.clip(np.rint(weight / scales.reshape(shape)), -MOST, MOST).astype(np.int8)
        inputs = [self._store(f"{name}_int8", whole), self._store(f"{name}_scale", scales)]
        result = self._done[name] = self._name(f"{name}_dequantized")
        yield helper.make_node("DequantizeLinear", inputs, [result], name=f"DequantizeLinear_{result}", axis=axis)

    def _store(self, name: str, array: Float32 | np.ndarray) -> str:
        name = self._name(name)
        self.stored.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def _name(self, name: str) -> str:
        while name in self._taken:
            name += "_"
        self._taken.add(name)
        return name


def choose_scales(ranges: Float32 | np.float32) -> Float32:
    """Returns the scales at which magnitudes become 127; where all is 0 the scale is a small positive number."""
    scales: Float32 = np.maximum(np.asarray(ranges, np.float32) / np.float32(MOST), _SMALLEST_SCALE)
    return scales


def _channel_axis(node: onnx.NodeProto) -> int:
    """Returns the axis of a layer's weights that its output channels lie on."""
    if node.op_type == "MatMul":
        return 1
    if node.op_type == "Gemm":
        transposed = next((attribute.i for attribute in node.attribute if attribute.name == "transB"), 0)
        return 0 if transposed else 1
    return 0
