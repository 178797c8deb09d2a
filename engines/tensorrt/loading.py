"""TensorRT itself, asked for when it is needed: the one place that imports it, and says what is missing."""

from __future__ import annotations

import importlib
from typing import Any

from roiline.core.errors import EngineError

SUPPORTED_MAJOR = 11


def load_tensorrt() -> Any:
    """Returns the module `tensorrt`.

    The caller has asked the driver before: TensorRT's objects answer a missing one with a crash.

    Raises:
        EngineError: it is not installed, cannot be loaded, or is of another major version than is supported.
    """
    try:
        trt = importlib.import_module("tensorrt")
    except ImportError as error:
        raise EngineError(
            f"TensorRT cannot be imported ({error}); install TensorRT {SUPPORTED_MAJOR} (`pip install 'roiline[tensorrt]'`; its "
            "libraries come from NVIDIA's own index), or use --engine onnxruntime"
        ) from error
    version = str(getattr(trt, "__version__", "unknown"))
    if version.split(".")[0] != str(SUPPORTED_MAJOR):
        raise EngineError(
            f"TensorRT {version} is installed; roiline builds and runs engines of TensorRT {SUPPORTED_MAJOR}. Install that, or use "
            "--engine onnxruntime (ONNX Runtime's own TensorRT provider wants TensorRT 10)"
        )
    return trt


def load_plugin_module() -> Any:
    """Returns TensorRT's module `tensorrt.plugin`, which plugins are registered with.

    Raises:
        EngineError: this TensorRT has none.
    """
    try:
        return importlib.import_module("tensorrt.plugin")
    except ImportError as error:
        raise EngineError(
            f"this TensorRT has no module `tensorrt.plugin` ({error}), which kernels are registered with; install its full Python package"
        ) from error
