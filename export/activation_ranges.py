"""What tensors of a model are on calibration pictures: ONNX Runtime runs the model with the measurements as further outputs.

ONNX Runtime is imported on use (extra `cpu`); here it measures, and runs nothing for a user. Only one number a tensor and picture leaves
it, so memory does not grow with the pictures.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from roiline.core.errors import EngineError, ExportError

Feeds: TypeAlias = Mapping[str, NDArray[Any]]
Answers: TypeAlias = Mapping[str, NDArray[Any]]

_PREFIX = "calibration_"


@dataclass(frozen=True, slots=True)
class Measurement:
    """Is what a model showed: `ranges`, the largest magnitude of every measured tensor, and its `answers`, picture by picture."""

    ranges: Mapping[str, float]
    answers: tuple[Answers, ...]


def measure_ranges(
    model: onnx.ModelProto, names: Iterable[str], outputs: Sequence[str], feeds: Iterable[Feeds]
) -> Measurement:
    """Runs a model over prepared feeds, measures the named tensors, and keeps the named outputs.

    Raises:
        ExportError: there are no feeds, a tensor has values that are not finite, or the model cannot be run.
        EngineError: ONNX Runtime is not installed.
    """
    probes = {name: f"{_PREFIX}{index}" for index, name in enumerate(dict.fromkeys(names))}
    probed = onnx.ModelProto()
    probed.CopyFrom(model)
    _add_probes(probed.graph, probes)
    every = answer_feeds(probed, [*outputs, *probes.values()], feeds)
    if not every:
        raise ExportError("there is nothing to calibrate on: no prepared pictures were given")
    ranges = {name: float(max(answers[probe] for answers in every)) for name, probe in probes.items()}
    unbounded = [name for name, value in ranges.items() if not np.isfinite(value)]
    if unbounded:
        raise ExportError(f"values that are not finite on the calibration pictures: {', '.join(unbounded[:5])}")
    kept = tuple({name: answers[name] for name in outputs} for answers in every)
    return Measurement({name: _round_up(value) for name, value in ranges.items()}, kept)


def answer_feeds(model: onnx.ModelProto, outputs: Sequence[str], feeds: Iterable[Feeds]) -> tuple[Answers, ...]:
    """Returns named tensors of a model for each of the feeds; feeds that it does not take are left out.

    Raises:
        EngineError: ONNX Runtime is not installed.
        ExportError: it cannot load or run the model.
    """
    session = _open_session(_with_outputs(model, outputs))
    inputs = [tensor.name for tensor in session.get_inputs()]
    return tuple(_run(session, outputs, {name: one[name] for name in inputs}) for one in feeds)


def _open_session(model: onnx.ModelProto) -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise EngineError(
            "calibration runs the model in ONNX Runtime, which is not installed; `pip install 'roiline[cpu]'`"
        ) from error
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the runtime raises classes of its own that share no base of ours
        raise ExportError(f"ONNX Runtime cannot load the model for calibration: {error}") from error


def _run(session: Any, outputs: Sequence[str], feeds: Feeds) -> Answers:
    try:
        return dict(zip(outputs, session.run(list(outputs), feeds), strict=True))
    except Exception as error:  # as above
        raise ExportError(f"ONNX Runtime cannot run the model on a calibration picture: {error}") from error


def _with_outputs(model: onnx.ModelProto, names: Sequence[str]) -> onnx.ModelProto:
    """Returns the model with these outputs only; the type of one that is declared nowhere is inferred when it is loaded."""
    shown = onnx.ModelProto()
    shown.CopyFrom(model)
    declared = {info.name: info for info in (*model.graph.value_info, *model.graph.output)}
    del shown.graph.output[:]
    shown.graph.output.extend(declared.get(name, onnx.ValueInfoProto(name=name)) for name in names)
    return shown


def _add_probes(graph: onnx.GraphProto, probes: Mapping[str, str]) -> None:
    """Adds max |x| of every tensor, 0 of one without values."""
    graph.initializer.append(numpy_helper.from_array(np.array([-1], np.int64), f"{_PREFIX}flat"))
    graph.initializer.append(numpy_helper.from_array(np.zeros(1, np.float32), f"{_PREFIX}zero"))
    for name, probe in probes.items():
        size, flat, some = (f"{probe}_{step}" for step in ("size", "flat", "some"))
        graph.node.append(helper.make_node("Abs", [name], [size], name=size))
        graph.node.append(helper.make_node("Reshape", [size, f"{_PREFIX}flat"], [flat], name=flat))
        graph.node.append(helper.make_node("Concat", [flat, f"{_PREFIX}zero"], [some], name=some, axis=0))
        graph.node.append(helper.make_node("ReduceMax", [some], [probe], name=probe, keepdims=0))


def _round_up(value: float) -> float:
    """Returns the value rounded up to 8 binary digits, so that the last bits of one machine's arithmetic do not reach the file."""
    mantissa, exponent = np.frexp(value)
    return float(np.ldexp(np.ceil(mantissa * 256.0) / 256.0, exponent))
