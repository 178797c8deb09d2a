"""What an engine is: a model, or a stage of one, made to run on a device.

A backend is a module with one function, `open_backend(model, stage, device) -> Backend`; it does the maths and checks nothing.
`Engine` wraps a backend and checks every call once for all of them: names, types and ranks of what goes in and comes out.

A backend that works beside the host can have several batches in flight (`PipelinedBackend`); the engine offers `submit` and `collect` for
every backend, and one that cannot simply computes in `submit`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, TypeAlias, runtime_checkable

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


@runtime_checkable
class PipelinedBackend(Backend, Protocol):
    """Is a backend that can have `depth` batches in flight, so that the copies of one overlap the computing of another.

    `usual_hw` is the size of the network's input that it was tuned for; None where it takes any.
    """

    depth: int
    usual_hw: tuple[int, int] | None

    def submit(self, feeds: Mapping[str, Tensor]) -> object:
        """Starts a batch; the feeds may be changed once this returns."""

    def collect(self, pending: object) -> dict[str, Tensor]:
        """Waits for the batch that was submitted first of those in flight; the arrays are the caller's own."""


class PictureCall(Protocol):
    """Is what a device needs to make network input of one picture: the kernel `PrepareImage`'s inputs in order, and its attributes."""

    @property
    def inputs(self) -> Sequence[Tensor]:
        """Is the picture's bytes, value tables, and where samples lie."""

    @property
    def attributes(self) -> Mapping[str, int]:
        """Is the kernel's attributes."""


@runtime_checkable
class PictureBackend(PipelinedBackend, Protocol):
    """Is a backend that makes its input `data` of pictures itself."""

    def submit_pictures(
        self, pictures: Sequence[PictureCall], size_hw: tuple[int, int], feeds: Mapping[str, Tensor]
    ) -> object:
        """Starts a batch of pictures, padded to one size; `feeds` has the other inputs."""


@dataclass(slots=True)
class Ticket:
    """Is a batch in flight: what `Engine.submit` gives and `Engine.collect` takes once.

    `pending` is the backend's own; `results` are there already where the backend computes at once.
    """

    pending: object = None
    results: dict[str, Tensor] | None = None
    collected: bool = False


class Engine:
    """Runs a model or a stage of it, and checks what goes in and out.

    `spec` is the model's specification, `inputs` and `outputs` its tensors, `description` says what was really got
    (backend, version, providers, threads). `depth` is how many batches may be in flight (1: `submit` computes). `usual_hw` is the size of
    the network's input that the engine was tuned for, None where it takes any. `takes_pictures`: `submit_pictures` is there.
    """

    def __init__(self, backend: Backend, spec: ModelSpec) -> None:
        self._backend: Backend | None = backend
        self.spec = spec
        self.inputs = backend.inputs
        self.outputs = backend.outputs
        self._expected_inputs, self._expected_outputs = _Expected.of(backend.inputs), _Expected.of(backend.outputs)
        self.description = dict(backend.description)
        # asked once: looking a protocol's members up costs more than a call of a small model may
        self._pipelined = pipelined = backend if isinstance(backend, PipelinedBackend) else None
        self.depth = 1 if pipelined is None else pipelined.depth
        self.usual_hw = None if pipelined is None else pipelined.usual_hw
        self._pictures = backend if isinstance(backend, PictureBackend) else None
        self.takes_pictures = self._pictures is not None

    def run(self, feeds: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Runs once and returns every output by name.

        Raises:
            UsageError: an input is missing, unknown, or of another type or shape.
            EngineError: the engine is closed, or the backend failed or broke its own declaration.
        """
        return self.collect(self.submit(feeds))

    def submit(self, feeds: Mapping[str, Tensor]) -> Ticket:
        """Starts a batch, at most `depth` at a time; the feeds may be changed once this returns.

        Raises:
            UsageError: an input is missing, unknown, or of another type or shape.
            EngineError: the engine is closed, the backend failed, or more than `depth` batches would be in flight.
        """
        backend = self._open_backend()
        self._check_feeds(feeds, self._expected_inputs)
        if self._pipelined is not None:
            return Ticket(pending=self._pipelined.submit(feeds))
        return Ticket(results=backend.run(feeds))

    def submit_pictures(
        self, pictures: Sequence[PictureCall], size_hw: tuple[int, int], feeds: Mapping[str, Tensor]
    ) -> Ticket:
        """Starts a batch of pictures that the device prepares, each padded to `size_hw`; `feeds` has all inputs but `data`.

        Raises:
            UsageError: the backend does not prepare pictures, or an input is missing, unknown, or of another type or shape.
            EngineError: as for `submit`.
        """
        self._open_backend()
        if self._pictures is None:
            raise UsageError("this engine takes prepared pictures only")
        expected = [one for one in self._expected_inputs if one.info.name != "data"]
        self._check_feeds(feeds, expected, beside=" beside pictures")
        return Ticket(pending=self._pictures.submit_pictures(pictures, size_hw, feeds))

    def collect(self, ticket: Ticket) -> dict[str, Tensor]:
        """Waits for a batch, in the order in which batches were submitted, and returns every output by name.

        Raises:
            UsageError: the batch was collected before.
            EngineError: the engine is closed, or the backend failed or broke its own declaration.
        """
        self._open_backend()
        if ticket.collected:
            raise UsageError("a batch was collected twice")
        ticket.collected = True
        results = ticket.results
        if results is None and self._pipelined is not None:
            results = self._pipelined.collect(ticket.pending)
        if results is None:
            raise UsageError("a batch of another engine was collected")
        ticket.results = None
        _check_tensors(results, self._expected_outputs, EngineError)
        return results

    @staticmethod
    def _check_feeds(feeds: Mapping[str, Tensor], expected: Sequence[_Expected], *, beside: str = "") -> None:
        if len(feeds) != len(expected) or not all(one.info.name in feeds for one in expected):
            names = sorted(one.info.name for one in expected)
            raise UsageError(f"the engine takes the inputs {names}{beside}, it was given {sorted(feeds)}")
        _check_tensors(feeds, expected, UsageError)

    def _open_backend(self) -> Backend:
        if self._backend is None:
            raise EngineError("the engine is closed")
        return self._backend

    def close(self) -> None:
        """Gives back what the engine holds; further calls do nothing."""
        backend, self._backend, self._pipelined, self._pictures = self._backend, None, None, None
        if backend is not None:
            backend.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class _Expected:
    """Is a tensor as it must be: `fixed` are the axes whose size is given, with that size."""

    info: TensorInfo
    dtype: np.dtype[Any]
    fixed: tuple[tuple[int, int], ...]

    @staticmethod
    def of(infos: Sequence[TensorInfo]) -> tuple[_Expected, ...]:
        """Returns what is expected of tensors by their declaration; worked out once, for calls of small models are many."""
        return tuple(
            _Expected(
                info,
                np.dtype(info.dtype),
                tuple((axis, size) for axis, size in enumerate(info.shape) if size is not None),
            )
            for info in infos
        )


def _check_tensors(
    tensors: Mapping[str, Tensor], expected: Sequence[_Expected], error: type[EngineError] | type[UsageError]
) -> None:
    for one in expected:
        info, tensor = one.info, tensors[one.info.name]
        fits = isinstance(tensor, np.ndarray) and tensor.dtype == one.dtype and tensor.ndim == len(info.shape)
        for axis, size in one.fixed:
            fits = fits and tensor.shape[axis] == size
        if not fits:
            shape = tuple("?" if size is None else size for size in info.shape)
            got = f"{tensor.dtype} {tensor.shape}" if isinstance(tensor, np.ndarray) else type(tensor).__name__
            raise error(f"tensor `{info.name}`: expected {info.dtype} {shape}, got {got}")
