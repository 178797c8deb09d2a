"""Inspecting model files: what the specification says, and whether the graph is whole and keeps to it. Caffe2's nets too."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from roiline.checks.configurations import describe_images
from roiline.checks.findings import Inspected, Inspection, failed
from roiline.core.errors import ModelError
from roiline.core.spec import ModelSpec, TestOptions
from roiline.engines.model_file import read_spec
from roiline.export.caffe2.netdef import read_net

KIND = "model"
_FLOAT_KINDS = "fV"  # V: numpy knows no bfloat16


def inspect_model(path: Path) -> Inspected:
    """Says what a model file of ours does, and what is wrong with its specification or its graph."""
    try:
        spec = read_spec(path)
    except ModelError as error:
        return Inspected(failed(path, KIND, error))
    graph, problems = _inspect_graph(path, spec)
    facts = {**describe_spec(spec), "bytes": path.stat().st_size, **graph}
    notes = [] if spec.class_names_known else ["the checkpoint did not name its classes: they are numbered"]
    if spec.images is None:
        notes.append("it was exported without a configuration (--cfg): it runs over no datasets")
    return Inspected(Inspection(str(path), KIND, facts, tuple(notes), problems), spec)


def inspect_net(path: Path) -> Inspected:
    """Says what a Caffe2 net takes, gives and computes."""
    try:
        net, _ = read_net(path)
    except ModelError as error:
        return Inspected(failed(path, "Caffe2 net", error))
    facts = {
        "name": net.name,
        "operators": len(net.operators),
        "kinds of operators": sorted({operator.type for operator in net.operators}),
        "external inputs": len(net.external_inputs),
        "external outputs": list(net.external_outputs),
    }
    return Inspected(Inspection(str(path), "Caffe2 net", facts))


def describe_spec(spec: ModelSpec) -> dict[str, Any]:
    """Returns what a specification says, for people."""
    rules = spec.detection
    facts: dict[str, Any] = {
        "architecture": spec.architecture,
        "tasks": list(spec.tasks),
        "classes": list(spec.class_names),
        "conventions": spec.conventions.name,
        "precision": spec.precision,
        "source": spec.source.kind,
        "weights SHA-256": spec.source.weights_sha256,
        "proposals from outside": spec.given_proposals is not None,
        "host options": [one.name for one in fields(TestOptions) if getattr(spec.test, one.name) is not None],
        "seams": {name: list(tensors) for name, tensors in spec.seams.items()},
    }
    if spec.images is not None:
        facts |= describe_images(spec.images)
    if rules is not None:
        facts["thresholds"] = {"score": rules.score_thresh, "NMS": rules.nms_thresh, "detections": rules.max_dets}
    if spec.taps:
        facts["taps"] = list(spec.taps)
    return facts


def _inspect_graph(path: Path, spec: ModelSpec) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Returns facts of the graph and what is wrong with it."""
    import onnx
    from onnx import numpy_helper

    try:
        model = onnx.load(path, load_external_data=False)
        onnx.checker.check_model(path)
    except Exception as error:  # protobuf's DecodeError has no stable home, and the checker raises several kinds
        return {}, (f"its graph is not valid ONNX: {str(error).strip().splitlines()[0]}",)
    graph = model.graph
    ends = [info.name for info in (*graph.input, *graph.output)]
    tensors = {*ends, *(name for node in graph.node for name in node.output)}
    problems = [
        f"the seam `{seam}` names the tensor {name}, which the graph has not"
        for seam, names in spec.seams.items()
        for name in names
        if name not in tensors
    ]
    values = 0
    for initializer in graph.initializer:
        array = numpy_helper.to_array(initializer)
        values += array.size
        if array.dtype.kind in _FLOAT_KINDS and (wrong := int((~np.isfinite(array.astype(np.float32))).sum())):
            problems.append(f"{initializer.name}: {wrong} weights are NaN or infinite")
    opsets = {entry.domain or "onnx": entry.version for entry in model.opset_import}
    facts = {
        "inputs": [info.name for info in graph.input],
        "outputs": [info.name for info in graph.output],
        "nodes": len(graph.node),
        "weights": values,
        "operator sets": opsets,
    }
    return facts, tuple(problems)
