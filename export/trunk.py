"""The trunk of a finished model: the layers with weights, and what stands between them, found in the graph itself.

A *layer* is a convolution or a matrix product with weights. Everything else either carries features on to the next layer or is numeric:
anchors, boxes, RoIs, NMS, probabilities. A layer after which no other comes is an *output layer* (objectness, deltas, class scores, maps);
one before which none comes, fed by the pictures, is a *first layer*. No name and no source is asked, so it holds for every model.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import onnx

from roiline.ops.catalogue import OPERATORS
from roiline.ops.nodes import DOMAIN

LAYER_OPS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
WEIGHT_INPUT = 1

_SHAPE_OPS = frozenset({"Shape", "Size"})
_POOLING_OPS = frozenset(operator.name for operator in OPERATORS.values() if "features..." in operator.inputs)
_STANDARD_POOLING_OPS = frozenset({"RoiAlign", "MaxRoiPool"})


@dataclass(frozen=True, slots=True)
class Trunk:
    """Holds the names of the layers' nodes: all of them in the order of computation, the first ones, and the output layers."""

    layers: tuple[str, ...]
    first: frozenset[str]
    outputs: frozenset[str]


def find_trunk(graph: onnx.GraphProto) -> Trunk:
    """Finds the layers of a model's graph."""
    weights = {tensor.name for tensor in graph.initializer}
    layers = [node.name for node in graph.node if is_layer(node, weights)]
    consumers: dict[str, list[onnx.NodeProto]] = defaultdict(list)
    for node in graph.node:
        for name in _feature_inputs(node):
            consumers[name].append(node)
    known = frozenset(layers)
    first = _reach([info.name for info in graph.input], consumers, known)
    made = {node.name: node.output for node in graph.node if node.name in known}
    outputs = frozenset(name for name in layers if not _reach(made[name], consumers, known))
    return Trunk(tuple(layers), frozenset(first), outputs)


def find_layer_results(graph: onnx.GraphProto) -> list[str]:
    """Returns the tensors that the layers make, in the order of computation."""
    layers = set(find_trunk(graph).layers)
    return [name for node in graph.node if node.name in layers for name in node.output]


def is_layer(node: onnx.NodeProto, weights: Iterable[str]) -> bool:
    """Says whether a node is a layer: one of their operators, with weights that the file holds."""
    return (
        node.domain == ""
        and node.op_type in LAYER_OPS
        and len(node.input) > WEIGHT_INPUT
        and node.input[WEIGHT_INPUT] in weights
    )


def reads_shape_only(node: onnx.NodeProto) -> bool:
    """Says whether a node looks at a tensor's shape and never at its values."""
    return node.domain == "" and node.op_type in _SHAPE_OPS


def _reach(start: Iterable[str], consumers: dict[str, list[onnx.NodeProto]], layers: frozenset[str]) -> set[str]:
    """Returns the layers that features come to from the tensors `start` without passing another layer."""
    reached: set[str] = set()
    seen = set(start)
    pending = list(seen)
    while pending:
        for node in consumers[pending.pop()]:
            if node.name in layers:
                reached.add(node.name)
                continue
            new = set(node.output) - seen
            seen |= new
            pending.extend(new)
    return reached


def _feature_inputs(node: onnx.NodeProto) -> Iterator[str]:
    """Yields the inputs whose values a node hands on as features: not shapes, and of a pooling over RoIs not the RoIs."""
    if reads_shape_only(node):
        return
    if node.domain == DOMAIN:
        yield from node.input[1:] if node.op_type in _POOLING_OPS else ()
    elif node.op_type in _STANDARD_POOLING_OPS:
        yield node.input[0]
    elif node.op_type in LAYER_OPS:
        yield from node.input[:1] if node.op_type != "MatMul" else node.input
    else:
        yield from node.input
