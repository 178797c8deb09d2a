"""Pictures made network input on the GPU: their bytes and tables go up in one piece, and a kernel writes each one's part of the batch.

A picture of bytes is about a tenth of what it becomes, so the bus carries less, and the CPU is left with reading and decoding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from roiline.engines.cuda.kernels import launch_rule
from roiline.engines.cuda.resources import CudaContext, DeviceBuffer, Function, PinnedBuffer, Stream
from roiline.engines.protocol import PictureCall, Tensor
from roiline.ops.image_preparation import PREPARE_IMAGE
from roiline.ops.kernel_source import translation_unit
from roiline.ops.kernels import KernelNode

CompileSource: TypeAlias = Callable[[str], str]
"""Returns the PTX of a translation unit."""

_ALIGNMENT = 256
_CHANNELS = 3


class PictureStage:
    """Holds the bytes of one batch, in pinned and in device memory that grow with it; one batch at a time uses them."""

    def __init__(self, context: CudaContext, compile_source: CompileSource) -> None:
        self._context = context
        self._compile = compile_source
        self._function: Function | None = None
        self._pinned: PinnedBuffer = context.allocate_pinned(0)
        self._device: DeviceBuffer = context.allocate(0)

    def prepare(self, pictures: Sequence[PictureCall], size_hw: tuple[int, int], address: int, stream: Stream) -> None:
        """Puts the work into a stream that writes the pictures, padded to one size, one after another from an address on.

        Raises:
            EngineError: the kernel cannot be compiled or launched, or there is no memory for the pictures.
        """
        arrays = [[np.ascontiguousarray(array) for array in picture.inputs] for picture in pictures]
        offsets = self._pack([array for some in arrays for array in some], stream)
        places = iter(offsets)
        size = _CHANNELS * size_hw[0] * size_hw[1] * np.dtype(np.float32).itemsize
        for number, (picture, inputs) in enumerate(zip(pictures, arrays, strict=True)):
            attributes = {**picture.attributes, "padded_height": size_hw[0], "padded_width": size_hw[1]}
            node = PREPARE_IMAGE.node(len(inputs), attributes)
            addresses = [self._device.address + next(places) for _ in inputs]
            launch, arguments = launch_rule(node, inputs, [*addresses, address + number * size])
            self._find_function(node, inputs).launch(launch, arguments, stream)

    def _pack(self, arrays: Sequence[Tensor], stream: Stream) -> list[int]:
        """Copies arrays into pinned memory, one after another, and sends them up in one piece; returns where each begins."""
        offsets, end = [], 0
        for array in arrays:
            offsets.append(end)
            end += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
        self._grow(end, stream)
        block = self._pinned.view((end,), np.uint8)
        for array, offset in zip(arrays, offsets, strict=True):
            block[offset : offset + array.nbytes] = array.reshape(-1).view(np.uint8)
        self._device.upload(block, stream)
        return offsets

    def _grow(self, size: int, stream: Stream) -> None:
        if size <= self._device.size:
            return
        stream.synchronize()  # nothing may still use the memory that goes away
        self._pinned.close()
        self._device.close()
        self._pinned = self._context.allocate_pinned(size)
        self._device = self._context.allocate(size)

    def _find_function(self, node: KernelNode, inputs: Sequence[Tensor]) -> Function:
        """Returns the kernel, compiled at the first picture: its source is the same for all."""
        if self._function is None:
            ptx = self._compile(translation_unit(node, [array.dtype.name for array in inputs]))
            self._function = self._context.load_module(ptx.encode()).function(node.kernel.entry)
        return self._function
