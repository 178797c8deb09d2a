"""All that is standard in a lowered model, taken by TensorRT's own parser and builder (those of TensorRT for RTX work without a GPU).

Kernel nodes are taken out: what they give becomes an input, what they take an output. Everything else of the network is in one piece.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from lowered_runs import FAMILIES
from onnx import helper
from thin_models import export_thin, feed_pictures

from roiline.engines import host_kernels
from roiline.engines.protocol import Device
from roiline.engines.tensorrt.lowering import LoweredModel, lower_model
from roiline.engines.tensorrt.profiles import Profile
from roiline.export.activation_ranges import measure_ranges
from roiline.export.half_precision import BF16, FP16, convert_to_half
from roiline.export.quantization import find_quantized, quantize

pytestmark = pytest.mark.tensorrt
if importlib.util.find_spec("tensorrt_rtx") is None:
    pytest.skip("needs the wheel tensorrt_rtx", allow_module_level=True)
if shutil.which("g++") is None:
    pytest.skip("needs g++ for the kernels", allow_module_level=True)

BUILD = Path(__file__).resolve().parents[2] / "rtx_build.py"
SMALL, LARGE = (1, 96, 128), (2, 128, 192)


def record_tensors(lowered: LoweredModel, path, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns all tensors that pass between kernels and standard nodes, computed on the host."""
    backend = host_kernels.open_backend(path, None, Device())
    tensors = {**backend._constants, **{info.name: feeds[info.name] for info in backend.inputs}}
    for step in backend._steps:
        tensors |= step.run(tensors)
    return tensors


def hollow_model(
    lowered: LoweredModel, small: Mapping[str, np.ndarray], large: Mapping[str, np.ndarray]
) -> tuple[onnx.ModelProto, Profile]:
    """Returns the model without its kernel nodes, and a profile from one set of shapes to another."""
    graph = lowered.model.graph
    standard = [node for node in graph.node if node.name not in lowered.kernels]
    kernels = [node for node in graph.node if node.name in lowered.kernels]
    used = {name for node in standard for name in node.input}
    made = {name for node in standard for name in node.output}
    inputs = [info.name for info in graph.input if info.name in used]
    inputs += [name for node in kernels for name in node.output if name in used]
    outputs = {name: None for node in kernels for name in node.input if name in made}
    ends = [info for info in graph.output if info.name in made and info.name not in outputs]
    model = helper.make_model(
        helper.make_graph(
            standard,
            "hollow",
            [_describe(name, small[name], large[name]) for name in inputs],
            [*(_describe(name, small[name], large[name]) for name in outputs), *ends],
            [tensor for tensor in graph.initializer if tensor.name in used],
        ),
        opset_imports=lowered.model.opset_import,
        ir_version=lowered.model.ir_version,
    )
    shapes = {name: (small[name].shape, large[name].shape, large[name].shape) for name in inputs}
    return model, Profile(shapes)


def _describe(name: str, small: np.ndarray, large: np.ndarray) -> onnx.ValueInfoProto:
    sizes: Sequence[int | str] = [
        low if low == high else f"{name}_{axis}"
        for axis, (low, high) in enumerate(zip(small.shape, large.shape, strict=True))
    ]
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(small.dtype), sizes)


def build(model: onnx.ModelProto, profile: Profile, folder: Path) -> int:
    """Returns the size of the engine that TensorRT for RTX builds, in a process of its own."""
    written, shapes, out = folder / "hollow.onnx", folder / "shapes.json", folder / "hollow.engine"
    onnx.save(model, written)
    shapes.write_text(json.dumps(dict(profile.shapes)))
    command = [sys.executable, str(BUILD), str(written), str(shapes), str(out)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-4000:]
    return out.stat().st_size


def write_half(model: onnx.ModelProto) -> onnx.ModelProto:
    return convert_to_half(model, FP16)


def write_int8(model: onnx.ModelProto) -> onnx.ModelProto:
    ranges = measure_ranges(model, find_quantized(model.graph).values(), [], [feed_pictures(*SMALL)]).ranges
    return quantize(model, ranges)


@pytest.mark.parametrize("family", ["masks on one level", "pyramid with keypoints"])
def test_standard_nodes_are_built_in_bf16_which_does_not_run_here(family, tmp_path):
    path = export_thin(FAMILIES[family], tmp_path).path
    whole = lower_model(onnx.load(path), where=family)
    small, large = (record_tensors(whole, path, feed_pictures(*size)) for size in (SMALL, LARGE))
    lowered = lower_model(convert_to_half(onnx.load(path), BF16), where=family)
    assert build(*hollow_model(lowered, small, large), tmp_path) > 50_000


@pytest.mark.parametrize("convert", [None, write_half, write_int8], ids=["fp32", "fp16", "int8"])
@pytest.mark.parametrize("family", FAMILIES)
def test_standard_nodes_are_built(family, convert, tmp_path):
    path = export_thin(FAMILIES[family], tmp_path).path
    if convert is not None:
        path = tmp_path / "converted.onnx"
        onnx.save(convert(onnx.load(tmp_path / "model.onnx")), path)
    lowered = lower_model(onnx.load(path), where=family)
    small, large = (record_tensors(lowered, path, feed_pictures(*size)) for size in (SMALL, LARGE))
    assert build(*hollow_model(lowered, small, large), tmp_path) > 50_000
