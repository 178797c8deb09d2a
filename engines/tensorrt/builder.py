"""TensorRT's builder: a lowered model into an engine, with nothing left to chance that can be checked.

`trt` is TensorRT's module, handed in, so that the order of calls can be tested where no engine can be built.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx

from roiline.core.errors import EngineError, OutputError
from roiline.core.files import read_input, write_durable
from roiline.engines.tensorrt.plugins import check_plugin_layers
from roiline.engines.tensorrt.profiles import Profile
from roiline.engines.tensorrt.runtime import make_logger
from roiline.engines.tensorrt.settings import BuildSettings
from roiline.ops.kernels import KernelNode

LOG = logging.getLogger("roiline.engines.tensorrt")

_MOST_MESSAGES = 20


def build_engine(
    trt: Any,
    model: onnx.ModelProto,
    *,
    plugins: Mapping[str, KernelNode],
    profiles: Sequence[Profile],
    settings: BuildSettings,
    timing_cache: Path | None = None,
) -> bytes:
    """Builds an engine of a lowered model whose plugins are registered, and returns its bytes.

    The file of the timing cache is read where it is there, and written anew.

    Raises:
        EngineError: TensorRT refuses the model, makes no plugin of a kernel node, or cannot build; its own messages are in the error.
    """
    logger = make_logger(trt)
    try:
        builder = trt.Builder(logger)
    except TypeError as error:  # what the binding makes of a builder that could not be created
        raise EngineError(f"TensorRT's builder could not be made: {_last(logger.errors)} ({error})") from error
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.PREFER_AOT_PYTHON_PLUGINS))
    parse_model(trt, network, logger, model)
    check_plugin_layers(trt, network, model, plugins)
    config = builder.create_builder_config()
    configure(trt, config, settings)
    cache = _load_timing_cache(config, timing_cache)
    for profile in profiles:
        add_profile(builder, config, profile)
    serialized = builder.build_serialized_network(network, config)
    if serialized is None:
        raise EngineError(f"TensorRT could not build the engine:\n  {_last(logger.errors)}")
    if timing_cache is not None and cache is not None:
        _save_timing_cache(cache, timing_cache)
    return bytes(serialized)


def parse_model(trt: Any, network: Any, logger: Any, model: onnx.ModelProto) -> None:
    """Lets TensorRT's parser read a model into a network.

    Raises:
        EngineError: the parser refuses it; the message holds the parser's own.
    """
    parser = trt.OnnxParser(network, logger)
    if not parser.parse(model.SerializeToString()):
        errors = [str(parser.get_error(index)) for index in range(parser.num_errors)]
        raise EngineError(f"TensorRT cannot read this model:\n  {_last(errors or logger.errors)}")


def configure(trt: Any, config: Any, settings: BuildSettings) -> None:
    """Sets what a build is to keep to; single precision is full single precision unless it is asked otherwise."""
    config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, settings.workspace_mb << 20)
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    (config.set_flag if settings.tf32 else config.clear_flag)(trt.BuilderFlag.TF32)
    if settings.version_compatible:
        config.set_flag(trt.BuilderFlag.VERSION_COMPATIBLE)
    if settings.hardware_compatible:
        config.hardware_compatibility_level = trt.HardwareCompatibilityLevel.AMPERE_PLUS


def add_profile(builder: Any, config: Any, profile: Profile) -> None:
    """Adds an optimization profile.

    Raises:
        EngineError: TensorRT refuses it.
    """
    made = builder.create_optimization_profile()
    for name, (smallest, usual, largest) in profile.shapes.items():
        made.set_shape(name, smallest, usual, largest)
    if config.add_optimization_profile(made) < 0:
        shapes = ", ".join(f"{name} {low} .. {high}" for name, (low, _, high) in profile.shapes.items())
        raise EngineError(f"TensorRT refuses the shapes {shapes}")


def _load_timing_cache(config: Any, path: Path | None) -> Any:
    if path is None:
        return None
    stored = read_input(path, error=EngineError) if path.exists() else b""
    cache = config.create_timing_cache(stored)
    if cache is None or not config.set_timing_cache(cache, False):
        raise EngineError(
            f"{path}: TensorRT cannot use this timing cache; it is of another version or GPU, or damaged: name another file, or delete it"
        )
    return cache


def _save_timing_cache(cache: Any, path: Path) -> None:
    try:
        write_durable(path, bytes(cache.serialize()))
    except OutputError as error:
        LOG.warning("the timing cache was not kept: %s", error)


def _last(messages: Sequence[str]) -> str:
    return "\n  ".join(messages[-_MOST_MESSAGES:]) or "it gave no reason"
