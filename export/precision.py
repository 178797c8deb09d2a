"""The precision of a model file: the one place where the types of a finished fp32 model are rewritten.

fp16 and bf16 are typed tensors and casts (`export.half_precision`); int8 is pairs of QuantizeLinear and DequantizeLinear
(`export.quantization`) with ranges measured on calibration pictures (`export.activation_ranges`). Those come as prepared feeds from
whoever can read pictures, who also judges whether the changed model still answers as the fp32 one does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

import onnx
from onnx import helper

from roiline.core.errors import UsageError
from roiline.core.spec import METADATA_KEY, ModelSpec, Precision
from roiline.export.activation_ranges import Answers, Feeds, answer_feeds, measure_ranges
from roiline.export.half_precision import BF16, FP16, check_fp16_range, convert_to_half
from roiline.export.quantization import find_quantized, quantize
from roiline.export.trunk import find_layer_results


class Verdict(NamedTuple):
    """Is what there is to say of a changed model's answers: what was found, and what to look at."""

    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


class Calibration(Protocol):
    """Is pictures that show a model what it will see, and a judge of what it makes of them."""

    def feeds(self, spec: ModelSpec) -> Iterable[Feeds]:
        """Yields the inputs of one picture after the other, prepared as the specification says; the same ones every time."""

    def judge(self, spec: ModelSpec, expected: Sequence[Answers], got: Sequence[Answers]) -> Verdict:
        """Compares the answers of the fp32 model and of the changed one, picture by picture: the seam of the model's last task.

        Raises:
            ExportError: the changed model cannot stand for the fp32 one.
            DataError: the pictures show too little to tell.
        """


class Converted(NamedTuple):
    """Is a model in the precision that was asked for, its specification, and the verdict of its judge."""

    model: onnx.ModelProto
    spec: ModelSpec
    verdict: Verdict


def check_precision(precision: Precision, calibration: Calibration | None) -> None:
    """Holds that a precision and calibration belong together.

    Raises:
        UsageError: int8 without calibration, or calibration for a precision that has no use for it.
    """
    if precision == "int8" and calibration is None:
        raise UsageError("--precision int8 measures ranges on pictures: give a dataset with --calibrate")
    if precision in ("fp32", "bf16") and calibration is not None:
        why = (
            "there is nothing to compare" if precision == "fp32" else "ONNX Runtime, which compares, runs no bf16 here"
        )
        raise UsageError(f"--calibrate is for --precision int8, or fp16 to compare its answers; for {precision} {why}")


def convert_model(
    model: onnx.ModelProto, spec: ModelSpec, precision: Precision, calibration: Calibration | None
) -> Converted:
    """Rewrites an fp32 model; the same model, pictures and precision give the same model.

    Raises:
        UsageError: as `check_precision`.
        ExportError: the model cannot be of that precision, or answers too differently in it.
        DataError: the calibration pictures cannot be used.
        EngineError: ONNX Runtime, which calibration needs, is not installed.
    """
    check_precision(precision, calibration)
    if precision == "fp32":
        return Converted(model, spec, Verdict())
    verdict = Verdict()
    if calibration is None:
        changed = convert_to_half(model, BF16 if precision == "bf16" else FP16)
    else:
        seam = [name for task in spec.tasks[-1:] for name in spec.seams[task]]
        tensors = find_quantized(model.graph).values() if precision == "int8" else find_layer_results(model.graph)
        measured = measure_ranges(model, tensors, seam, calibration.feeds(spec))
        changed = _change_measured(model, precision, measured.ranges)
        verdict = calibration.judge(spec, measured.answers, answer_feeds(changed, seam, calibration.feeds(spec)))
    described = replace(spec, precision=precision)
    helper.set_model_props(changed, {METADATA_KEY: described.to_json()})
    return Converted(changed, described, verdict)


def _change_measured(model: onnx.ModelProto, precision: Precision, ranges: Mapping[str, float]) -> onnx.ModelProto:
    if precision == "int8":
        return quantize(model, ranges)
    check_fp16_range(ranges)
    return convert_to_half(model, FP16)
