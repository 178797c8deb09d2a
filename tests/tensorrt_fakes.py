"""A TensorRT that is none: an engine that works in the memory of a fake GPU, as far as the backend sees of it.

Its network gives every picture `LIMIT` padded boxes whose values follow from the picture's mean, as many as the mean of its scale says,
and rows of masks for them; so a result tells which picture it came from, and what lies beyond a count is garbage.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any

import numpy as np
from cuda_fakes import FakeGpu

LIMIT = 5
MASK = 2
GARBAGE = -77.0
DTYPES = {"boxes": np.float32, "count": np.int64, "masks": np.float32, "data": np.float32, "im_info": np.float32}


def expected(data: np.ndarray, im_info: np.ndarray) -> dict[str, np.ndarray]:
    """What the network gives without any padding: boxes to the fullest picture, zeros beyond a picture's own count."""
    counts = im_info[:, 2].astype(np.int64)
    means = data.mean(axis=(1, 2, 3), dtype=np.float64).astype(np.float32)
    boxes = np.zeros((len(data), counts.max(initial=0), 4), np.float32)
    for row, count in enumerate(counts):
        boxes[row, :count] = means[row]
    masks = np.repeat(means, counts)[:, None, None] * np.ones((MASK, MASK), np.float32)
    return {"boxes": boxes, "count": counts, "masks": masks}


class FakeExecution:
    def __init__(self, engine: FakeEngine) -> None:
        self.engine, self.shapes, self.addresses, self.profile = engine, {}, {}, -1
        self.scratch: tuple[int, int] | None = None

    def set_device_memory(self, address: int, size: int) -> None:
        assert size >= self.engine.device_memory_size_v2
        self.scratch = (address, size)

    def set_optimization_profile_async(self, profile: int, stream: int) -> bool:
        self.profile = profile
        return profile < len(self.engine.profiles)

    def set_tensor_address(self, name: str, address: int) -> bool:
        self.addresses[name] = address
        return True

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        least, most = self.engine.profiles[self.profile][name]
        self.shapes[name] = shape
        return all(low <= size <= high for low, size, high in zip(least, shape, most, strict=True))

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        images = self.shapes["data"][0]
        rows = -1 if self.engine.data_dependent else images * LIMIT
        return {"boxes": (images, LIMIT, 4), "count": (images,), "masks": (rows, MASK, MASK)}[name]

    def execute_async_v3(self, stream: int) -> bool:
        assert self.scratch is not None
        if self.engine.fail:
            return False
        shapes = dict(self.shapes)
        if self.engine.uncapturable and self.engine.gpu.recording is not None:
            self.engine.gpu.recording = None
            return False
        self.engine.gpu.do("compute", lambda: self._compute(shapes))
        return True

    def _compute(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        data, info = (self._view(name, shapes[name]) for name in ("data", "im_info"))
        answer = expected(data, info)
        boxes, count, masks = (self._view(name, self.get_tensor_shape(name)) for name in ("boxes", "count", "masks"))
        boxes[:], masks[:] = 0, GARBAGE
        boxes[:, : answer["boxes"].shape[1]] = answer["boxes"]
        count[:] = answer["count"] + self.engine.miscount
        start = 0
        for row, rows in enumerate(answer["count"]):
            masks[row * LIMIT : row * LIMIT + rows] = answer["masks"][start : start + rows]
            start += rows

    def _view(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        kind = np.dtype(DTYPES[name])
        size = int(np.prod(shape)) * kind.itemsize
        return self.engine.gpu.view(self.addresses[name], size).view(kind).reshape(shape)


class FakeEngine:
    device_memory_size_v2 = 4096
    fail = data_dependent = uncapturable = False
    miscount = 0
    names = ("data", "im_info", "boxes", "count", "masks")
    num_io_tensors = len(names)

    def __init__(self, gpu: FakeGpu, profiles: list[dict[str, tuple[tuple[int, ...], tuple[int, ...]]]]) -> None:
        self.gpu, self.profiles = gpu, profiles
        self.executions: list[FakeExecution] = []

    def get_tensor_name(self, index: int) -> str:
        return self.names[index]

    def get_tensor_dtype(self, name: str) -> Any:
        return DTYPES[name]

    def get_tensor_mode(self, name: str) -> str:
        return "input" if name in ("data", "im_info") else "output"

    def get_tensor_location(self, name: str) -> str:
        return "device"

    def create_execution_context(self, strategy: str) -> FakeExecution:
        assert strategy == "user managed"
        self.executions.append(FakeExecution(self))
        return self.executions[-1]


def make_tensorrt(engine: FakeEngine | None, *, version: str = "11.4.0.106") -> types.ModuleType:
    """A module that takes any plan for `engine`; None: it refuses every plan, with a reason."""
    module = types.ModuleType("tensorrt")

    class Severity:
        INTERNAL_ERROR, ERROR, WARNING, INFO, VERBOSE = range(5)

    class ILogger:
        pass

    ILogger.Severity = Severity  # type: ignore[attr-defined]

    class Runtime:
        engine_host_code_allowed = False

        def __init__(self, logger: Any) -> None:
            self.logger = logger

        def deserialize_cuda_engine(self, plan: bytes) -> FakeEngine | None:
            if engine is None:
                self.logger.log(Severity.ERROR, "the version tag does not match")
            return engine

    members = {
        "__version__": version,
        "ILogger": ILogger,
        "Runtime": Runtime,
        "nptype": lambda dtype: dtype,
        "TensorLocation": types.SimpleNamespace(DEVICE="device", HOST="host"),
        "TensorIOMode": types.SimpleNamespace(INPUT="input", OUTPUT="output"),
        "ExecutionContextAllocationStrategy": types.SimpleNamespace(USER_MANAGED="user managed"),
    }
    for name, member in members.items():
        setattr(module, name, member)
    return module
