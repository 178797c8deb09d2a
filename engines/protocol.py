"""What an engine is: a model, or a stage of one, made to run on a device.

A backend is a module with one function, `open_backend(model, stage, device) -> Backend`; it does the maths and checks nothing.
`Engine` wraps a backend and checks every call once for all of them: names, types and ranks of what goes in and comes out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from roiline.core.errors import EngineError, UsageError
from roiline.core.spec import ModelSpec

Tensor: TypeAlias = NDArray[Any]


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Is one input or output: its name, numpy dtype name, and shape with None where a dimension is free."""

    name: str
    dtype: str
    shape: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class Device:
    """Is where an engine runs.

    `kind` is `cpu` or `cuda`; `index` the device's number as this process sees it (a worker sees its own GPU as 0);
    `threads` the number of CPU threads that the engine may use (0: all cores that the process may run on).
    """

    kind: str = "cpu"
    index: int = 0
    threads: int = 0


@dataclass(frozen=True, slots=True)
class Stage:
    """Is a part of a model between seams: the tensors that go in and those that come out. The whole model has `outputs` as exported."""

    outputs: tuple[str, ...]
    inputs: tuple[str, ...] = ()


class Backend(Protocol):
    """Is what a backend's `open_backend` returns."""

    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    description: Mapping[str, str]

    def run(self, feeds: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Runs once; `feeds` has exactly the inputs."""

    def close(self) -> None:
        """Gives back what the backend holds; called once."""


class Engine:
    """Runs a model or a stage of it, and checks what goes in and out.

    `spec` is the model's specification, `inputs` and `outputs` its tensors, `description` says what was really got
    (backend, version, providers, threads).
    """

    def __init__(self, backend: Backend, spec: ModelSpec) -> None:
        self._backend: Backend | None = backend
        self.spec = spec
        self.inputs = backend.inputs
        self.outputs = backend.outputs
        self.description = dict(backend.description)

    def run(self, feeds: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Runs once and returns every output by name.

        Raises:
            UsageError: an input is missing, unknown, or of another type or shape.
            EngineError: the engine is closed, or the backend failed or broke its own declaration.
        """
        if self._backend is None:
            raise EngineError("the engine is closed")
        expected = {info.name: info for info in self.inputs}
        if set(feeds) != set(expected):
            raise UsageError(f"the engine takes the inputs {sorted(expected)}, it was given {sorted(feeds)}")
        for name, info in expected.items():
            _check_tensor(feeds[name], info, UsageError)
        results = self._backend.run(feeds)
        for info in self.outputs:
            _check_tensor(results[info.name], info, EngineError)
        return results

    def close(self) -> None:
        """Gives back what the engine holds; further calls do nothing."""
        backend, self._backend = self._backend, None
        if backend is not None:
            backend.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _check_tensor(tensor: Tensor, info: TensorInfo, error: type[EngineError] | type[UsageError]) -> None:
    fits = (
        isinstance(tensor, np.ndarray)
        and tensor.dtype == np.dtype(info.dtype)
        and tensor.ndim == len(info.shape)
        and all(want is None or want == got for want, got in zip(info.shape, tensor.shape, strict=True))
    )
    if not fits:
        shape = tuple("?" if size is None else size for size in info.shape)
        got = f"{tensor.dtype} {tensor.shape}" if isinstance(tensor, np.ndarray) else type(tensor).__name__
        raise error(f"tensor `{info.name}`: expected {info.dtype} {shape}, got {got}")
