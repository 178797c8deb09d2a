"""One lane of a TensorRT engine: a stream, its own memory, and the execution contexts that use it, for one batch at a time.

A batch goes up, is computed and comes down in the lane's stream, through pinned memory, so that the copies of one lane overlap the
computing of another. Memory is taken once, for the largest shapes of all profiles; every context of the lane works in the same scratch
memory, which the stream's order allows.

Shapes that come again are recorded: a context of their own, whose work is captured as a CUDA graph once and launched from then on. A
graph holds shapes and addresses, so a context that serves several shapes cannot be recorded.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np

from roiline.core.errors import EngineError
from roiline.engines.cuda.resources import CudaContext, DeviceBuffer, Graph, PinnedBuffer, Stream
from roiline.engines.protocol import Tensor
from roiline.engines.tensorrt.runtime import EngineTensor

LOG = logging.getLogger("roiline.tensorrt")
MOST_GRAPHS = 16

Shape: TypeAlias = tuple[int, ...]
Shapes: TypeAlias = Mapping[str, Shape]


@dataclass(frozen=True, slots=True)
class MadeInput:
    """Is an input that is made on the device: its shape, and what puts the work that writes it at an address into a stream."""

    shape: Shape
    write: Callable[[int, Stream], None]


@dataclass(frozen=True, slots=True)
class _Recording:
    """Is the captured work for one profile and one set of input shapes, with the context that it belongs to."""

    graph: Graph
    execution: Any
    output_shapes: dict[str, Shape]


NOTHING_MADE: Mapping[str, MadeInput] = MappingProxyType({})


class Lane:
    """Runs one batch at a time; `largest` are the largest input shapes of every profile."""

    def __init__(
        self,
        trt: Any,
        engine: Any,
        context: CudaContext,
        tensors: Sequence[EngineTensor],
        largest: Sequence[Shapes],
        *,
        record: bool,
    ) -> None:
        self._trt = trt
        self._engine = engine
        self._context = context
        self._tensors = tensors
        self._stream = context.make_stream()
        self._done = context.make_event()
        self._scratch = context.allocate(int(engine.device_memory_size_v2))
        self._executions = [self._make_execution(profile) for profile in range(len(largest))]
        sizes = self._largest_sizes(largest)
        self._device = {tensor.name: context.allocate(sizes[tensor.name]) for tensor in tensors}
        self._host = {tensor.name: context.allocate_pinned(sizes[tensor.name]) for tensor in tensors}
        for execution in self._executions:
            self._set_addresses(execution)
        self._record = record
        self._seen: set[tuple[int, tuple[tuple[str, Shape], ...]]] = set()
        self._recordings: dict[tuple[int, tuple[tuple[str, Shape], ...]], _Recording] = {}
        self._results: dict[str, Tensor] = {}
        self.busy = False

    def start(self, profile: int, feeds: Mapping[str, Tensor], made: Mapping[str, MadeInput] = NOTHING_MADE) -> None:
        """Starts a batch whose shapes fit the profile; the feeds may be changed once this returns. `made` inputs are none of them.

        Raises:
            EngineError: TensorRT or CUDA refuses something.
        """
        shapes = {
            **{name: tuple(array.shape) for name, array in feeds.items()},
            **{name: one.shape for name, one in made.items()},
        }
        for name, view in self._views(shapes, self._host, inputs=True).items():
            if name in made:
                made[name].write(self._device[name].address, self._stream)
                continue
            view[...] = feeds[name]
            self._device[name].upload(view, self._stream)
        output_shapes = self._compute(profile, shapes)
        self._results = self._views(output_shapes, self._host, inputs=False)
        for name, view in self._results.items():
            self._device[name].download(view, self._stream)
        self._stream.record(self._done)
        self.busy = True

    def finish(self) -> dict[str, Tensor]:
        """Waits for the batch and returns its outputs: views of the lane's memory, good until the next `start`."""
        self._done.synchronize()
        self.busy = False
        results, self._results = self._results, {}
        return results

    def close(self) -> None:
        """Lets go of TensorRT's contexts and then of the memory in which they work."""
        self._stream.synchronize()
        recordings = [*self._recordings.values()]
        self._recordings.clear()
        for recording in recordings:
            recording.graph.close()
        recordings.clear()
        self._executions.clear()
        buffers: list[DeviceBuffer | PinnedBuffer] = [*self._device.values(), *self._host.values(), self._scratch]
        for buffer in buffers:
            buffer.close()
        self._done.close()
        self._stream.close()

    # -- computing ---------------------------------------------------------------------------------------------------------------

    def _compute(self, profile: int, shapes: Shapes) -> dict[str, Shape]:
        """Puts the computing into the stream and returns the shapes of the outputs."""
        key = (profile, tuple(sorted(shapes.items())))
        recording = self._recordings.get(key)
        if recording is not None:
            recording.graph.launch(self._stream)
            return recording.output_shapes
        again = key in self._seen
        self._seen.add(key)
        if again and self._record and len(self._recordings) < MOST_GRAPHS:
            return self._compute_and_record(key, shapes)
        output_shapes = self._set_shapes(self._executions[profile], shapes)
        self._enqueue(self._executions[profile])
        return output_shapes

    def _compute_and_record(self, key: tuple[int, tuple[tuple[str, Shape], ...]], shapes: Shapes) -> dict[str, Shape]:
        """Computes in a new context, as it must once before it can be recorded, and records it for the next time."""
        execution = self._make_execution(key[0])
        self._set_addresses(execution)
        output_shapes = self._set_shapes(execution, shapes)
        self._enqueue(execution)
        try:
            with self._context.capture(self._stream) as captured:
                self._enqueue(execution)
        except EngineError as error:
            LOG.warning("the engine cannot be recorded as a CUDA graph and runs without: %s", error)
            self._record = False
            self._stream.synchronize()  # the context goes away with this call, its work must be done
            return output_shapes
        (graph,) = captured
        self._recordings[key] = _Recording(graph, execution, output_shapes)
        return output_shapes

    def _enqueue(self, execution: Any) -> None:
        if not execution.execute_async_v3(self._stream.pointer):
            raise EngineError("TensorRT could not start the engine; its reason stands in the log")

    # -- contexts and memory -----------------------------------------------------------------------------------------------------

    def _make_execution(self, profile: int) -> Any:
        execution = self._engine.create_execution_context(self._trt.ExecutionContextAllocationStrategy.USER_MANAGED)
        if execution is None:
            raise EngineError("TensorRT could not make an execution context; its reason stands in the log")
        execution.set_device_memory(self._scratch.address, self._scratch.size)
        if not execution.set_optimization_profile_async(profile, self._stream.pointer):
            raise EngineError(f"TensorRT could not choose optimization profile {profile} of the engine")
        self._stream.synchronize()
        return execution

    def _set_addresses(self, execution: Any) -> None:
        for tensor in self._tensors:
            if not execution.set_tensor_address(tensor.name, self._device[tensor.name].address):
                raise EngineError(f"TensorRT does not take an address for `{tensor.name}`")

    def _set_shapes(self, execution: Any, shapes: Shapes) -> dict[str, Shape]:
        """Tells a context the shapes of the inputs and returns those of the outputs.

        Raises:
            EngineError: TensorRT refuses a shape, or does not know an output's.
        """
        for name, shape in shapes.items():
            if not execution.set_input_shape(name, shape):
                raise EngineError(f"TensorRT does not take the shape {shape} for `{name}`")
        found = {name: tuple(execution.get_tensor_shape(name)) for name in self._names(inputs=False)}
        open_ones = [name for name, shape in found.items() if any(size < 0 for size in shape)]
        if open_ones:
            raise EngineError(
                f"the shapes of {', '.join(open_ones)} follow from the pictures' content; an engine of `roiline build` pads such outputs"
            )
        return found

    def _largest_sizes(self, largest: Sequence[Shapes]) -> dict[str, int]:
        """Returns the bytes of every tensor at the largest shapes of any profile."""
        sizes = dict.fromkeys((tensor.name for tensor in self._tensors), 0)
        for execution, shapes in zip(self._executions, largest, strict=True):
            known = {**shapes, **self._set_shapes(execution, shapes)}
            for tensor in self._tensors:
                size = int(np.prod(known[tensor.name], dtype=np.int64)) * tensor.dtype.itemsize
                sizes[tensor.name] = max(sizes[tensor.name], size)
        return sizes

    def _names(self, *, inputs: bool) -> list[str]:
        return [tensor.name for tensor in self._tensors if tensor.is_input == inputs]

    def _views(self, shapes: Shapes, memory: Mapping[str, PinnedBuffer], *, inputs: bool) -> dict[str, Tensor]:
        return {
            tensor.name: memory[tensor.name].view(shapes[tensor.name], tensor.dtype)
            for tensor in self._tensors
            if tensor.is_input == inputs
        }
