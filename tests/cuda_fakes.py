"""A GPU that is none: memory that copies really reach, calls that are written down, behind fakes of both CUDA bindings.

Work is done when it is asked for, so a test sees what was asked in which order, and what came back; that copies and compute overlap is
nothing that a fake can show.
"""

# ruff: noqa: N802 - the names are the driver's

from __future__ import annotations

import ctypes
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

PTX = b".version 8.0\n.target sm_80\n"
NAMES = ("NVIDIA H200", "NVIDIA L4")


class FakeLibraryError(Exception):
    """Is what a binding raises where libcuda is not there."""


@dataclass
class FakeGpu:
    """Is one machine's GPUs: `devices` of them, `room` bytes each."""

    devices: int = 2
    room: int = 1 << 30
    version: int = 13000
    calls: list[str] = field(default_factory=list)
    memory: dict[int, np.ndarray] = field(default_factory=dict)
    pinned: dict[int, np.ndarray] = field(default_factory=dict)
    alive: set[str] = field(default_factory=set)
    launches: list[tuple[str, tuple[int, ...], tuple[int, ...], int, tuple[int, ...]]] = field(default_factory=list)
    kernels: dict[str, tuple[type, ...]] = field(default_factory=dict)
    execute: Callable[[str, tuple[int, ...]], None] | None = None
    recording: list[Callable[[], None]] | None = None
    current: object = None
    _next: int = 0x1000

    def make(self, kind: str) -> int:
        self._next += 0x100000
        self.alive.add(f"{kind}:{self._next}")
        return self._next

    def drop(self, kind: str, handle: int) -> None:
        self.alive.remove(f"{kind}:{int(handle)}")

    def allocate(self, size: int) -> int | None:
        if sum(block.size for block in self.memory.values()) + size > self.room:
            return None
        address = self.make("memory")
        self.memory[address] = np.full(size, 0xCD, np.uint8)
        return address

    def free(self, address: int) -> None:
        self.drop("memory", address)
        del self.memory[int(address)]

    def allocate_pinned(self, size: int) -> tuple[int, np.ndarray]:
        block = np.zeros(size, np.uint8)
        self.pinned[block.ctypes.data] = block
        self.alive.add(f"pinned:{block.ctypes.data}")
        return block.ctypes.data, block

    def free_pinned(self, pointer: int) -> None:
        self.drop("pinned", pointer)
        del self.pinned[int(pointer)]

    def view(self, address: int, size: int) -> np.ndarray:
        start = max(base for base in self.memory if base <= address)
        offset = address - start
        assert offset + size <= self.memory[start].size, "a copy beyond the end of a buffer"
        return self.memory[start][offset : offset + size]

    def do(self, name: str, work: Callable[[], None]) -> None:
        """Does stream work at once, or records it while a capture is on."""
        self.calls.append(name)
        if self.recording is not None:
            self.recording.append(work)
        else:
            work()

    def launch(self, name: str, grid: Any, block: Any, shared: int, arguments: tuple[int, ...]) -> None:
        launch = (name, tuple(grid), tuple(block), shared, arguments)
        self.do("launch", lambda: self._run(launch))

    def _run(self, launch: tuple[str, tuple[int, ...], tuple[int, ...], int, tuple[int, ...]]) -> None:
        """Writes a launch down, and does its work where a test has said how."""
        self.launches.append(launch)
        if self.execute is not None:
            self.execute(launch[0], launch[-1])


def install_bindings(monkeypatch: Any, gpu: FakeGpu | None, *, status: int = 0) -> None:
    """Puts a fake `cuda.bindings.driver` in place; without a GPU machine it behaves as without libcuda."""
    driver = _bindings_module(gpu, status)
    bindings, root = types.ModuleType("cuda.bindings"), types.ModuleType("cuda")
    bindings.driver, root.bindings = driver, bindings  # type: ignore[attr-defined]
    for name, module in (("cuda", root), ("cuda.bindings", bindings), ("cuda.bindings.driver", driver)):
        monkeypatch.setitem(sys.modules, name, module)


def install_pycuda(monkeypatch: Any, gpu: FakeGpu | None) -> None:
    """Puts a fake `pycuda` in place; without a GPU machine importing its driver fails as without libcuda."""
    root = types.ModuleType("pycuda")
    monkeypatch.setitem(sys.modules, "pycuda", root)
    driver = None if gpu is None else _pycuda_module(gpu)
    root.driver = driver  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pycuda.driver", driver)


def remove_bindings(monkeypatch: Any) -> None:
    """Makes both bindings what they are where nothing is installed."""

    class Refuse:
        def find_spec(self, name: str, path: object = None, target: object = None) -> None:
            if name.split(".")[0] in ("cuda", "pycuda"):
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    for name in [name for name in sys.modules if name.split(".")[0] in ("cuda", "pycuda")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Refuse(), *sys.meta_path])


def _bindings_module(gpu: FakeGpu | None, status: int) -> types.ModuleType:
    module = types.ModuleType("cuda.bindings.driver")

    def offer(function: Callable[..., Any]) -> None:
        setattr(module, function.__name__, function)

    def cuInit(flags: int) -> tuple[int]:
        if gpu is None:
            raise FakeLibraryError("libcuda.so.1 was not found")
        return (status or (100 if gpu.devices == 0 else 0),)

    def cuGetErrorName(error: int) -> tuple[int, bytes]:
        return 0, f"CUDA_ERROR_{int(error)}".encode()

    def cuGetErrorString(error: int) -> tuple[int, bytes]:
        return 0, b"out of memory" if int(error) == 2 else b"something else"

    for function in (cuInit, cuGetErrorName, cuGetErrorString):
        offer(function)
    if gpu is not None:
        _offer_device_calls(offer, gpu)
        _offer_memory_calls(offer, gpu)
        _offer_stream_calls(offer, gpu)
        _offer_module_calls(offer, gpu)
    attributes = {f"CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_{part}": part for part in ("MAJOR", "MINOR")}
    module.CUdevice_attribute = types.SimpleNamespace(**attributes)  # type: ignore[attr-defined]
    module.CUstreamCaptureMode = types.SimpleNamespace(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL=1)  # type: ignore[attr-defined]
    shared = types.SimpleNamespace(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES=8)
    module.CUfunction_attribute = shared  # type: ignore[attr-defined]
    return module


def _offer_device_calls(offer: Callable[[Any], None], gpu: FakeGpu) -> None:
    def cuDriverGetVersion():
        return 0, gpu.version

    def cuDeviceGetCount():
        return 0, gpu.devices

    def cuDeviceGet(index):
        return 0, index

    def cuDeviceGetName(length, device):
        return 0, NAMES[device].encode().ljust(length, b"\0")

    def cuDeviceGetUuid(device):
        return 0, types.SimpleNamespace(bytes=bytes(range(device, device + 16)))

    def cuDeviceGetAttribute(kind, device):
        return 0, {"MAJOR": 9, "MINOR": device}[kind]

    def cuDeviceTotalMem(device):
        return 0, gpu.room

    def cuDeviceGetPCIBusId(length, device):
        return 0, f"0000:{device}B:00.0".encode().ljust(length, b"\0")

    def cuDevicePrimaryCtxRetain(device):
        return 0, gpu.make("context")

    def cuDevicePrimaryCtxRelease(device):
        gpu.alive -= {name for name in gpu.alive if name.startswith("context")}
        return (0,)

    def cuCtxSetCurrent(context):
        gpu.current = context
        return (0,)

    for function in list(locals().values()):
        if isinstance(function, types.FunctionType) and function.__name__.startswith("cu"):
            offer(function)


def _offer_memory_calls(offer: Callable[[Any], None], gpu: FakeGpu) -> None:
    def cuMemGetInfo():
        return 0, gpu.room - sum(block.size for block in gpu.memory.values()), gpu.room

    def cuMemAlloc(size):
        address = gpu.allocate(size)
        return (2, None) if address is None else (0, address)

    def cuMemFree(address):
        gpu.free(address)
        return (0,)

    def cuMemHostAlloc(size, flags):
        return 0, gpu.allocate_pinned(size)[0]

    def cuMemFreeHost(pointer):
        gpu.free_pinned(pointer)
        return (0,)

    def cuMemcpyHtoDAsync(address, host, size, stream):
        source = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(host))
        gpu.do("upload", lambda: gpu.view(address, size).__setitem__(slice(None), source))
        return (0,)

    def cuMemcpyDtoHAsync(host, address, size, stream):
        target = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(host))
        gpu.do("download", lambda: target.__setitem__(slice(None), gpu.view(address, size)))
        return (0,)

    def cuMemsetD8Async(address, byte, size, stream):
        gpu.do("fill", lambda: gpu.view(address, size).fill(byte))
        return (0,)

    for function in list(locals().values()):
        if isinstance(function, types.FunctionType) and function.__name__.startswith("cu"):
            offer(function)


def _offer_stream_calls(offer: Callable[[Any], None], gpu: FakeGpu) -> None:
    graphs: dict[int, list[Callable[[], None]]] = {}

    def cuStreamCreate(flags):
        return 0, gpu.make("stream")

    def cuStreamDestroy(stream):
        gpu.drop("stream", stream)
        return (0,)

    def cuStreamSynchronize(stream):
        gpu.calls.append("synchronize")
        return (0,) if gpu.recording is None else (900,)

    def cuStreamWaitEvent(stream, event, flags):
        gpu.calls.append("wait")
        return (0,)

    def cuEventCreate(flags):
        return 0, gpu.make("event")

    def cuEventRecord(event, stream):
        gpu.calls.append("record")
        return (0,)

    def cuEventSynchronize(event):
        gpu.calls.append("synchronize event")
        return (0,)

    def cuEventElapsedTime(start, end):
        return 0, 1.5

    def cuEventDestroy(event):
        gpu.drop("event", event)
        return (0,)

    def cuStreamBeginCapture(stream, mode):
        gpu.recording = []
        return (0,)

    def cuStreamEndCapture(stream):
        handle = gpu.make("recording")
        graphs[handle], gpu.recording = gpu.recording or [], None
        return 0, handle

    def cuGraphInstantiate(graph, flags):
        handle = gpu.make("graph")
        graphs[handle] = graphs[graph]
        return 0, handle

    def cuGraphDestroy(graph):
        gpu.drop("recording", graph)
        return (0,)

    def cuGraphLaunch(graph, stream):
        gpu.calls.append("graph")
        for work in graphs[graph]:
            work()
        return (0,)

    def cuGraphExecDestroy(graph):
        gpu.drop("graph", graph)
        return (0,)

    for function in list(locals().values()):
        if isinstance(function, types.FunctionType) and function.__name__.startswith("cu"):
            offer(function)


def _offer_module_calls(offer: Callable[[Any], None], gpu: FakeGpu) -> None:
    def cuModuleLoadData(image):
        assert image.endswith(b"\0")
        return 0, gpu.make("module")

    def cuModuleUnload(module):
        gpu.drop("module", module)
        return (0,)

    def cuModuleGetFunction(module, name):
        return (0, name.decode()) if name.decode() in gpu.kernels else (500, None)

    def cuFuncSetAttribute(function, kind, value):
        gpu.calls.append(f"allow {value}")
        return (0,)

    def cuLaunchKernel(function, gx, gy, gz, bx, by, bz, shared, stream, pointers, extra):
        kinds = gpu.kernels[function]
        places = (ctypes.c_void_p * len(kinds)).from_address(pointers)
        types_ = {np.uint64: ctypes.c_uint64, np.int32: ctypes.c_int32}
        values = tuple(types_[kind].from_address(place).value for kind, place in zip(kinds, places, strict=True))
        gpu.launch(function, (gx, gy, gz), (bx, by, bz), shared, values)
        return (0,)

    for function in list(locals().values()):
        if isinstance(function, types.FunctionType) and function.__name__.startswith("cu"):
            offer(function)


def _pycuda_module(gpu: FakeGpu) -> types.ModuleType:
    module = types.ModuleType("pycuda.driver")

    class Error(Exception):
        pass

    class Context:
        stack: list[Any] = []  # noqa: RUF012

        def __init__(self):
            self.handle = gpu.make("context")

        def push(self):
            Context.stack.append(self)
            gpu.current = self

        @staticmethod
        def pop():
            Context.stack.pop()

        @staticmethod
        def get_current():
            return Context.stack[-1] if Context.stack else None

        def detach(self):
            assert Context.stack[-1] is self, "pycuda wants a context to be current when it is given back"
            Context.stack.pop()
            gpu.drop("context", self.handle)

    class Device:
        def __init__(self, index):
            self.index = index

        @staticmethod
        def count():
            return gpu.devices

        def name(self):
            return NAMES[self.index]

        def compute_capability(self):
            return 9, self.index

        def total_memory(self):
            return gpu.room

        def pci_bus_id(self):
            return f"0000:{self.index}B:00.0"

        def retain_primary_context(self):
            return Context()

    class Stream:
        def __init__(self, flags=0):
            self.handle = gpu.make("stream")

        def __del__(self):
            gpu.drop("stream", self.handle)

        def synchronize(self):
            gpu.calls.append("synchronize")

        def wait_for_event(self, event):
            gpu.calls.append("wait")

    class Event:
        def __init__(self, flags=0):
            self.handle = gpu.make("event")

        def __del__(self):
            gpu.drop("event", self.handle)

        def record(self, stream):
            gpu.calls.append("record")

        def synchronize(self):
            gpu.calls.append("synchronize event")

        def time_since(self, start):
            return 1.5

    class Allocation(int):
        def free(self):
            gpu.free(int(self))

    class Pinned:
        def __init__(self, block):
            self.block = block

        def free(self):
            gpu.free_pinned(self.block.ctypes.data)

    class PinnedArray(np.ndarray):
        @property
        def base(self):
            return Pinned(self)

    class Function:
        def __init__(self, name):
            self.name = name

        def set_attribute(self, kind, value):
            gpu.calls.append(f"allow {value}")

        def __call__(self, *values, grid, block, shared, stream):
            assert tuple(type(value) for value in values) == gpu.kernels[self.name]
            gpu.launch(self.name, grid, block, shared, tuple(int(value) for value in values))

    class Module:
        def __init__(self):
            self.handle = gpu.make("module")

        def __del__(self):
            gpu.drop("module", self.handle)

        def get_function(self, name):
            if name not in gpu.kernels:
                raise Error("cuModuleGetFunction failed: named symbol not found")
            return Function(name)

    def mem_alloc(size):
        address = gpu.allocate(size)
        if address is None:
            raise Error("cuMemAlloc failed: out of memory")
        return Allocation(address)

    def upload(address, host, stream):
        source = host.reshape(-1).view(np.uint8)
        gpu.do("upload", lambda: gpu.view(address, source.size).__setitem__(slice(None), source))

    def download(host, address, stream):
        target = host.reshape(-1).view(np.uint8)
        gpu.do("download", lambda: target.__setitem__(slice(None), gpu.view(address, target.size)))

    def init():
        if gpu.devices == 0:
            raise Error("cuInit failed: no CUDA-capable device is detected")

    members: dict[str, Any] = {
        "Error": Error,
        "Context": Context,
        "Device": Device,
        "Stream": Stream,
        "Event": Event,
        "event_flags": types.SimpleNamespace(DEFAULT=0, DISABLE_TIMING=2),
        "function_attribute": types.SimpleNamespace(MAX_DYNAMIC_SHARED_SIZE_BYTES=8),
        "init": init,
        "get_driver_version": lambda: gpu.version,
        "mem_get_info": lambda: (gpu.room - sum(block.size for block in gpu.memory.values()), gpu.room),
        "mem_alloc": mem_alloc,
        "pagelocked_empty": lambda size, dtype: gpu.allocate_pinned(size)[1].view(PinnedArray),
        "memcpy_htod_async": upload,
        "memcpy_dtoh_async": download,
        "memset_d8_async": lambda address, byte, size, stream: gpu.do(
            "fill", lambda: gpu.view(address, size).fill(byte)
        ),
        "module_from_buffer": lambda image: Module(),
    }
    for name, member in members.items():
        setattr(module, name, member)
    return module
