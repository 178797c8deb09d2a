"""Two paths compared: what they are, and the table of what differs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from roiline.core.errors import DataError, UsageError
from roiline.core.files import open_input, read_json_object
from roiline.core.records import plain_from_record
from roiline.core.timing import FORMAT_VERSION as TIMING_VERSION
from roiline.infer.manifest import RUN_FILE, TIMING_FILE, differing_settings, read_manifest
from roiline.report.benchmark.document import KIND, REPORT_FILE, read_report
from roiline.report.comparison.boxes import BoxComparison, compare_boxes
from roiline.report.comparison.loose_results import read_loose_results
from roiline.report.comparison.measures import (
    MeasureDifference,
    SubjectDifference,
    compare_reports,
    compare_timings,
)

FORMAT_VERSION = 1

Kind: TypeAlias = Literal["reports", "runs", "results"]
_HEAD_BYTES = 4096
_VERDICTS = {"beyond": "yes", "within": "no", "unknown": "unknown"}


@dataclass(frozen=True, slots=True)
class Comparison:
    """Is what differs between two reports, runs or results; `boxes` is None for reports."""

    kind: Kind
    a: str
    b: str
    subjects: tuple[SubjectDifference, ...]
    measures: tuple[MeasureDifference, ...]
    boxes: BoxComparison | None
    format_version: int = FORMAT_VERSION

    def to_plain(self) -> dict[str, Any]:
        """Returns it as JSON types."""
        plain: dict[str, Any] = plain_from_record(self)
        return plain


def compare_paths(a: Path, b: Path) -> Comparison:
    """Compares two report.json (or their folders), two OUT folders of runs, or two result files.

    Raises:
        DataError: a path is absent, damaged, or nothing of these.
        UsageError: both are of different kinds.
    """
    kinds = (find_kind(a), find_kind(b))
    if kinds[0] != kinds[1] and "reports" in kinds:
        raise UsageError(f"{a} and {b} are not of one kind: {kinds[0]} and {kinds[1]}; compare like with like")
    if kinds == ("reports", "reports"):
        subjects, measures = compare_reports(*(read_report(_report_path(path)) for path in (a, b)))
        return Comparison("reports", str(a), str(b), tuple(subjects), tuple(measures), None)
    boxes = compare_boxes(read_loose_results(a), read_loose_results(b))
    if kinds == ("runs", "runs"):
        return Comparison("runs", str(a), str(b), _compare_settings(a, b), _compare_times(a, b), boxes)
    return Comparison("results", str(a), str(b), (), (), boxes)


def find_kind(path: Path) -> Kind:
    """Returns what a path is.

    Raises:
        DataError: there is no such path.
    """
    if path.is_dir():
        if (path / REPORT_FILE).is_file():
            return "reports"
        return "runs" if (path / RUN_FILE).is_file() else "results"
    with open_input(path) as stream:
        head = stream.read(_HEAD_BYTES)
    return "reports" if f'"{KIND}"'.encode() in head else "results"


def _report_path(path: Path) -> Path:
    return path / REPORT_FILE if path.is_dir() else path


def _compare_settings(a: Path, b: Path) -> tuple[SubjectDifference, ...]:
    first, second = read_manifest(a), read_manifest(b)
    if first is None or second is None:
        raise DataError(f"{a if first is None else b}: run.json is gone")
    return tuple(SubjectDifference(*one) for one in differing_settings(first.settings, second.settings))


def _compare_times(a: Path, b: Path) -> tuple[MeasureDifference, ...]:
    files = [path / TIMING_FILE for path in (a, b)]
    if not all(file.is_file() for file in files):
        return ()  # a joined run has none
    return tuple(compare_timings(*(_read_timing(file) for file in files)))


def _read_timing(file: Path) -> dict[str, Any]:
    """Reads a timing.json, whose times must be numbers.

    Raises:
        DataError: they are not.
    """
    plain = read_json_object(file, format_version=TIMING_VERSION)
    stages = plain.get("stages")
    times = [plain.get("images_per_s")]
    if isinstance(stages, dict):
        times += [stats.get("mean_ms") if isinstance(stats, dict) else None for stats in stages.values()]
    if not isinstance(stages, dict) or not all(isinstance(one, (int, float)) for one in times):
        raise DataError(f"{file}: damaged: expected images_per_s and stages with their mean_ms")
    return plain


def describe_comparison(found: Comparison) -> str:
    """Returns the tables for people."""
    lines = [f"A  {found.a}", f"B  {found.b}"]
    if found.subjects:
        lines += ["", "not the same on both sides:"]
        lines += [f"  {one.name}: {_shorten(one.a)} | {_shorten(one.b)}" for one in found.subjects]
    if found.measures:
        heads = ("", "A", "B", "B / A", "unit", "beyond the spread")
        rows = [_measure_row(one) for one in found.measures]
        lines += ["", *_align([heads, *rows])]
        if any(one.verdict == "unknown" for one in found.measures):
            lines.append(
                "unknown: one round each says nothing of the spread; `roiline benchmark --repeat` measures several"
            )
    if found.boxes is not None:
        lines += ["", *_describe_boxes(found.boxes)]
    return "\n".join(lines)


def _measure_row(one: MeasureDifference) -> tuple[str, ...]:
    ratio = "-" if one.ratio is None else f"{one.ratio:.3f}"
    return (one.name, f"{one.a.median:.3f}", f"{one.b.median:.3f}", ratio, one.unit, _VERDICTS[one.verdict])


def _describe_boxes(boxes: BoxComparison) -> list[str]:
    sides = f"{boxes.images_only_a} only in A, {boxes.images_only_b} only in B"
    overlap = f" (same class; least IoU {boxes.least_iou:.4f})" if boxes.matched else ""
    lines = [
        f"images   {boxes.images} ({sides}), {boxes.images_equal} the same to the last bit",
        f"boxes    {boxes.boxes_a} in A, {boxes.boxes_b} in B; {boxes.matched} matched{overlap}",
    ]
    if boxes.matched:
        lines += _describe_matched(boxes)
    if boxes.equal:
        return [*lines, "no difference"]
    heads = ("images that differ most", "only in A", "only in B", "score", "corner px")
    rows = [
        (str(one.image_id), str(one.only_a), str(one.only_b), f"{one.score:.2g}", f"{one.corner_px:.2g}")
        for one in boxes.most_different
    ]
    return [*lines, "", *_align([heads, *rows])]


def _describe_matched(boxes: BoxComparison) -> list[str]:
    return [
        f"scores   differ by {boxes.scores.mean:.2g} on average, p99 {boxes.scores.p99:.2g}, most {boxes.scores.most:.2g}",
        f"corners  differ by {boxes.corners_px.mean:.2g} px on average, p99 {boxes.corners_px.p99:.2g}, most {boxes.corners_px.most:.2g}",
    ]


def _align(rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns rows as lines of columns, the first one set left, the others right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _shorten(value: object) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
