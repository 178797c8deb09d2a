"""Numbers of two measurements side by side, and whether they differ by more than their rounds do among themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from roiline.report.benchmark.document import Report

Verdict: TypeAlias = Literal["beyond", "within", "unknown"]

_SUBJECT = (
    "model_sha256",
    "architecture",
    "task",
    "precision",
    "engine",
    "data",
    "images",
    "devices",
    "batch_size",
    "batch_mode",
    "threads",
)
_MACHINE = ("processor", "usable_cores", "versions")


@dataclass(frozen=True, slots=True)
class Spread:
    """Is what several rounds gave: their median, least and most; of one round alone all three are the same."""

    median: float
    least: float
    most: float
    rounds: int


@dataclass(frozen=True, slots=True)
class MeasureDifference:
    """Is one measure of both sides, the ratio b / a (None where a is 0), and the verdict.

    `beyond`: the ranges of both sides' rounds have nothing in common. `unknown`: a side has one round, so nobody knows how far its rounds
    would differ.
    """

    name: str
    unit: str
    a: Spread
    b: Spread
    ratio: float | None
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class SubjectDifference:
    """Is something that was not the same when both sides were measured."""

    name: str
    a: object
    b: object


def compare_spreads(name: str, unit: str, a: Spread, b: Spread) -> MeasureDifference:
    """Returns the difference of one measure."""
    ratio = b.median / a.median if a.median else None
    if a.rounds < 2 or b.rounds < 2:
        return MeasureDifference(name, unit, a, b, ratio, "unknown")
    apart = a.most < b.least or b.most < a.least
    return MeasureDifference(name, unit, a, b, ratio, "beyond" if apart else "within")


def compare_reports(a: Report, b: Report) -> tuple[list[SubjectDifference], list[MeasureDifference]]:
    """Returns what was measured otherwise, and every measure that both reports have."""
    measures = [
        compare_spreads(title, "images/s", _spread(a["spread"][key]), _spread(b["spread"][key]))
        for key, title in (("images_per_s", "end to end"), ("engine_images_per_s", "engine alone"))
    ]
    first, second = a["spread"]["stages_ms"], b["spread"]["stages_ms"]
    for group in first:
        for stage in first[group]:
            if stage in second.get(group, {}):
                pair = (_spread(first[group][stage]), _spread(second[group][stage]))
                measures.append(compare_spreads(f"{group}: {stage}", "ms/image", *pair))
    return [*_differ(a["subject"], b["subject"], _SUBJECT), *_differ(a["machine"], b["machine"], _MACHINE)], measures


def compare_timings(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[MeasureDifference]:
    """Returns the measures of two timing.json: one round each, so whether they differ by more than chance is not known."""
    measures = [_compare_single("end to end", "images/s", a["images_per_s"], b["images_per_s"])]
    for stage, stats in a["stages"].items():
        if stage in b["stages"]:
            measures.append(_compare_single(stage, "ms, mean", stats["mean_ms"], b["stages"][stage]["mean_ms"]))
    return measures


def _compare_single(name: str, unit: str, a: float, b: float) -> MeasureDifference:
    return compare_spreads(name, unit, Spread(a, a, a, 1), Spread(b, b, b, 1))


def _spread(plain: Mapping[str, Any]) -> Spread:
    return Spread(plain["median"], plain["least"], plain["most"], len(plain["rounds"]))


def _differ(a: Mapping[str, Any], b: Mapping[str, Any], names: Sequence[str]) -> list[SubjectDifference]:
    found = []
    for name in names:
        first, second = a.get(name), b.get(name)
        if isinstance(first, Mapping) and isinstance(second, Mapping):
            inner = _differ(first, second, [*dict.fromkeys([*first, *second])])
            found += [replace(one, name=f"{name}.{one.name}") for one in inner]
        elif first != second:
            found.append(SubjectDifference(name, first, second))
    return found
