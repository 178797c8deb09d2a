"""ONNX Runtime: on the CPU the default where there is no GPU, on a GPU through its CUDA provider or its own TensorRT provider.

On the CPU it is given its share of the cores as threads; results do not depend on their number. What was asked for is compared with
what the session has: another provider than the asked one is an error.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from roiline.core.errors import EngineError, ModelError
from roiline.engines.model_file import load_model, read_spec
from roiline.engines.onnxruntime_providers import (
    ProviderChoice,
    check_available,
    check_taken,
    cpu_provider,
    cuda_provider,
    describe_needs,
    forbid_tf32,
    load_libraries,
    tensorrt_provider,
)
from roiline.engines.protocol import Device, Stage, Tensor, TensorInfo

_DTYPES = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(double)": "float64",
    "tensor(int64)": "int64",
    "tensor(int32)": "int32",
    "tensor(uint8)": "uint8",
    "tensor(bool)": "bool",
}
_OF_THE_MODEL = ("InvalidGraph", "InvalidProtobuf", "InvalidArgument", "NoModel", "NoSuchFile", "NotImplemented")
"""ONNX Runtime's own classes of errors that are the file's fault, whatever it runs on."""


class OnnxRuntimeBackend:
    """Holds one inference session."""

    def __init__(self, session: Any, description: Mapping[str, str]) -> None:
        self._session = session
        self.inputs = tuple(_info(tensor) for tensor in session.get_inputs())
        self.outputs = tuple(_info(tensor) for tensor in session.get_outputs())
        self.description = description

    def run(self, feeds: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Runs the session once."""
        names = [info.name for info in self.outputs]
        try:
            results = self._session.run(names, dict(feeds))
        except Exception as error:  # the runtime raises classes of its own that share no base of ours
            raise EngineError(f"ONNX Runtime could not run the model: {error}") from error
        return dict(zip(names, results, strict=True))

    def close(self) -> None:
        """Lets go of the session."""
        self._session = None


def open_backend(path: Path, stage: Stage | None, device: Device) -> OnnxRuntimeBackend:
    """Opens a model file, or a stage of it, in ONNX Runtime: on the CPU, or on a GPU through its CUDA provider.

    Raises:
        EngineError: ONNX Runtime is not installed, or the provider of the device could not be had.
        ModelError: the file is no model that it can load.
    """
    choice = cpu_provider() if device.kind == "cpu" else cuda_provider(device)
    return _open(path, stage, device, choice, engine="onnxruntime")


def open_tensorrt_backend(path: Path, stage: Stage | None, device: Device) -> OnnxRuntimeBackend:
    """Opens a model file, or a stage of it, in ONNX Runtime's own TensorRT provider, which wants TensorRT 10.

    TensorRT builds its engine anew at every start. What it does not take, CUDA does.

    Raises:
        EngineError: ONNX Runtime is not installed, the device is the CPU, or the provider could not be had.
        ModelError: the file is no model that it can load.
    """
    if device.kind != "cuda":
        raise EngineError("the engine onnxruntime-tensorrt runs on a GPU, not on the CPU; choose one with --gpus")
    forbid_tf32()
    return _open(path, stage, device, tensorrt_provider(device), engine="onnxruntime-tensorrt")


def _open(
    path: Path, stage: Stage | None, device: Device, choice: ProviderChoice, *, engine: str
) -> OnnxRuntimeBackend:
    try:
        import onnxruntime
    except ImportError as error:
        raise EngineError(
            "ONNX Runtime is not installed; `pip install 'roiline[cpu]'`, or `pip install 'roiline[gpu]'` for NVIDIA GPUs "
            "(one of the two: they overwrite each other)"
        ) from error
    check_available(onnxruntime, choice, device)
    said = load_libraries(onnxruntime) if device.kind == "cuda" else ""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = device.threads or len(os.sched_getaffinity(0))
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    options.use_deterministic_compute = device.kind == "cuda"
    source = str(path) if stage is None else load_model(path, stage=stage).SerializeToString()
    try:
        session = onnxruntime.InferenceSession(source, options, providers=choice.arguments, enable_fallback=0)
    except Exception as error:  # as above
        if device.kind == "cpu" and type(error).__name__ == "NotImplemented":
            raise EngineError(
                f"{path}: ONNX Runtime {onnxruntime.__version__} lacks a kernel on the CPU for a part of this {read_spec(path).precision} "
                f"model: {error}; bf16 is for GPUs: export with another --precision to run it here"
            ) from error
        if device.kind == "cpu" or type(error).__name__ in _OF_THE_MODEL:
            raise ModelError(f"{path}: ONNX Runtime cannot load this model: {error}") from error
        needs = describe_needs(onnxruntime, choice.names[0])
        raise EngineError(
            f"{path}: ONNX Runtime cannot open this model on {choice.names[0]}: {error}; {needs}"
        ) from error
    check_taken(onnxruntime, choice, session.get_providers(), said=said)
    description = {
        "engine": engine,
        "version": onnxruntime.__version__,
        "provider": choice.names[0],
        "threads": str(options.intra_op_num_threads),
    }
    return OnnxRuntimeBackend(session, description)


def _info(tensor: Any) -> TensorInfo:
    shape = tuple(size if isinstance(size, int) else None for size in tensor.shape)
    return TensorInfo(tensor.name, _DTYPES.get(tensor.type, tensor.type), shape)
