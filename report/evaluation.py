"""The evaluation of a run: every result it has for every dataset, scored, as text for people and numbers for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roiline.core.errors import UsageError
from roiline.core.files import write_json
from roiline.infer.roidb import Dataset
from roiline.report.detection_metrics import measure_detections
from roiline.report.proposal_recall import measure_recall
from roiline.report.results import DetectionResults, Results, read_results
from roiline.report.tables import format_copy_paste, format_detection_table, format_recall_table

FORMAT_VERSION = 1
METRICS_NAME = "metrics.json"


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Is what an evaluation found: the `table` to print, the `metrics` as written, and the `file` they are in, if any.

    `metrics` is {format_version, dataset name: {box: {AP, ..}, per_class: {class name: AP}, box_proposal: {AR@100, ..}}}, fractions at
    full precision, with the parts for which there are results.
    """

    table: str
    metrics: dict[str, Any]
    file: Path | None


def evaluate(
    results_path: Path, datasets: Sequence[Dataset], *, out: Path | None = None, class_specific_recall: bool = False
) -> Evaluation:
    """Scores the results of a run (an OUT folder) or of a bare result file, and writes `metrics.json`.

    It is written into `out` (a folder, or a `.json` file), else into the results' folder; for a bare file without `out` nothing
    is written. The name of a dataset changes nothing.

    Raises:
        UsageError: a bare file with several datasets, or faster-coco-eval is not installed.
        DataError: there are no results, or they are damaged or of another dataset.
    """
    if not datasets:
        raise UsageError("nothing to evaluate against: no dataset was given")
    if len(datasets) > 1 and results_path.is_file():
        raise UsageError(
            f"{results_path}: is one result file, but {len(datasets)} datasets were given; give its own, or an OUT folder"
        )
    metrics: dict[str, Any] = {"format_version": FORMAT_VERSION}
    texts: list[str] = []
    for dataset in datasets:
        metrics[dataset.name] = {}
        for results in read_results(results_path, dataset):
            text, measured = _score(results, dataset, class_specific_recall=class_specific_recall)
            texts.append(text)
            metrics[dataset.name] |= measured
    file = _choose_file(results_path, out)
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, metrics)
    return Evaluation("\n\n".join(texts), metrics, file)


def _score(results: Results, dataset: Dataset, *, class_specific_recall: bool) -> tuple[str, dict[str, Any]]:
    covered, total = len(results.entries), len(dataset.entries)
    title = (
        f"{dataset.name} ({covered} pictures)"
        if covered == total
        else f"{dataset.name} ({covered} of {total} pictures)"
    )
    if isinstance(results, DetectionResults):
        scores = measure_detections(results, dataset)
        text = format_detection_table(title, scores)
        lines = format_copy_paste(dataset.name, "box", scores.overall)
        return f"{text}\n{lines}", {"box": dict(scores.overall), "per_class": dict(scores.per_class)}
    recalls = measure_recall(results, class_specific=class_specific_recall)
    lines = format_copy_paste(dataset.name, "box_proposal", recalls)
    return f"{format_recall_table(title, recalls)}\n{lines}", {"box_proposal": recalls}


def _choose_file(results_path: Path, out: Path | None) -> Path | None:
    if out is not None:
        return out if out.suffix == ".json" else out / METRICS_NAME
    return results_path / METRICS_NAME if results_path.is_dir() else None
