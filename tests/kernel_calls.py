"""Calls of kernels as data: recorded once, to be made again in another process, and to say which kernels there are to compile."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import operator_forms
import pytest
from operator_cases import FORM_CASES, make_feed

from roiline.ops.catalogue import OPERATORS
from roiline.ops.image_preparation import PREPARE_IMAGE
from roiline.ops.kernel_host import run_on_host
from roiline.ops.kernels import Kernel

KERNELS: dict[str, Kernel] = {
    kernel.name: kernel
    for kernel in (*(kernel for operator in OPERATORS.values() for kernel in operator.kernels), PREPARE_IMAGE)
}


@dataclass(frozen=True)
class KernelCall:
    """Is one call: the kernel by name, its input arrays and attributes, and what it gave."""

    kernel: str
    arrays: tuple[np.ndarray, ...]
    attributes: dict[str, Any]
    outputs: tuple[np.ndarray, ...]

    @property
    def instance(self) -> tuple[str, int, tuple[str, ...]]:
        """Is what a compiled kernel depends on."""
        return self.kernel, len(self.arrays), tuple(array.dtype.name for array in self.arrays)


def record_calls(monkeypatch: pytest.MonkeyPatch, batches: tuple[tuple[int, ...], ...]) -> list[KernelCall]:
    """Returns the calls of all operators with all variations of their attributes, for batches of so many rows a picture."""
    operator_forms.need_host_compiler()
    calls: list[KernelCall] = []

    def run_and_record(kernel: Kernel, arrays: list[np.ndarray], attributes: dict[str, Any]) -> tuple[np.ndarray, ...]:
        outputs = run_on_host(kernel, arrays, attributes)
        calls.append(KernelCall(kernel.name, tuple(arrays), attributes, outputs))
        return outputs

    monkeypatch.setattr(operator_forms, "run_on_host", run_and_record)
    for case in FORM_CASES:
        for attributes in case.variations.values():
            for rows in batches:
                operator_forms.run_kernels(case.operator, make_feed(case, attributes, rows), **attributes)
    for arrays, attributes in _image_calls():
        run_and_record(PREPARE_IMAGE, arrays, attributes)
    return calls


def _image_calls() -> Iterator[tuple[list[np.ndarray], dict[str, Any]]]:
    rng = np.random.default_rng(0)
    for height, width in ((11, 7), (1, 3)):
        rows, columns = np.arange(9) * (height - 1) // 8, np.arange(14) * (width - 1) // 13
        arrays = [
            rng.integers(0, 256, (height, width, 3), np.uint8),
            rng.normal(0, 60, (3, 256)).astype(np.float32),
            *(rows.astype(np.int32), rng.random(9, np.float32)),
            *(columns.astype(np.int32), rng.random(14, np.float32)),
        ]
        yield arrays, {"padded_height": 10, "padded_width": 16, "swap_channels": 1, "rows_first": height % 2}
