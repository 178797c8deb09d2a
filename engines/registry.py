"""Engines by name, loaded when they are asked for."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path

from roiline.core.errors import UsageError
from roiline.engines.model_file import read_spec
from roiline.engines.protocol import Backend, Device, Engine, Stage

ENGINES: dict[str, str] = {
    "onnxruntime": "roiline.engines.onnxruntime:open_backend",
    "fake": "roiline.engines.fake:open_backend",
}
DEFAULT_ENGINE = "onnxruntime"


def resolve_engine(name: str) -> str:
    """Returns the engine that `name` (or `auto`) means.

    Raises:
        UsageError: there is no such engine; the message lists those that there are.
    """
    if name == "auto":
        return DEFAULT_ENGINE
    if name not in ENGINES:
        raise UsageError(f"there is no engine named {name!r}; there are auto, {', '.join(sorted(ENGINES))}")
    return name


def open_engine(
    path: Path, *, engine: str = "auto", device: Device | None = None, stage: Stage | None = None
) -> Engine:
    """Opens a model file, or a stage of it, on a device.

    Raises:
        UsageError: unknown engine.
        ModelError: the file is no model of ours, or lacks a tensor of the stage.
        EngineError: the engine or the device is not there.
    """
    name = resolve_engine(engine)
    spec = read_spec(path)
    module, function = ENGINES[name].split(":")
    open_backend: Callable[[Path, Stage | None, Device], Backend] = getattr(importlib.import_module(module), function)
    return Engine(open_backend(path, stage, device or Device()), spec)
