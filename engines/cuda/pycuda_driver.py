"""CUDA's driver through pycuda, for machines whose own code uses it already.

pycuda has no CUDA graphs, and does not say a GPU's UUID.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roiline.core.errors import EngineError
from roiline.engines.cuda.driver import NO_DRIVER, Argument, DeviceProperties, Handle, Launch, pack_arguments

_STREAM_NON_BLOCKING = 1
_NO_GRAPHS = "pycuda has no CUDA graphs; install cuda-bindings, or run without them"


class PycudaDriver:
    """Calls `pycuda.driver`; the driver is initialised when it is made."""

    name = "pycuda"
    has_graphs = False

    def __init__(self) -> None:
        import pycuda

        del pycuda
        try:
            import pycuda.driver as driver
        except ImportError as error:  # the package is there, the library that its extension links is not
            raise EngineError(f"{NO_DRIVER} ({error})") from error
        self._api: Any = driver
        self._devices = self._initialise()

    def _initialise(self) -> int:
        """Returns how many GPUs there are; a driver without any is no error here."""
        try:
            self._api.init()
        except self._api.Error as error:
            if "no CUDA-capable device" in str(error):
                return 0
            raise EngineError(f"CUDA could not be initialised: {error}") from error
        return int(self._call(self._api.Device.count))

    def version(self) -> int:
        """Returns the CUDA version that the driver supports, as 13000 for 13.0."""
        return int(self._call(self._api.get_driver_version))

    def count_devices(self) -> int:
        """Returns how many GPUs this process may see."""
        return self._devices

    def describe(self, index: int) -> DeviceProperties:
        """Returns what a GPU is."""
        device = self._call(self._api.Device, index)
        major, minor = self._call(device.compute_capability)
        return DeviceProperties(
            index=index,
            name=str(self._call(device.name)),
            uuid=None,
            compute_capability=(int(major), int(minor)),
            total_bytes=int(self._call(device.total_memory)),
            pci_bus_id=str(self._call(device.pci_bus_id)).lower(),
        )

    def retain_context(self, index: int) -> Handle:
        """Takes a GPU's primary context and makes it current."""
        context = self._call(self._call(self._api.Device, index).retain_primary_context)
        self._call(context.push)
        return context

    def make_current(self, context: Handle) -> None:
        """Makes a context the current one of this thread, where it is not already: pycuda keeps a stack of them."""
        if self._call(self._api.Context.get_current) != context:
            self._call(context.push)

    def release_context(self, index: int, context: Handle) -> None:
        """Gives a primary context back, while it is current: pycuda takes it from its stack then, and leaves a stale one otherwise."""
        del index
        self.make_current(context)
        self._call(context.detach)

    def memory(self) -> tuple[int, int]:
        """Returns the bytes that are free and those that there are."""
        free, total = self._call(self._api.mem_get_info)
        return int(free), int(total)

    def allocate(self, size: int) -> Handle:
        """Takes device memory."""
        return self._call(self._api.mem_alloc, size)

    def address(self, buffer: Handle) -> int:
        """Returns where device memory lies."""
        return int(buffer)

    def free(self, buffer: Handle) -> None:
        """Gives device memory back."""
        self._call(buffer.free)

    def allocate_pinned(self, size: int) -> tuple[Handle, NDArray[np.uint8]]:
        """Takes pinned host memory, and returns it with a view of its bytes."""
        array = self._call(self._api.pagelocked_empty, size, np.uint8)
        return array.base, array

    def free_pinned(self, buffer: Handle) -> None:
        """Gives pinned memory back."""
        self._call(buffer.free)

    def copy_to_device(self, address: int, host: NDArray[Any], stream: Handle) -> None:
        """Copies a contiguous array to a device address."""
        self._call(self._api.memcpy_htod_async, address, host, stream)

    def copy_to_host(self, host: NDArray[Any], address: int, stream: Handle) -> None:
        """Copies from a device address into a contiguous array."""
        self._call(self._api.memcpy_dtoh_async, host, address, stream)

    def fill(self, address: int, byte: int, size: int, stream: Handle) -> None:
        """Sets bytes of device memory."""
        self._call(self._api.memset_d8_async, address, byte, size, stream)

    def make_stream(self) -> Handle:
        """Makes a stream that does not wait for the default one."""
        return self._call(self._api.Stream, _STREAM_NON_BLOCKING)

    def stream_pointer(self, stream: Handle) -> int:
        """Returns the stream as other libraries take it."""
        return int(stream.handle)

    def synchronize(self, stream: Handle) -> None:
        """Waits for all work of a stream."""
        self._call(stream.synchronize)

    def destroy_stream(self, stream: Handle) -> None:
        """Does nothing: pycuda gives a stream back with its last reference."""

    def make_event(self, *, timing: bool) -> Handle:
        """Makes an event."""
        flags = self._api.event_flags
        return self._call(self._api.Event, flags.DEFAULT if timing else flags.DISABLE_TIMING)

    def record(self, event: Handle, stream: Handle) -> None:
        """Marks the present end of a stream."""
        self._call(event.record, stream)

    def wait_event(self, stream: Handle, event: Handle) -> None:
        """Lets a stream wait for what an event marks."""
        self._call(stream.wait_for_event, event)

    def synchronize_event(self, event: Handle) -> None:
        """Waits on the host for what an event marks."""
        self._call(event.synchronize)

    def elapsed_ms(self, start: Handle, end: Handle) -> float:
        """Returns the milliseconds between two events that have passed."""
        return float(self._call(end.time_since, start))

    def destroy_event(self, event: Handle) -> None:
        """Does nothing: pycuda gives an event back with its last reference."""

    def load_module(self, image: bytes) -> Handle:
        """Loads PTX (which must end with a zero byte, so one is added) or a cubin."""
        return self._call(self._api.module_from_buffer, image + b"\0")

    def find_function(self, module: Handle, name: str) -> Handle:
        """Returns a kernel of a module."""
        return self._call(module.get_function, name)

    def allow_shared(self, function: Handle, size: int) -> None:
        """Lets a kernel use that many bytes of dynamic shared memory."""
        kind = self._api.function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES
        self._call(function.set_attribute, kind, size)

    def launch(self, function: Handle, launch: Launch, arguments: Sequence[Argument], stream: Handle) -> None:
        """Starts a kernel."""
        values = [packed[0] for packed in pack_arguments(arguments)]

        def start() -> None:
            function(*values, grid=launch.grid, block=launch.block, shared=launch.shared_bytes, stream=stream)

        self._call(start)

    def unload_module(self, module: Handle) -> None:
        """Does nothing: pycuda gives a module back with its last reference."""

    def begin_capture(self, stream: Handle) -> None:
        """Refuses: pycuda cannot record."""
        del stream
        raise EngineError(_NO_GRAPHS)

    def end_capture(self, stream: Handle) -> Handle:
        """Refuses: pycuda cannot record."""
        del stream
        raise EngineError(_NO_GRAPHS)

    def launch_graph(self, graph: Handle, stream: Handle) -> None:
        """Refuses: pycuda cannot record."""
        del graph, stream
        raise EngineError(_NO_GRAPHS)

    def destroy_graph(self, graph: Handle) -> None:
        """Refuses: pycuda cannot record."""
        del graph
        raise EngineError(_NO_GRAPHS)

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except self._api.Error as error:
            raise EngineError(f"CUDA through pycuda: {error}") from error
