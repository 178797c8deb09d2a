"""What TensorRT itself says of an engine: its layers, and the types that they really have."""

from __future__ import annotations

from pathlib import Path

from roiline.core.errors import EngineError
from roiline.engines.cuda.driver import open_driver
from roiline.engines.cuda.resources import CudaContext
from roiline.engines.tensorrt.loading import load_tensorrt
from roiline.engines.tensorrt.runtime import load_engine


def describe_engine(plan: Path, device: int) -> str:
    """Returns the engine inspector's JSON for an engine file.

    Raises:
        EngineError: the GPU or TensorRT is not there, or TensorRT describes nothing.
        ModelError: TensorRT refuses the engine.
    """
    context = CudaContext(open_driver(), device)
    try:
        trt = load_tensorrt()
        runtime, engine = load_engine(trt, plan.read_bytes(), where=str(plan))
        inspector = engine.create_engine_inspector()
        text = inspector.get_engine_information(trt.LayerInformationFormat.JSON)
        del inspector, engine, runtime
    finally:
        context.close()
    if not text:
        raise EngineError(f"{plan}: TensorRT says nothing of this engine's layers")
    return str(text)
