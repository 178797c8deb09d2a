"""TensorRT's run time: its log, and an engine file brought back to life.

Without a driver TensorRT's own objects fail in ways that say nothing, or crash the process; so callers ask the driver first.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import numpy as np

from roiline.core.errors import EngineError, ModelError

LOG = logging.getLogger("roiline.tensorrt")


@dataclass(frozen=True, slots=True)
class EngineTensor:
    """Is one input or output of a built engine."""

    name: str
    dtype: np.dtype[Any]
    is_input: bool


def make_logger(trt: Any) -> Any:
    """Returns a logger for TensorRT that hands its lines to ours, and keeps those that tell of errors in `errors`."""
    levels = {
        trt.ILogger.Severity.INTERNAL_ERROR: logging.ERROR,
        trt.ILogger.Severity.ERROR: logging.ERROR,
        trt.ILogger.Severity.WARNING: logging.WARNING,
        trt.ILogger.Severity.INFO: logging.DEBUG,
        trt.ILogger.Severity.VERBOSE: logging.NOTSET,
    }

    class Logger(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.errors: list[str] = []

        def log(self, severity: Any, message: str) -> None:
            level = levels.get(severity, logging.DEBUG)
            if level == logging.ERROR:
                self.errors.append(message)
            elif level > logging.NOTSET:
                LOG.log(level, "TensorRT: %s", message)

    return Logger()


def load_engine(trt: Any, plan: bytes, *, where: str, host_code: bool = False) -> tuple[Any, Any]:
    """Returns TensorRT's runtime and the engine that it made of a plan; the runtime must outlive the engine.

    `host_code` allows a version-compatible plan to bring its own lean runtime, which is code: only for plans of one's own making.

    Raises:
        EngineError: there is no runtime.
        ModelError: TensorRT refuses the plan; its own words are given.
    """
    logger = make_logger(trt)
    try:
        runtime = trt.Runtime(logger)
    except TypeError as error:  # what the binding makes of a runtime that could not be created
        raise EngineError(f"TensorRT's runtime could not be made: {'; '.join(logger.errors) or error}") from error
    if host_code:
        runtime.engine_host_code_allowed = True
    engine = runtime.deserialize_cuda_engine(plan)
    if engine is None:
        reason = "; ".join(logger.errors) or "it gave no reason"
        raise ModelError(
            f"{where}: TensorRT refuses this engine: {reason}; build it anew with `roiline build --rebuild`"
        )
    return runtime, engine


def read_tensors(trt: Any, engine: Any, *, where: str) -> tuple[EngineTensor, ...]:
    """Returns the inputs and outputs of an engine.

    Raises:
        ModelError: one of them lies in host memory, as inputs do that are shapes: no engine of ours has such.
    """
    names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
    on_host = [name for name in names if engine.get_tensor_location(name) != trt.TensorLocation.DEVICE]
    if on_host:
        raise ModelError(
            f"{where}: the engine wants {', '.join(on_host)} in host memory, as none that `roiline build` makes"
        )
    return tuple(
        EngineTensor(
            name,
            np.dtype(trt.nptype(engine.get_tensor_dtype(name))),
            engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT,
        )
        for name in names
    )
