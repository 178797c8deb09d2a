"""Engines by name, loaded when they are asked for."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path

from roiline.core.errors import UsageError
from roiline.engines.model_file import PLAN_SUFFIX, read_spec
from roiline.engines.protocol import Backend, Device, Engine, Stage

ENGINES: dict[str, str] = {
    "onnxruntime": "roiline.engines.onnxruntime:open_backend",
    "onnxruntime-tensorrt": "roiline.engines.onnxruntime:open_tensorrt_backend",
    "fake": "roiline.engines.fake:open_backend",
    "tensorrt": "roiline.engines.tensorrt.backend:open_backend",
    "tensorrt-pictures": "roiline.engines.tensorrt.backend:open_picture_backend",
    "host-kernels": "roiline.engines.host_kernels:open_backend",
}
DEFAULT_ENGINE = "onnxruntime"
PLAN_ENGINES = ("tensorrt", "tensorrt-pictures")
"""What runs built engines, and nothing else (a built engine is known by its name): the second prepares pictures on the GPU."""


def resolve_engine(name: str, model: Path | None = None) -> str:
    """Returns the engine that `name` means for a model file; `auto` is TensorRT for a built engine, else ONNX Runtime.

    Raises:
        UsageError: there is no such engine (the message lists those that there are), or it does not run such files.
    """
    built = model is not None and model.suffix == PLAN_SUFFIX
    if name == "auto":
        return PLAN_ENGINES[0] if built else DEFAULT_ENGINE
    if name not in ENGINES:
        raise UsageError(f"there is no engine named {name!r}; there are auto, {', '.join(sorted(ENGINES))}")
    if built and name not in PLAN_ENGINES:
        raise UsageError(
            f"{model}: a built engine runs in {' or '.join(PLAN_ENGINES)} only, --engine {name} was asked for"
        )
    if model is not None and name in PLAN_ENGINES and not built:
        raise UsageError(
            f"{model}: --engine {name} runs built engines (*{PLAN_SUFFIX}); make one with `roiline build {model} -o "
            f"{model.with_suffix(PLAN_SUFFIX)}`, or use --engine onnxruntime"
        )
    return name


def open_engine(
    path: Path, *, engine: str = "auto", device: Device | None = None, stage: Stage | None = None
) -> Engine:
    """Opens a model file, or a stage of it, on a device.

    Raises:
        UsageError: unknown engine, or one that does not run such a file.
        ModelError: the file is no model of ours, or lacks a tensor of the stage.
        EngineError: the engine or the device is not there.
    """
    name = resolve_engine(engine, path)
    spec = read_spec(path)
    module, function = ENGINES[name].split(":")
    open_backend: Callable[[Path, Stage | None, Device], Backend] = getattr(importlib.import_module(module), function)
    return Engine(open_backend(path, stage, device or Device()), spec)
