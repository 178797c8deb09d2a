"""Kernels on the host: the same source, the same entry point and the same order of arguments, called with numpy arrays.

This is how tests hold kernels against the references on machines without a GPU, and how a lowered graph can be followed there. It is
not fast, and it says nothing about launch geometry; races within a block show only with several `threads`.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import hashlib
import math
import shutil
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roiline.core.errors import EngineError
from roiline.ops.extents import evaluate_size
from roiline.ops.kernel_build import Sanitizer, compile_host_library
from roiline.ops.kernel_source import translation_unit
from roiline.ops.kernels import Kernel, KernelNode

_GARBAGE = 0xA5
"""What every byte of an output is before the kernel runs: none may be left."""

_RUNNING = threading.Lock()
"""Held while a kernel runs: a library has one block's memory."""


def run_on_host(
    kernel: Kernel,
    arrays: Sequence[NDArray[Any]],
    attributes: Mapping[str, Any],
    *,
    threads: int = 1,
    sanitizer: Sanitizer | None = None,
) -> tuple[NDArray[Any], ...]:
    """Runs a kernel on input tensors in order and returns its outputs.

    `threads` host threads share the work on an item of a cooperative kernel. With a sanitizer the process must have been started with
    its run-time library.

    Raises:
        TypeError: number, element type or rank of the arrays, or an attribute, do not fit the declaration.
        EngineError: the kernel could not be compiled.
    """
    node = kernel.node(len(arrays), attributes)
    for (name, _, rule), array in zip(node.inputs, arrays, strict=True):
        if array.ndim != rule.rank:
            raise TypeError(f"kernel {kernel.name}: input {name} has shape {array.shape}, expected rank {rule.rank}")
    inputs = [np.ascontiguousarray(array) for array in arrays]
    dtypes = [array.dtype.name for array in inputs]
    shapes = [array.shape for array in inputs]
    outputs = _allocate_outputs(node, dtypes, shapes)
    library = _load_library(translation_unit(node, dtypes), threads if kernel.cooperative else 1, sanitizer)
    memory = np.full(evaluate_size(node.shared_bytes, shapes), _GARBAGE, np.uint8)
    integers = [ctypes.c_int32(_as_int32(evaluate_size(size, shapes), kernel)) for size in node.extra_integers]
    pointers = [[ctypes.c_void_p(array.ctypes.data) for array in some] for some in (inputs, outputs)]
    entry = library[kernel.entry]
    entry.restype = None
    with _RUNNING:
        if kernel.cooperative:
            ctypes.c_void_p.in_dll(library, "block_memory").value = memory.ctypes.data
        entry(*pointers[0], *integers, *pointers[1])
    return tuple(outputs)


def _allocate_outputs(node: KernelNode, dtypes: Sequence[str], shapes: Sequence[tuple[int, ...]]) -> list[NDArray[Any]]:
    outputs = []
    for shape, dtype in zip(node.output_shapes, node.output_dtypes(dtypes), strict=True):
        sides = [evaluate_size(size, shapes) for size in shape]
        garbage = np.full(math.prod(sides) * np.dtype(dtype).itemsize, _GARBAGE, np.uint8)
        outputs.append(garbage.view(dtype).reshape(sides))
    return outputs


def _as_int32(value: int, kernel: Kernel) -> int:
    if not -(2**31) <= value < 2**31:
        raise TypeError(
            f"kernel {kernel.name}: an argument of {value} does not fit 32 bits; use smaller batches or limits"
        )
    return value


@functools.cache
def _load_library(source: str, threads: int, sanitizer: Sanitizer | None) -> ctypes.CDLL:
    digest = hashlib.sha256(f"{threads} {sanitizer} {source}".encode()).hexdigest()[:16]
    path = _library_folder() / f"{digest}.so"
    compile_host_library(source, path, threads=threads, sanitizer=sanitizer)
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise EngineError(f"the compiled kernel {path} cannot be loaded: {error}") from error


@functools.cache
def _library_folder() -> Path:
    """Returns a folder of this process that goes away with it."""
    folder = tempfile.mkdtemp(prefix="roiline-kernels-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)
