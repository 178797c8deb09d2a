"""What a CUDA context owns: streams, events, buffers, modules and graphs, made by it and given back with it.

Every resource has `close()`, which may be called twice; `CudaContext.close` closes what is left, the youngest first, and then gives the
context back. A resource may not be used after that. One thread at a time uses a context; `make_current` is for a change of thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from roiline.core.errors import EngineError
from roiline.engines.cuda.driver import Argument, DeviceProperties, Driver, Handle, Launch, check_device


class Resource:
    """Is one thing that a context owns."""

    def __init__(self, context: CudaContext, handle: Handle, release: Callable[[Handle], None]) -> None:
        self._context = context
        self._handle: Handle = handle
        self._release = release
        self._open = True
        context.adopt(self)

    @property
    def handle(self) -> Handle:
        """Is the binding's own object.

        Raises:
            EngineError: the resource is closed.
        """
        self.check_open()
        return self._handle

    def check_open(self) -> None:
        """Checks that the resource can be used.

        Raises:
            EngineError: it is closed.
        """
        if not self._open:
            raise EngineError(f"a CUDA {type(self).__name__} was used after it was given back")

    def close(self) -> None:
        """Gives the resource back; further calls do nothing."""
        if not self._open:
            return
        self._open = False
        handle, self._handle = self._handle, None
        self._context.disown(self)
        self._release(handle)


class Stream(Resource):
    """Is a queue of device work."""

    @property
    def pointer(self) -> int:
        """Is the stream as other libraries take it."""
        return self._context.driver.stream_pointer(self.handle)

    def synchronize(self) -> None:
        """Waits for all work of the stream."""
        self._context.driver.synchronize(self.handle)

    def wait(self, event: Event) -> None:
        """Lets the stream wait for what an event marks."""
        self._context.driver.wait_event(self.handle, event.handle)

    def record(self, event: Event) -> None:
        """Lets an event mark the present end of the stream."""
        self._context.driver.record(event.handle, self.handle)


class Event(Resource):
    """Is a mark in a stream."""

    def synchronize(self) -> None:
        """Waits on the host for what the event marks."""
        self._context.driver.synchronize_event(self.handle)

    def elapsed_ms(self, start: Event) -> float:
        """Returns the milliseconds since an earlier event; both were made with `timing` and have passed."""
        return self._context.driver.elapsed_ms(start.handle, self.handle)


class DeviceBuffer(Resource):
    """Is device memory of `size` bytes."""

    def __init__(self, context: CudaContext, size: int) -> None:
        self.size = size
        super().__init__(context, context.driver.allocate(max(1, size)), context.driver.free)

    @property
    def address(self) -> int:
        """Is where the memory lies."""
        return self._context.driver.address(self.handle)

    def upload(self, host: NDArray[Any], stream: Stream) -> None:
        """Copies an array into the beginning of the buffer, asynchronously; the array must be contiguous, and pinned to overlap.

        Raises:
            EngineError: it is longer than the buffer, or not contiguous.
        """
        self._check(host)
        if host.nbytes:
            self._context.driver.copy_to_device(self.address, host, stream.handle)

    def download(self, host: NDArray[Any], stream: Stream) -> None:
        """Copies the beginning of the buffer into an array, asynchronously.

        Raises:
            EngineError: the array is longer than the buffer, or not contiguous.
        """
        self._check(host)
        if host.nbytes:
            self._context.driver.copy_to_host(host, self.address, stream.handle)

    def fill(self, byte: int, stream: Stream) -> None:
        """Sets all bytes, asynchronously."""
        if self.size:
            self._context.driver.fill(self.address, byte, self.size, stream.handle)

    def _check(self, host: NDArray[Any]) -> None:
        if host.nbytes > self.size or not host.flags.c_contiguous:
            raise EngineError(
                f"a copy of {host.nbytes} bytes (contiguous: {host.flags.c_contiguous}) does not fit a buffer of {self.size} bytes"
            )


class PinnedBuffer(Resource):
    """Is pinned host memory of `size` bytes: what copies that overlap compute read and write."""

    def __init__(self, context: CudaContext, size: int) -> None:
        self.size = size
        handle, self._bytes = context.driver.allocate_pinned(max(1, size))
        super().__init__(context, handle, context.driver.free_pinned)

    def view(self, shape: Sequence[int], dtype: DTypeLike) -> NDArray[Any]:
        """Returns the beginning of the memory as an array; it may not be used once the buffer is closed.

        Raises:
            EngineError: the array would be longer than the memory, or the buffer is closed.
        """
        kind = np.dtype(dtype)
        size = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
        if size > self.size:
            raise EngineError(
                f"an array {tuple(shape)} of {kind} needs {size} bytes, the pinned memory has {self.size}"
            )
        self.check_open()
        return self._bytes[:size].view(kind).reshape(shape)

    def close(self) -> None:
        """Gives the memory back; further calls do nothing."""
        self._bytes = np.zeros(0, np.uint8)
        super().close()


class Module(Resource):
    """Is loaded PTX."""

    def function(self, name: str, *, shared_bytes: int = 0) -> Function:
        """Returns a kernel, allowed that much dynamic shared memory; it lives as long as the module."""
        handle = self._context.driver.find_function(self.handle, name)
        if shared_bytes:
            self._context.driver.allow_shared(handle, shared_bytes)
        return Function(self, self._context.driver, handle)


class Function:
    """Is a kernel of a module."""

    def __init__(self, module: Module, driver: Driver, handle: Handle) -> None:
        self._module = module
        self._driver = driver
        self._handle = handle

    def launch(self, launch: Launch, arguments: Sequence[Argument], stream: Stream) -> None:
        """Starts the kernel in a stream."""
        self._driver.launch(self._handle, launch, arguments, stream.handle)


class Graph(Resource):
    """Is recorded work of a stream."""

    def launch(self, stream: Stream) -> None:
        """Does the work once more."""
        self._context.driver.launch_graph(self.handle, stream.handle)


class CudaContext:
    """Is a GPU's primary context, taken, and the owner of all that is made in it."""

    def __init__(self, driver: Driver, index: int = 0) -> None:
        check_device(driver, index)
        self.driver = driver
        self.properties: DeviceProperties = driver.describe(index)
        self._handle: Handle = driver.retain_context(index)
        self._owned: dict[int, Resource] = {}
        self._open = True

    def __enter__(self) -> CudaContext:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def make_current(self) -> None:
        """Makes the context the current one of this thread."""
        self.driver.make_current(self._handle)

    def memory(self) -> tuple[int, int]:
        """Returns the bytes that are free and those that there are."""
        return self.driver.memory()

    def make_stream(self) -> Stream:
        """Makes a stream that does not wait for the default one."""
        return Stream(self, self.driver.make_stream(), self.driver.destroy_stream)

    def make_event(self, *, timing: bool = False) -> Event:
        """Makes an event."""
        return Event(self, self.driver.make_event(timing=timing), self.driver.destroy_event)

    def allocate(self, size: int) -> DeviceBuffer:
        """Takes device memory of `size` bytes.

        Raises:
            EngineError: there is not that much; how much is free is said.
        """
        try:
            return DeviceBuffer(self, size)
        except EngineError as error:
            free, total = self.memory()
            raise EngineError(
                f"{self.properties.name}: {size / 1e6:.0f} MB of device memory could not be had, {free / 1e6:.0f} of "
                f"{total / 1e6:.0f} MB are free ({error})"
            ) from error

    def allocate_pinned(self, size: int) -> PinnedBuffer:
        """Takes pinned host memory of `size` bytes."""
        return PinnedBuffer(self, size)

    def load_module(self, image: bytes) -> Module:
        """Loads PTX or a cubin."""
        return Module(self, self.driver.load_module(image), self.driver.unload_module)

    @contextmanager
    def capture(self, stream: Stream) -> Iterator[list[Graph]]:
        """Records what the block puts into the stream; the list that it is given holds the graph afterwards.

        Raises:
            EngineError: the binding cannot record, or something in the block cannot be recorded.
        """
        captured: list[Graph] = []
        self.driver.begin_capture(stream.handle)
        try:
            yield captured
        except BaseException:
            self._abandon_capture(stream)
            raise
        captured.append(Graph(self, self.driver.end_capture(stream.handle), self.driver.destroy_graph))

    def _abandon_capture(self, stream: Stream) -> None:
        """Ends a recording that failed, so that the stream can be used again; the first error is the one to report."""
        with suppress(EngineError):
            self.driver.destroy_graph(self.driver.end_capture(stream.handle))

    def adopt(self, resource: Resource) -> None:
        """Takes a resource into the context's care.

        Raises:
            EngineError: the context is closed.
        """
        if not self._open:
            raise EngineError("a CUDA context was used after it was given back")
        self._owned[id(resource)] = resource

    def disown(self, resource: Resource) -> None:
        """Forgets a resource that is closed."""
        self._owned.pop(id(resource), None)

    def close(self) -> None:
        """Gives back all that the context owns, and then the context; further calls do nothing."""
        if not self._open:
            return
        self.make_current()
        for resource in reversed(list(self._owned.values())):
            resource.close()
        self._open = False
        handle, self._handle = self._handle, None
        self.driver.release_context(self.properties.index, handle)
