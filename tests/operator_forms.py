"""Runs an operator in each of its forms, so that tests can hold them against each other."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper

from roiline.ops.nodes import DOMAIN, DOMAIN_VERSION, IR_VERSION, OPSET
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
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 2
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(serialized, options, providers=["CPUExecutionProvider"])


def run_reference(operator: Operator, arrays: tuple[np.ndarray, ...], **attributes: Any) -> tuple[np.ndarray, ...]:
    """Runs the numpy reference of an operator."""
    return operator.run(*arrays, **attributes)


FORMS = {"reference": run_reference, "function": run_function}
