"""The precision audit: what type every heavy layer was asked for, and in which it was built.

What was asked stands in the graph (types, and quantisation around a layer); what was built is read from TensorRT's own description of the
engine. A layer that was asked for in fp16 and runs in fp32 makes an engine that is slow without saying so, so that is a failure.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import onnx

from roiline.engines.gates import GateError
from roiline.engines.tensorrt.passport import LayerGroup

HEAVY = ("Conv", "ConvTranspose", "Gemm", "MatMul")

_ORDER = {"int8": 0, "fp16": 1, "bf16": 1, "fp32": 2}
_ASKED = {
    onnx.TensorProto.FLOAT: "fp32",
    onnx.TensorProto.FLOAT16: "fp16",
    onnx.TensorProto.BFLOAT16: "bf16",
}
_BUILT = (("int8", r"int8"), ("fp16", r"half|fp16|float16"), ("bf16", r"bf16|bfloat16"), ("fp32", r"float|fp32"))
_SOURCE = re.compile(r"\[ONNX Layer: ([^\]]+)\]")


def asked_precision(model: onnx.ModelProto) -> dict[str, tuple[str, str]]:
    """Returns (kind, precision) of every heavy node of a model, by its name; `unknown` where no type follows from the graph."""
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=False)
    types = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    for info in (*inferred.graph.value_info, *inferred.graph.input, *inferred.graph.output):
        types.setdefault(info.name, info.type.tensor_type.elem_type)
    producer = {name: node for node in model.graph.node for name in node.output}
    asked = {}
    for node in model.graph.node:
        if node.op_type in HEAVY and node.domain == "":
            quantised = producer.get(node.input[0])
            if quantised is not None and quantised.op_type == "DequantizeLinear":
                asked[node.name] = (node.op_type, "int8")
                continue
            kind = next((types[name] for name in node.input if types.get(name)), 0)
            asked[node.name] = (node.op_type, _ASKED.get(kind, "unknown"))
    return asked


def built_precision(information: str) -> dict[str, str]:
    """Returns the precision in which the layers of an engine take their first input, by the ONNX nodes that they are made of.

    `information` is the engine inspector's JSON, of an engine built with detailed profiling.

    Raises:
        GateError: it is not of the form that is known, so nothing can be said.
    """
    try:
        layers = json.loads(information)["Layers"]
    except (ValueError, KeyError, TypeError) as error:
        raise GateError(f"TensorRT's description of the engine is not as expected ({error!r})") from error
    built: dict[str, str] = {}
    for layer in layers:
        if not isinstance(layer, dict):
            raise GateError("TensorRT describes layers by name only; the engine was not built with detailed profiling")
        precision = _layer_precision(layer)
        for name in _SOURCE.findall(str(layer.get("Metadata", ""))):
            built.setdefault(name, precision)
    return built


def _layer_precision(layer: Mapping[str, Any]) -> str:
    inputs = layer.get("Inputs") or [{}]
    text = str(inputs[0].get("Format/Datatype", "")).lower()
    return next((name for name, pattern in _BUILT if re.search(pattern, text)), "unknown")


def group_layers(asked: Mapping[str, tuple[str, str]], built: Mapping[str, str]) -> tuple[LayerGroup, ...]:
    """Returns how many layers of each kind were asked for and built in each precision."""
    groups = Counter((kind, wanted, built.get(name, "unknown")) for name, (kind, wanted) in asked.items())
    return tuple(LayerGroup(*key, layers) for key, layers in sorted(groups.items()))


def check_precision(groups: Sequence[LayerGroup]) -> str:
    """Checks that no layer was built in a higher precision than was asked for, and that the engine could be read at all.

    Raises:
        GateError: one was, or none of the layers is known.
    """
    known = sum(group.layers for group in groups if group.built in _ORDER)
    total = sum(group.layers for group in groups)
    if total and not known:
        raise GateError(
            f"TensorRT's description names none of the {total} heavy layers, so their precision is not known"
        )
    risen = [group for group in groups if _ORDER.get(group.built, -1) > _ORDER.get(group.asked, len(_ORDER))]
    if risen:
        listing = ", ".join(f"{group.layers} {group.kind} asked {group.asked}, built {group.built}" for group in risen)
        raise GateError(f"layers were built in a higher precision than the model asks for: {listing}")
    return f"{known} of {total} heavy layers read, none in a higher precision than asked"
