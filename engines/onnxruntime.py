"""ONNX Runtime on the CPU: the default where there is no GPU.

It is given its share of the cores as threads; results do not depend on their number. What was asked for is compared with what the
session has: another provider than the asked one is an error.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from roiline.core.errors import EngineError, ModelError
from roiline.engines.model_file import cut_model
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
_PROVIDER = "CPUExecutionProvider"


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
    """Opens a model file, or a stage of it, in ONNX Runtime.

    Raises:
        EngineError: ONNX Runtime is not installed, or the device is none that it was asked for here.
        ModelError: the file is no model that it can load.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise EngineError("ONNX Runtime is not installed; `pip install 'roiline[cpu]'`") from error
    if device.kind != "cpu":
        raise EngineError(
            f"the engine onnxruntime runs on the CPU and was asked for {device.kind}:{device.index}; use --cpu-workers N"
        )
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = device.threads or len(os.sched_getaffinity(0))
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    source = str(path) if stage is None else _stage_bytes(path, stage)
    try:
        session = onnxruntime.InferenceSession(source, options, providers=[_PROVIDER])
    except Exception as error:  # as above
        raise ModelError(f"{path}: ONNX Runtime cannot load this model: {error}") from error
    if session.get_providers() != [_PROVIDER]:
        raise EngineError(f"ONNX Runtime was asked for {_PROVIDER} and took {', '.join(session.get_providers())}")
    description = {
        "engine": "onnxruntime",
        "version": onnxruntime.__version__,
        "provider": _PROVIDER,
        "threads": str(options.intra_op_num_threads),
    }
    return OnnxRuntimeBackend(session, description)


def _stage_bytes(path: Path, stage: Stage) -> bytes:
    import onnx

    try:
        model = onnx.load(str(path))
    except Exception as error:  # protobuf's DecodeError has no stable home
        raise ModelError(f"{path}: this is not a whole ONNX file ({error})") from error
    data: bytes = cut_model(model, stage, where=str(path)).SerializeToString()
    return data


def _info(tensor: Any) -> TensorInfo:
    shape = tuple(size if isinstance(size, int) else None for size in tensor.shape)
    return TensorInfo(tensor.name, _DTYPES.get(tensor.type, tensor.type), shape)
