"""Engines by name, loaded when they are asked for.

A name with a colon is an engine of somebody else's: `module:function`, where the function is a backend's `open_backend`. Every process of
a run imports that module itself.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from roiline.core.errors import UsageError
from roiline.engines.model_file import PLAN_SUFFIX, read_spec
from roiline.engines.protocol import Backend, Device, Engine, Stage

OpenBackend: TypeAlias = Callable[[Path, Stage | None, Device], Backend]

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

    `module:function` is taken as it is, whatever the file.

    Raises:
        UsageError: there is no such engine (the message lists those that there are), or it does not run such files.
    """
    built = model is not None and model.suffix == PLAN_SUFFIX
    if name == "auto":
        return PLAN_ENGINES[0] if built else DEFAULT_ENGINE
    if ":" in name:
        return name
    if name not in ENGINES:
        raise UsageError(
            f"there is no engine named {name!r}; there are auto, {', '.join(sorted(ENGINES))}, and module:function for one of your own"
        )
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
    return Engine(_find_backend(name)(path, stage, device or Device()), spec)


def _find_backend(name: str) -> OpenBackend:
    module, _, function = ENGINES.get(name, name).partition(":")
    if module.startswith("."):
        raise UsageError(f"--engine {name}: expected module:function, the module by its whole name, not {module!r}")
    try:
        found: object = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(
            f"--engine {name}: {error}; expected module:function, the module where Python finds it (PYTHONPATH)"
        ) from error
    if not callable(found):
        raise UsageError(f"--engine {name}: expected a function, got {type(found).__name__}")
    return found
