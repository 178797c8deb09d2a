"""Runs what a graph writer has laid out, on blobs made up for it."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import onnxruntime
from onnx import helper

from roiline.export.graph import GraphWriter


def make_blobs(g: GraphWriter, *, seed: int = 0, scale: float = 0.3) -> dict[str, np.ndarray]:
    """Returns random values for every blob that the graph needs."""
    random = np.random.default_rng(seed)
    return {need.name: random.normal(0, scale, need.shape).astype(np.float32) for need in g.requirements}


def run_graph(
    g: GraphWriter, blobs: dict[str, np.ndarray], feeds: dict[str, np.ndarray], wanted: list[str]
) -> dict[str, np.ndarray]:
    """Returns tensors of the graph by name, computed by ONNX Runtime with every dimension of the feeds free."""
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), [None] * array.ndim)
        for name, array in feeds.items()
    ]
    spec = SimpleNamespace(architecture="part", to_json=lambda: "{}", taps=())
    model = g.finish(spec, blobs, inputs, [])
    model.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in wanted)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3  # outputs without a declared type are inferred
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return dict(zip(wanted, session.run(wanted, feeds), strict=True))
