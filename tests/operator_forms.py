"""Runs an operator in each of its forms, so that tests can hold them against each other."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from roiline.ops.kernel_host import run_on_host
from roiline.ops.kernels import Kernel
from roiline.ops.nodes import DOMAIN, DOMAIN_VERSION, IR_VERSION, OPSET, FunctionWriter
from roiline.ops.operator import Operator


def run_function(operator: Operator, arrays: tuple[np.ndarray, ...], **attributes: Any) -> tuple[np.ndarray, ...]:
    """Runs the ONNX function of an operator in ONNX Runtime, with every dimension free; warnings go to standard error."""
    complete = operator.complete(attributes)
    function = operator.write(len(arrays), complete)
    node = helper.make_node(operator.name, list(function.input), list(function.output), domain=DOMAIN, **complete)
    inputs = [
        helper.make_tensor_value_info(
            name,
            helper.np_dtype_to_tensor_dtype(array.dtype),
            [f"{name}_{axis}" for axis in range(array.ndim)],
        )
        for name, array in zip(function.input, arrays, strict=True)
    ]
    outputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), [None] * rank)
        for name, (dtype, rank) in operator.outputs.items()
    ]
    model = helper.make_model(
        helper.make_graph([node], operator.name, inputs, outputs),
        functions=[function],
        opset_imports=[helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, DOMAIN_VERSION)],
        ir_version=IR_VERSION,
    )
    session = open_model(model.SerializeToString(deterministic=True))
    return tuple(session.run(None, dict(zip(function.input, arrays, strict=True))))


@lru_cache(maxsize=64)
def open_model(serialized: bytes) -> onnxruntime.InferenceSession:
    """Checks and opens a model; the same bytes are opened once."""
    onnx.checker.check_model(serialized, full_check=True)
    return _open_session(serialized)


@lru_cache(maxsize=64)
def _open_session(serialized: bytes) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 2
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(serialized, options, providers=["CPUExecutionProvider"])


def run_reference(operator: Operator, arrays: tuple[np.ndarray, ...], **attributes: Any) -> tuple[np.ndarray, ...]:
    """Runs the numpy reference of an operator."""
    return operator.run(*arrays, **attributes)


def need_host_compiler() -> None:
    """Skips a test that runs kernels where there is no compiler for them."""
    if shutil.which("g++") is None:
        pytest.skip("kernels are compiled by g++, which is not on the PATH")


def run_kernels(operator: Operator, arrays: tuple[np.ndarray, ...], **attributes: Any) -> tuple[np.ndarray, ...]:
    """Runs what an operator is lowered to, with its inputs laid out for it and its outputs cut to what the operator itself gives."""
    return _cut(operator, run_lowered(operator, _spread(operator, arrays), **attributes))


def run_lowered(operator: Operator, arrays: tuple[np.ndarray, ...], **attributes: Any) -> tuple[np.ndarray, ...]:
    """Runs what an operator is lowered to: its kernels on the host, standard nodes between them in ONNX Runtime."""
    need_host_compiler()
    if operator.lower is None:
        pytest.skip(f"{operator.name} has no kernels")
    w = FunctionWriter()
    names = tuple(f"input_{index}" for index in range(len(arrays)))
    results = operator.lower(w, names, operator.complete(attributes))
    values = dict(zip(names, arrays, strict=True))
    for node in w.nodes:
        feeds = [values[name] for name in node.input]
        outputs = _run_kernel(node, feeds, operator) if node.domain == DOMAIN else _run_standard(node, feeds)
        values.update(zip(node.output, outputs, strict=True))
    return tuple(values[name] for name in results)


def read_kernel(operator: Operator, node: onnx.NodeProto) -> tuple[Kernel, dict[str, Any]]:
    """Returns the kernel of a lowered node and its attributes."""
    attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    assert (attributes.pop("plugin_namespace"), attributes.pop("plugin_version")) == (b"roiline", b"1")
    (kernel,) = (one for one in operator.kernels if one.name == node.op_type.rstrip("0123456789"))
    assert node.op_type == kernel.op_type(len(node.input))
    return kernel, attributes


def _run_kernel(node: onnx.NodeProto, feeds: list[np.ndarray], operator: Operator) -> tuple[np.ndarray, ...]:
    kernel, attributes = read_kernel(operator, node)
    assert set(attributes) == set(kernel.attributes), node.op_type
    return run_on_host(kernel, feeds, attributes)


def _run_standard(node: onnx.NodeProto, feeds: list[np.ndarray]) -> list[np.ndarray]:
    if node.op_type == "Constant":
        return [numpy_helper.to_array(node.attribute[0].t)]
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(feed.dtype), [None] * feed.ndim)
        for name, feed in dict(zip(node.input, feeds, strict=True)).items()
    ]
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output]
    graph = helper.make_graph([node], "standard", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    session = _open_session(model.SerializeToString(deterministic=True))
    return list(session.run(None, dict(zip(node.input, feeds, strict=True))))


def _spread(operator: Operator, arrays: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
    """Spreads rows picture by picture into equal parts, where kernels want them so; padding rows have tempting scores."""
    if operator.name == "DetectionOutput":
        rois, cls_prob, bbox_pred, *others = arrays
        counts = others[-1].astype(int)
        return (_parts(rois, counts, -1), _parts(cls_prob, counts, 0.99), _parts(bbox_pred, counts, 0.5), *others)
    if operator.name == "BoxWithNMSLimit" and len(arrays) == 3:
        counts = arrays[2].astype(int)
        return (_parts(arrays[0], counts, 0.99), _parts(arrays[1], counts, 33), arrays[2])
    return arrays


def _parts(rows: np.ndarray, counts: np.ndarray, padding: float) -> np.ndarray:
    """Returns rows (T, ...) as N parts of one size, which leaves room to spare where T is odd."""
    size = counts.max(initial=0) + 3 * (len(rows) % 2)
    filled = np.arange(size)[None] < counts[:, None]
    spread = np.full((*filled.shape, *rows.shape[1:]), padding, rows.dtype)
    spread[filled] = rows
    return spread.reshape(-1, *rows.shape[1:])


def _cut(operator: Operator, outputs: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
    """Cuts padded outputs (N, R, ...) to the longest picture, and rows to those of a picture."""
    if operator.name == "Trim":
        return (outputs[0][outputs[0][:, 0] >= 0],)
    if operator.name == "BoxWithNMSLimit":
        real = int(outputs[3].sum())
        return tuple(
            array if name in ("kept_splits", "keeps_size") else array[:real]
            for name, array in zip(operator.outputs, outputs, strict=True)
        )
    if "count" in operator.outputs:
        longest = int(outputs[-1].max(initial=0))
        return (*(array[:, :longest] for array in outputs[:-1]), outputs[-1])
    return outputs


FORMS = {"reference": run_reference, "function": run_function, "kernels": run_kernels}


def forms_of(operator: Operator) -> dict[str, Callable[..., tuple[np.ndarray, ...]]]:
    """Returns the forms that an operator has and that can be run here."""
    runnable = operator.lower is not None and shutil.which("g++") is not None
    return {form: run for form, run in FORMS.items() if form != "kernels" or runnable}
