"""Kernels on a GPU: compiled, launched and timed directly, without any engine around them.

It is how kernels are held against their references on a device, and how a picture is prepared there. The rule of a launch is the
declaration's, the same that a plugin states and that the host follows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from roiline.engines.cuda.driver import Argument, Launch
from roiline.engines.cuda.resources import CudaContext, DeviceBuffer, Function
from roiline.ops.extents import evaluate_size
from roiline.ops.kernels import KernelNode

CompileKernel: TypeAlias = Callable[[KernelNode, Sequence[str]], str]
"""Returns the PTX of a kernel for the element types of its inputs."""

Array: TypeAlias = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Measured:
    """Is what a kernel gave, the milliseconds of each launch, and the bytes of its inputs and outputs together."""

    outputs: tuple[Array, ...]
    launches_ms: tuple[float, ...]
    moved_bytes: int


class DeviceKernels:
    """Runs kernels in a context, one after another in a stream of its own; what was compiled once is kept."""

    def __init__(self, context: CudaContext, compile_kernel: CompileKernel) -> None:
        self._context = context
        self._compile = compile_kernel
        self._stream = context.make_stream()
        self._functions: dict[tuple[str, str], Function] = {}

    def run(self, node: KernelNode, arrays: Sequence[Array]) -> tuple[Array, ...]:
        """Runs a kernel once and returns its outputs.

        Raises:
            TypeError: element type or rank of an array do not fit the declaration.
            EngineError: the kernel cannot be compiled or launched.
        """
        return self.measure(node, arrays, launches=1).outputs

    def measure(self, node: KernelNode, arrays: Sequence[Array], *, launches: int) -> Measured:
        """Runs a kernel several times over the same inputs, each launch timed on the device; the outputs are the last one's.

        Raises:
            TypeError: element type or rank of an array do not fit the declaration.
            EngineError: the kernel cannot be compiled or launched.
        """
        for (name, _, rule), array in zip(node.inputs, arrays, strict=True):
            if array.ndim != rule.rank:
                raise TypeError(
                    f"kernel {node.kernel.name}: input {name} has shape {array.shape}, expected rank {rule.rank}"
                )
        hosts = [np.ascontiguousarray(array) for array in arrays]
        outputs = _allocate_outputs(node, hosts)
        buffers = [self._context.allocate(host.nbytes) for host in (*hosts, *outputs)]
        try:
            for host, buffer in zip(hosts, buffers[: len(hosts)], strict=True):
                buffer.upload(host, self._stream)
            times = self._launch(node, hosts, buffers, launches)
            for output, buffer in zip(outputs, buffers[len(hosts) :], strict=True):
                buffer.download(output, self._stream)
            self._stream.synchronize()
        finally:
            for buffer in buffers:
                buffer.close()
        return Measured(tuple(outputs), times, sum(array.nbytes for array in (*hosts, *outputs)))

    def _launch(
        self, node: KernelNode, hosts: Sequence[Array], buffers: Sequence[DeviceBuffer], launches: int
    ) -> tuple[float, ...]:
        function = self._function(node, [host.dtype.name for host in hosts])
        launch, arguments = launch_rule(node, hosts, [buffer.address for buffer in buffers])
        start, end = self._context.make_event(timing=True), self._context.make_event(timing=True)
        times = []
        for _ in range(launches):
            self._stream.record(start)
            function.launch(launch, arguments, self._stream)
            self._stream.record(end)
            end.synchronize()
            times.append(end.elapsed_ms(start))
        start.close()
        end.close()
        return tuple(times)

    def _function(self, node: KernelNode, dtypes: Sequence[str]) -> Function:
        ptx = self._compile(node, dtypes)
        key = (node.kernel.entry, ptx)
        if key not in self._functions:
            self._functions[key] = self._context.load_module(ptx.encode()).function(node.kernel.entry)
        return self._functions[key]


def launch_rule(
    node: KernelNode, inputs: Sequence[Array], addresses: Sequence[int]
) -> tuple[Launch, tuple[Argument, ...]]:
    """Returns the geometry and the arguments of a launch: input addresses, the extra integers, output addresses."""
    shapes = [array.shape for array in inputs]
    grid = evaluate_size(node.grid, shapes)
    launch = Launch((grid, 1, 1), (node.kernel.block, 1, 1), evaluate_size(node.shared_bytes, shapes))
    pointers = [np.uint64(address) for address in addresses]
    integers = [np.int32(evaluate_size(size, shapes)) for size in node.extra_integers]
    return launch, (*pointers[: len(inputs)], *integers, *pointers[len(inputs) :])


def _allocate_outputs(node: KernelNode, inputs: Sequence[Array]) -> list[Array]:
    shapes = [array.shape for array in inputs]
    dtypes = node.output_dtypes([array.dtype.name for array in inputs])
    return [
        np.empty([evaluate_size(size, shapes) for size in shape], dtype)
        for shape, dtype in zip(node.output_shapes, dtypes, strict=True)
    ]
