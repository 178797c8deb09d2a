"""The lowered graph on the host: standard nodes in ONNX Runtime, kernel nodes by g++, exactly as a TensorRT engine has them.

It is how the lowering and the kernels of a model are proved on a machine without a GPU, and where to look when an engine's answers are
in doubt. It is slow, needs g++, and is chosen by name only.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from roiline.core.errors import EngineError
from roiline.engines.model_file import describe_ends, load_model
from roiline.engines.protocol import Device, Stage, Tensor, TensorInfo
from roiline.engines.tensorrt.lowering import LoweredModel, lower_model
from roiline.engines.tensorrt.trimming import trim_outputs
from roiline.ops.kernel_host import run_on_host
from roiline.ops.kernels import KernelNode


@dataclass(frozen=True, slots=True)
class _Segment:
    """Is standard nodes that run in one session: what they are given and what they make for others."""

    session: Any
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def run(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        values = self.session.run(list(self.outputs), {name: tensors[name] for name in self.inputs})
        return dict(zip(self.outputs, values, strict=True))


@dataclass(frozen=True, slots=True)
class _KernelCall:
    """Is one kernel node."""

    name: str
    node: KernelNode
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def run(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        arrays = [tensors[name] for name in self.inputs]
        try:
            values = run_on_host(self.node.kernel, arrays, self.node.attributes)
        except TypeError as error:
            raise EngineError(f"kernel node `{self.name}`: {error}") from error
        return dict(zip(self.outputs, values, strict=True))


class HostKernelBackend:
    """Runs the segments and kernels of a lowered model in turn, and trims what they give."""

    def __init__(
        self, lowered: LoweredModel, inputs: Sequence[TensorInfo], outputs: Sequence[TensorInfo], threads: int
    ) -> None:
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self._trims = lowered.trims
        self._constants = {
            tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in lowered.model.graph.initializer
        }
        self._steps = _make_steps(lowered, threads)
        self.description: Mapping[str, str] = {
            "engine": "host-kernels",
            "kernels": str(len(lowered.kernels)),
            "segments": str(len(self._steps) - len(lowered.kernels)),
            "threads": str(threads),
        }

    def run(self, feeds: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Runs everything once, in order."""
        tensors = {**self._constants, **feeds}
        for step in self._steps:
            tensors |= step.run(tensors)
        images = len(next(iter(feeds.values())))
        return trim_outputs(tensors, self._trims, images)

    def close(self) -> None:
        """Lets go of the sessions."""
        self._steps = []


def open_backend(path: Path, stage: Stage | None, device: Device) -> HostKernelBackend:
    """Opens a model file, or a stage of it, lowered.

    Raises:
        EngineError: the device is not the CPU, g++ or ONNX Runtime is absent, or the model has no lowered form.
        ModelError: the file is no model that can be loaded.
    """
    if device.kind != "cpu":
        raise EngineError(f"the engine host-kernels runs on the CPU, not on {device.kind}")
    if shutil.which("g++") is None:
        raise EngineError("the engine host-kernels compiles kernels with g++, which is not on the PATH")
    model = load_model(path, stage=stage)
    lowered = lower_model(model, where=str(path))
    taken = [info.name for info in lowered.model.graph.input]
    return HostKernelBackend(lowered, *describe_ends(model, taken), threads=device.threads or 1)


def _make_steps(lowered: LoweredModel, threads: int) -> list[_Segment | _KernelCall]:
    """Returns the graph as steps that need only what comes before them; standard nodes of one level share a session."""
    graph = lowered.model.graph
    levels = _find_levels(graph.node, lowered.kernels)
    types = {info.name: info.type.tensor_type.elem_type for info in graph.input}
    types |= {tensor.name: tensor.data_type for tensor in graph.initializer}
    steps: list[_Segment | _KernelCall] = []
    for level in sorted(set(levels.values())):
        nodes = [node for node in graph.node if levels[node.name] == level]
        if level % 2:
            steps += [_call_kernel(node, lowered.kernels[node.name], types) for node in nodes]
        else:
            later = {name for node in graph.node if levels[node.name] > level for name in node.input}
            steps.append(_open_segment(lowered.model, nodes, later, types, threads))
    return steps


def _find_levels(nodes: Sequence[onnx.NodeProto], kernels: Mapping[str, KernelNode]) -> dict[str, int]:
    """Returns how often the kind of node changes on the way to each node; even levels are standard nodes, odd ones kernels."""
    reached: dict[str, int] = {}
    levels: dict[str, int] = {}
    for node in nodes:
        before = max((reached[name] for name in node.input if name in reached), default=0)
        level = before + (before % 2 != (node.name in kernels))
        levels[node.name] = level
        reached.update(dict.fromkeys(node.output, level))
    return levels


def _call_kernel(node: onnx.NodeProto, kernel: KernelNode, types: dict[str, int]) -> _KernelCall:
    dtypes = [str(onnx.helper.tensor_dtype_to_np_dtype(types[name])) for name in node.input]
    try:
        given = kernel.output_dtypes(dtypes)
    except TypeError as error:
        raise EngineError(f"kernel node `{node.name}`: {error}") from error
    types.update({name: _element_type(dtype) for name, dtype in zip(node.output, given, strict=True)})
    return _KernelCall(node.name, kernel, tuple(node.input), tuple(node.output))


def _open_segment(
    model: onnx.ModelProto, nodes: Sequence[onnx.NodeProto], later: set[str], types: dict[str, int], threads: int
) -> _Segment:
    """Opens a session over standard nodes; `later` names what others need of it, and `types` learns of what kind that is."""
    made = {name for node in nodes for name in node.output if name}
    used = {name for node in nodes for name in node.input if name}
    constants = [tensor for tensor in model.graph.initializer if tensor.name in used]
    inputs = sorted(used - made - {tensor.name for tensor in constants})
    outputs = sorted(made & (later | {info.name for info in model.graph.output}))
    part = onnx.helper.make_model(
        onnx.helper.make_graph(
            nodes,
            "segment",
            [_free_tensor(name, types[name]) for name in inputs],
            [onnx.ValueInfoProto(name=name) for name in outputs],
            constants,
        ),
        opset_imports=model.opset_import,
        ir_version=model.ir_version,
    )
    session = _open_session(part.SerializeToString(), threads)
    types.update({tensor.name: _session_type(tensor.type) for tensor in session.get_outputs()})
    return _Segment(session, tuple(inputs), tuple(outputs))


def _open_session(content: bytes, threads: int) -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise EngineError("the engine host-kernels needs ONNX Runtime; `pip install 'roiline[cpu]'`") from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    # further optimisations depend on what else is in a session, and move last bits: a graph in parts would not be the whole one
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    try:
        return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the runtime raises classes of its own that share no base of ours
        raise EngineError(f"ONNX Runtime cannot load a part of the lowered graph: {error}") from error


def _session_type(text: str) -> int:
    """Returns the element type that a session calls `tensor(float)`, `tensor(int64)`, .."""
    return int(onnx.TensorProto.DataType.Value(text.removeprefix("tensor(").removesuffix(")").upper()))


def _element_type(dtype: str) -> int:
    return int(onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def _free_tensor(name: str, element_type: int) -> onnx.ValueInfoProto:
    info = onnx.ValueInfoProto(name=name)
    info.type.tensor_type.elem_type = element_type
    return info
