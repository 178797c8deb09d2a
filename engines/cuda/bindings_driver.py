"""CUDA's driver through NVIDIA's own Python bindings (`cuda-bindings`)."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roiline.core.errors import EngineError
from roiline.engines.cuda.driver import NO_DRIVER, Argument, DeviceProperties, Handle, Launch, pack_arguments

_NO_DEVICE = 100
_STREAM_NON_BLOCKING = 1
_EVENT_NO_TIMING = 2
_UUID_GROUPS = (4, 6, 8, 10)


class BindingsDriver:
    """Calls `cuda.bindings.driver`; the driver is initialised when it is made."""

    name = "cuda-bindings"
    has_graphs = True

    def __init__(self) -> None:
        from cuda.bindings import driver

        self._api: Any = driver
        self._devices = self._initialise()

    def _initialise(self) -> int:
        """Returns how many GPUs there are; a driver without any is no error here."""
        try:
            (status,) = self._api.cuInit(0)
        except Exception as error:  # without libcuda the binding raises a class of its loader, which has no public name
            raise EngineError(f"{NO_DRIVER} ({error})") from error
        if int(status) == _NO_DEVICE:
            return 0
        if int(status):
            raise EngineError(f"CUDA could not be initialised: {self._describe(status)}")
        return int(self._call(self._api.cuDeviceGetCount))

    def version(self) -> int:
        """Returns the CUDA version that the driver supports, as 13000 for 13.0."""
        return int(self._call(self._api.cuDriverGetVersion))

    def count_devices(self) -> int:
        """Returns how many GPUs this process may see."""
        return self._devices

    def describe(self, index: int) -> DeviceProperties:
        """Returns what a GPU is."""
        api = self._api
        device = self._call(api.cuDeviceGet, index)
        kinds = api.CUdevice_attribute
        major, minor = (
            int(
                self._call(
                    api.cuDeviceGetAttribute, getattr(kinds, f"CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_{part}"), device
                )
            )
            for part in ("MAJOR", "MINOR")
        )
        return DeviceProperties(
            index=index,
            name=_text(self._call(api.cuDeviceGetName, 256, device)),
            uuid=_format_uuid(bytes(self._call(api.cuDeviceGetUuid, device).bytes)),
            compute_capability=(major, minor),
            total_bytes=int(self._call(api.cuDeviceTotalMem, device)),
            pci_bus_id=_text(self._call(api.cuDeviceGetPCIBusId, 32, device)).lower(),
        )

    def retain_context(self, index: int) -> Handle:
        """Takes a GPU's primary context and makes it current."""
        context = self._call(self._api.cuDevicePrimaryCtxRetain, self._call(self._api.cuDeviceGet, index))
        self.make_current(context)
        return context

    def make_current(self, context: Handle) -> None:
        """Makes a context the current one of this thread."""
        self._call(self._api.cuCtxSetCurrent, context)

    def release_context(self, index: int, context: Handle) -> None:
        """Gives a primary context back."""
        del context
        self._call(self._api.cuDevicePrimaryCtxRelease, self._call(self._api.cuDeviceGet, index))

    def memory(self) -> tuple[int, int]:
        """Returns the bytes that are free and those that there are."""
        free, total = self._call(self._api.cuMemGetInfo)
        return int(free), int(total)

    def allocate(self, size: int) -> Handle:
        """Takes device memory."""
        return self._call(self._api.cuMemAlloc, size)

    def address(self, buffer: Handle) -> int:
        """Returns where device memory lies."""
        return int(buffer)

    def free(self, buffer: Handle) -> None:
        """Gives device memory back."""
        self._call(self._api.cuMemFree, buffer)

    def allocate_pinned(self, size: int) -> tuple[Handle, NDArray[np.uint8]]:
        """Takes pinned host memory, and returns it with a view of its bytes."""
        pointer = int(self._call(self._api.cuMemHostAlloc, size, 0))
        return pointer, np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(pointer))

    def free_pinned(self, buffer: Handle) -> None:
        """Gives pinned memory back."""
        self._call(self._api.cuMemFreeHost, buffer)

    def copy_to_device(self, address: int, host: NDArray[Any], stream: Handle) -> None:
        """Copies a contiguous array to a device address."""
        self._call(self._api.cuMemcpyHtoDAsync, address, host.ctypes.data, host.nbytes, stream)

    def copy_to_host(self, host: NDArray[Any], address: int, stream: Handle) -> None:
        """Copies from a device address into a contiguous array."""
        self._call(self._api.cuMemcpyDtoHAsync, host.ctypes.data, address, host.nbytes, stream)

    def fill(self, address: int, byte: int, size: int, stream: Handle) -> None:
        """Sets bytes of device memory."""
        self._call(self._api.cuMemsetD8Async, address, byte, size, stream)

    def make_stream(self) -> Handle:
        """Makes a stream that does not wait for the default one."""
        return self._call(self._api.cuStreamCreate, _STREAM_NON_BLOCKING)

    def stream_pointer(self, stream: Handle) -> int:
        """Returns the stream as other libraries take it."""
        return int(stream)

    def synchronize(self, stream: Handle) -> None:
        """Waits for all work of a stream."""
        self._call(self._api.cuStreamSynchronize, stream)

    def destroy_stream(self, stream: Handle) -> None:
        """Gives a stream back."""
        self._call(self._api.cuStreamDestroy, stream)

    def make_event(self, *, timing: bool) -> Handle:
        """Makes an event."""
        return self._call(self._api.cuEventCreate, 0 if timing else _EVENT_NO_TIMING)

    def record(self, event: Handle, stream: Handle) -> None:
        """Marks the present end of a stream."""
        self._call(self._api.cuEventRecord, event, stream)

    def wait_event(self, stream: Handle, event: Handle) -> None:
        """Lets a stream wait for what an event marks."""
        self._call(self._api.cuStreamWaitEvent, stream, event, 0)

    def synchronize_event(self, event: Handle) -> None:
        """Waits on the host for what an event marks."""
        self._call(self._api.cuEventSynchronize, event)

    def elapsed_ms(self, start: Handle, end: Handle) -> float:
        """Returns the milliseconds between two events that have passed."""
        return float(self._call(self._api.cuEventElapsedTime, start, end))

    def destroy_event(self, event: Handle) -> None:
        """Gives an event back."""
        self._call(self._api.cuEventDestroy, event)

    def load_module(self, image: bytes) -> Handle:
        """Loads PTX (which must end with a zero byte, so one is added) or a cubin."""
        return self._call(self._api.cuModuleLoadData, image + b"\0")

    def find_function(self, module: Handle, name: str) -> Handle:
        """Returns a kernel of a module."""
        return self._call(self._api.cuModuleGetFunction, module, name.encode())

    def allow_shared(self, function: Handle, size: int) -> None:
        """Lets a kernel use that many bytes of dynamic shared memory."""
        kind = self._api.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        self._call(self._api.cuFuncSetAttribute, function, kind, size)

    def launch(self, function: Handle, launch: Launch, arguments: Sequence[Argument], stream: Handle) -> None:
        """Starts a kernel; its arguments are read before the call returns."""
        packed = pack_arguments(arguments)
        pointers = (ctypes.c_void_p * max(1, len(packed)))(*(value.ctypes.data for value in packed))
        call = self._api.cuLaunchKernel
        self._call(
            call, function, *launch.grid, *launch.block, launch.shared_bytes, stream, ctypes.addressof(pointers), 0
        )

    def unload_module(self, module: Handle) -> None:
        """Gives a module back."""
        self._call(self._api.cuModuleUnload, module)

    def begin_capture(self, stream: Handle) -> None:
        """Begins to record a stream's work instead of doing it."""
        mode = self._api.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        self._call(self._api.cuStreamBeginCapture, stream, mode)

    def end_capture(self, stream: Handle) -> Handle:
        """Ends the recording and returns it ready to be launched."""
        graph = self._call(self._api.cuStreamEndCapture, stream)
        try:
            return self._call(self._api.cuGraphInstantiate, graph, 0)
        finally:
            self._call(self._api.cuGraphDestroy, graph)

    def launch_graph(self, graph: Handle, stream: Handle) -> None:
        """Does recorded work once more."""
        self._call(self._api.cuGraphLaunch, graph, stream)

    def destroy_graph(self, graph: Handle) -> None:
        """Gives a recording back."""
        self._call(self._api.cuGraphExecDestroy, graph)

    def _call(self, function: Callable[..., tuple[Any, ...]], *arguments: Any) -> Any:
        """Calls the driver and returns what it gives beside its status: nothing, a value, or several."""
        status, *values = function(*arguments)
        if int(status):
            raise EngineError(f"CUDA: {function.__name__} failed: {self._describe(status)}")
        return values[0] if len(values) == 1 else tuple(values)

    def _describe(self, status: Any) -> str:
        texts = [one(status)[1] for one in (self._api.cuGetErrorName, self._api.cuGetErrorString)]
        return ": ".join(_text(text) for text in texts if text) or f"error {int(status)}"


def _text(value: bytes | str) -> str:
    return value if isinstance(value, str) else value.split(b"\0")[0].decode(errors="replace")


def _format_uuid(raw: bytes) -> str:
    """Returns the UUID as the driver's own tool writes it: `GPU-` and groups of 8, 4, 4, 4 and 12 hexadecimal digits."""
    bounds = (0, *_UUID_GROUPS, 16)
    return "GPU-" + "-".join(raw[first:last].hex() for first, last in itertools.pairwise(bounds))
