"""What is asked of CUDA's driver: one protocol, two implementations, and the question whether there is a driver and a GPU at all.

An implementation translates and keeps nothing: who owns what, and when it is given back, is `resources.py`. Handles are whatever the
binding uses; addresses and stream pointers are plain integers, as other libraries want them.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from roiline.core.errors import EngineError, UsageError

Handle: TypeAlias = Any
"""Is a binding's own object for a context, stream, event, buffer, module, function or graph."""

Argument: TypeAlias = np.uint64 | np.int32
"""Is one kernel argument: a device address, or a 32-bit integer."""

DRIVERS: dict[str, str] = {
    "cuda-bindings": "roiline.engines.cuda.bindings_driver:BindingsDriver",
    "pycuda": "roiline.engines.cuda.pycuda_driver:PycudaDriver",
}
NO_DRIVER = (
    "no NVIDIA driver on this machine (libcuda is not there), so no GPU can be used and no TensorRT engine built or run; "
    "the .onnx file runs on the CPU (--cpu-workers N)"
)


@dataclass(frozen=True, slots=True)
class DeviceProperties:
    """Is one GPU as this process numbers it.

    `uuid` is None where the binding cannot say it; `compute_capability` as (9, 0); `pci_bus_id` as `0000:1b:00.0`.
    """

    index: int
    name: str
    uuid: str | None
    compute_capability: tuple[int, int]
    total_bytes: int
    pci_bus_id: str


@dataclass(frozen=True, slots=True)
class Launch:
    """Is the geometry of one kernel launch: blocks, threads a block, and bytes of dynamic shared memory."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int = 0


class Driver(Protocol):
    """Is the part of CUDA's driver interface that engines use; every method raises EngineError where CUDA reports an error.

    All but the first four want a current context. Copies and fills are asynchronous in their stream; host memory of a copy must be
    pinned and live until the stream has passed it. `has_graphs`: whether launches can be captured.
    """

    name: str
    has_graphs: bool

    def version(self) -> int:
        """Returns the CUDA version that the driver supports, as 13000 for 13.0."""

    def count_devices(self) -> int:
        """Returns how many GPUs this process may see."""

    def describe(self, index: int) -> DeviceProperties:
        """Returns what a GPU is."""

    def retain_context(self, index: int) -> Handle:
        """Takes a GPU's primary context and makes it current."""

    def make_current(self, context: Handle) -> None:
        """Makes a context that was taken the current one of this thread."""

    def release_context(self, index: int, context: Handle) -> None:
        """Gives a primary context back."""

    def memory(self) -> tuple[int, int]:
        """Returns the bytes that are free and those that there are."""

    def allocate(self, size: int) -> Handle:
        """Takes device memory of `size` bytes, at least one."""

    def address(self, buffer: Handle) -> int:
        """Returns where device memory lies."""

    def free(self, buffer: Handle) -> None:
        """Gives device memory back."""

    def allocate_pinned(self, size: int) -> tuple[Handle, NDArray[np.uint8]]:
        """Takes pinned host memory, and returns it with a view of its bytes."""

    def free_pinned(self, buffer: Handle) -> None:
        """Gives pinned memory back; no view of it may be used any more."""

    def copy_to_device(self, address: int, host: NDArray[Any], stream: Handle) -> None:
        """Copies a contiguous array to a device address."""

    def copy_to_host(self, host: NDArray[Any], address: int, stream: Handle) -> None:
        """Copies as many bytes as a contiguous array has from a device address into it."""

    def fill(self, address: int, byte: int, size: int, stream: Handle) -> None:
        """Sets `size` bytes of device memory."""

    def make_stream(self) -> Handle:
        """Makes a stream that does not wait for the default one."""

    def stream_pointer(self, stream: Handle) -> int:
        """Returns the stream as other libraries take it."""

    def synchronize(self, stream: Handle) -> None:
        """Waits for all work of a stream."""

    def destroy_stream(self, stream: Handle) -> None:
        """Gives a stream back."""

    def make_event(self, *, timing: bool) -> Handle:
        """Makes an event; only one with `timing` can be measured from."""

    def record(self, event: Handle, stream: Handle) -> None:
        """Marks the present end of a stream."""

    def wait_event(self, stream: Handle, event: Handle) -> None:
        """Lets a stream wait for what an event marks."""

    def synchronize_event(self, event: Handle) -> None:
        """Waits on the host for what an event marks."""

    def elapsed_ms(self, start: Handle, end: Handle) -> float:
        """Returns the milliseconds between two events that have passed."""

    def destroy_event(self, event: Handle) -> None:
        """Gives an event back."""

    def load_module(self, image: bytes) -> Handle:
        """Loads PTX or a cubin."""

    def find_function(self, module: Handle, name: str) -> Handle:
        """Returns a kernel of a module."""

    def allow_shared(self, function: Handle, size: int) -> None:
        """Lets a kernel use that many bytes of dynamic shared memory."""

    def launch(self, function: Handle, launch: Launch, arguments: Sequence[Argument], stream: Handle) -> None:
        """Starts a kernel."""

    def unload_module(self, module: Handle) -> None:
        """Gives a module back."""

    def begin_capture(self, stream: Handle) -> None:
        """Begins to record a stream's work instead of doing it; only this thread's calls are watched for what cannot be recorded."""

    def end_capture(self, stream: Handle) -> Handle:
        """Ends the recording and returns it ready to be launched."""

    def launch_graph(self, graph: Handle, stream: Handle) -> None:
        """Does recorded work once more."""

    def destroy_graph(self, graph: Handle) -> None:
        """Gives a recording back."""


def open_driver(name: str = "auto") -> Driver:
    """Opens CUDA's driver through a binding: the named one, or (`auto`) cuda-bindings where it is installed, else pycuda.

    Raises:
        UsageError: there is no binding of that name.
        EngineError: the binding is not installed, or there is no NVIDIA driver or no GPU.
    """
    if name != "auto" and name not in DRIVERS:
        raise UsageError(f"there is no CUDA binding named {name!r}; there are auto, {', '.join(DRIVERS)}")
    missing: list[str] = []
    for candidate in DRIVERS if name == "auto" else (name,):
        module, kind = DRIVERS[candidate].split(":")
        try:
            driver: Driver = getattr(importlib.import_module(module), kind)()
        except ModuleNotFoundError as error:
            missing.append(f"{candidate} ({error.name})")
            continue
        if driver.count_devices() == 0:
            raise EngineError(
                "the NVIDIA driver is there, but this process sees no GPU (CUDA_VISIBLE_DEVICES?); see `nvidia-smi -L`"
            )
        return driver
    if not has_driver_library():
        raise EngineError(NO_DRIVER)
    raise EngineError(
        f"no CUDA binding is installed (looked for {', '.join(missing)}); `pip install 'roiline[tensorrt]'` has cuda-bindings, "
        "`pip install 'roiline[pycuda]'` the other one"
    )


def has_driver_library() -> bool:
    """Says whether the NVIDIA driver's library can be loaded; it is not initialised."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def check_device(driver: Driver, index: int) -> None:
    """Checks that a GPU is there.

    Raises:
        UsageError: it is not; the message lists those that are.
    """
    count = driver.count_devices()
    if not 0 <= index < count:
        present = ", ".join(f"{number} ({driver.describe(number).name})" for number in range(count))
        raise UsageError(f"there is no GPU cuda:{index}; this process sees {present}")


def pack_arguments(arguments: Sequence[Argument]) -> tuple[np.ndarray[Any, Any], ...]:
    """Returns every argument as an array of one value, checked; it lives as long as the launch needs it.

    Raises:
        UsageError: an argument is neither a device address nor a 32-bit integer.
    """
    for place, argument in enumerate(arguments):
        if not isinstance(argument, np.uint64 | np.int32):
            raise UsageError(
                f"kernel argument {place}: expected an address (uint64) or an int32, got {type(argument).__name__}"
            )
    return tuple(np.array([argument]) for argument in arguments)
