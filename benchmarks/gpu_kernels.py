"""The kernel part of the GPU check: every operator's chain of kernels against its numpy reference, and how long each kernel takes.

The floor of a kernel is the time in which the device moves the bytes of its inputs and outputs once, at the rate that filling memory
reaches. A kernel that reads everything more than once, or sorts, is above it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import onnx
from gpu_cases import Case
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from roiline.core.spec import ImageRules
from roiline.engines.cuda.kernels import Measured
from roiline.engines.cuda.resources import CudaContext
from roiline.infer.device_preparation import plan_device_preparation
from roiline.infer.preparation import prepare_picture
from roiline.ops.catalogue import OPERATORS
from roiline.ops.image_preparation import PREPARE_IMAGE
from roiline.ops.kernel_host import run_on_host
from roiline.ops.kernels import KernelNode
from roiline.ops.nodes import DOMAIN, OPSET, FunctionWriter
from roiline.ops.operator import Operator

TOLERANCE = (1e-5, 2e-4)
"""Relative and absolute, for what is float32 throughout: a last bit of an exponential, in pixels of a picture."""
HALF_TOLERANCE = (2e-3, 2e-3)
PREPARATION_TOLERANCE = (0.0, 1e-3)
_FILLED_BYTES = 1 << 29


class KernelRunner(Protocol):
    """Runs and times one kernel: on a device, or (dry) on the host."""

    def measure(self, node: KernelNode, arrays: Sequence[Any], *, launches: int) -> Measured:
        """Returns what the kernel gave and how long each launch took."""


class HostRunner:
    """Runs kernels as the host compiles them; times are the host's, with its compiler's in the first."""

    def measure(self, node: KernelNode, arrays: Sequence[Any], *, launches: int) -> Measured:
        """Returns what the kernel gave and how long each call took."""
        times = []
        outputs: tuple[Any, ...] = ()
        for _ in range(launches):
            start = time.perf_counter()
            outputs = run_on_host(node.kernel, arrays, node.attributes)
            times.append(1000 * (time.perf_counter() - start))
        return Measured(outputs, tuple(times), sum(array.nbytes for array in (*arrays, *outputs)))


@dataclass(frozen=True, slots=True)
class KernelTime:
    """Is one kernel of a chain: the median milliseconds of its launches, and the floor (None where no rate is known)."""

    kernel: str
    ms: float
    moved_bytes: int
    floor_ms: float | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """Is one case: whether it agrees, the largest difference of a value, the share of values that differ at all, and each kernel's time."""

    name: str
    stands_for: str
    agrees: bool
    largest_difference: float
    differing_share: float
    detail: str
    kernels: tuple[KernelTime, ...]


def measure_fill_rate(context: CudaContext, *, tries: int = 5) -> float:
    """Returns the bytes a second that filling device memory reaches."""
    stream, buffer = context.make_stream(), context.allocate(_FILLED_BYTES)
    start, end = context.make_event(timing=True), context.make_event(timing=True)
    rates = []
    for _ in range(tries):
        stream.record(start)
        buffer.fill(1, stream)
        stream.record(end)
        end.synchronize()
        rates.append(_FILLED_BYTES / (end.elapsed_ms(start) / 1000))
    for resource in (buffer, start, end, stream):
        resource.close()
    return max(rates)


def check_case(case: Case, runner: KernelRunner, *, launches: int, rate: float | None) -> Outcome:
    """Runs a case through its operator's kernels and through the reference."""
    operator = OPERATORS[case.operator]
    attributes = operator.complete(case.attributes)
    got, kernels = run_chain(operator, case.arrays, attributes, runner, launches=launches, rate=rate)
    want = operator.run(*case.arrays, **case.attributes)
    half = any(array.dtype == np.float16 for array in case.arrays)
    return _judge(
        case.operator,
        case.stands_for,
        dict(zip(operator.outputs, zip(_cut(operator, got, want), want, strict=True), strict=True)),
        HALF_TOLERANCE if half else TOLERANCE,
        kernels,
    )


def check_preparation(
    rules: ImageRules, picture: Any, runner: KernelRunner, *, launches: int, rate: float | None
) -> Outcome:
    """Prepares a picture by the kernel and on the host."""
    plan = plan_device_preparation(picture, rules)
    node = PREPARE_IMAGE.node(len(plan.inputs), plan.attributes)
    measured = runner.measure(node, plan.inputs, launches=launches)
    want = prepare_picture(picture, rules).pixels
    pairs = {"pixels": (measured.outputs[0], want)}
    kernels = (_time_of(node, measured, rate),)
    return _judge("PrepareImage", f"{rules.resize} rule", pairs, PREPARATION_TOLERANCE, kernels)


def run_chain(
    operator: Operator,
    arrays: Sequence[Any],
    attributes: Mapping[str, Any],
    runner: KernelRunner,
    *,
    launches: int,
    rate: float | None,
) -> tuple[tuple[Any, ...], tuple[KernelTime, ...]]:
    """Runs what an operator is lowered to: kernels by the runner, the standard nodes between them by numpy."""
    if operator.lower is None:
        raise SystemExit(f"{operator.name} has no kernels: the catalogue and this check do not fit")
    writer = FunctionWriter()
    names = tuple(f"input_{index}" for index in range(len(arrays)))
    results = operator.lower(writer, names, attributes)
    values = dict(zip(names, arrays, strict=True))
    times: list[KernelTime] = []
    for node in writer.nodes:
        feeds = [values[name] for name in node.input]
        if node.domain != DOMAIN:
            outputs: Sequence[Any] = _run_standard(node, feeds)
        else:
            kernel_node = _kernel_node(operator, node)
            measured = runner.measure(kernel_node, feeds, launches=launches)
            times.append(_time_of(kernel_node, measured, rate))
            outputs = measured.outputs
        values.update(zip(node.output, outputs, strict=True))
    return tuple(values[name] for name in results), tuple(times)


def _kernel_node(operator: Operator, node: onnx.NodeProto) -> KernelNode:
    given = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    for kernel in operator.kernels:
        if set(kernel.attributes) <= set(given) and node.op_type.startswith(kernel.name):
            candidate = kernel.node(len(node.input), given)
            if candidate.op_type == node.op_type:
                return candidate
    raise SystemExit(f"{operator.name}: no kernel is called {node.op_type}: the catalogue and this check do not fit")


def _run_standard(node: onnx.NodeProto, feeds: Sequence[Any]) -> Sequence[Any]:
    if node.op_type == "Constant":
        return [numpy_helper.to_array(node.attribute[0].t)]
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(feed.dtype), feed.shape)
        for name, feed in dict(zip(node.input, feeds, strict=True)).items()
    ]
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output]
    graph = helper.make_graph([node], "standard", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)])
    answer: Sequence[Any] = ReferenceEvaluator(model).run(None, dict(zip(node.input, feeds, strict=True)))
    return answer


def _time_of(node: KernelNode, measured: Measured, rate: float | None) -> KernelTime:
    floor = None if rate is None else 1000 * measured.moved_bytes / rate
    return KernelTime(node.op_type, statistics.median(measured.launches_ms), measured.moved_bytes, floor)


def _cut(operator: Operator, got: Sequence[Any], want: Sequence[Any]) -> list[Any]:
    """Takes the padding away that kernels leave: to the fullest picture, or to the rows that the reference has."""
    if operator.name == "Trim":
        return [rows[rows[:, 0] >= 0] for rows in got]
    if "count" in operator.outputs:
        longest = int(got[-1].max(initial=0))
        return [*(array[:, :longest] for array in got[:-1]), got[-1]]
    return [array[: len(other)] for array, other in zip(got, want, strict=True)]


def _judge(
    name: str,
    stands_for: str,
    pairs: Mapping[str, tuple[Any, Any]],
    tolerance: tuple[float, float],
    kernels: tuple[KernelTime, ...],
) -> Outcome:
    """Compares every output; integers must be the same, floats within the tolerance."""
    largest, differing, total, details = 0.0, 0, 0, []
    for output, (got, want) in pairs.items():
        longest = min(got.shape[1], want.shape[1]) if got.ndim > 1 and got.shape != want.shape else None
        cut_got, cut_want = (array if longest is None else array[:, :longest] for array in (got, want))
        if cut_got.shape != cut_want.shape:
            details.append(f"{output} has shape {got.shape}, the reference's has {want.shape}")
            continue
        relative, absolute = tolerance if np.issubdtype(want.dtype, np.floating) else (0.0, 0.0)
        left, right = cut_got.astype(np.float64), cut_want.astype(np.float64)
        same = (left == right) | (np.isnan(left) & np.isnan(right))
        close = np.isclose(left, right, rtol=relative, atol=absolute, equal_nan=True)
        finite = np.isfinite(left) & np.isfinite(right)
        apart = np.abs(np.where(finite, left, 0) - np.where(finite, right, 0))
        largest = max(largest, float(apart.max(initial=0)))
        differing += int((~same).sum())
        total += same.size
        if not close.all():
            details.append(
                f"{output}: {int((~close).sum())} of {close.size} values are beyond {absolute} + {relative} of the value"
            )
    share = differing / max(1, total)
    return Outcome(name, stands_for, not details, largest, share, "; ".join(details), kernels)
