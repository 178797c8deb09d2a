"""The evaluation of a run: every result it has for every dataset, scored, as text for people and numbers for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roiline.core.errors import UsageError
from roiline.core.files import check_output, make_folder, write_json
from roiline.infer.roidb import Dataset
from roiline.report.detection_metrics import PARTS, Scored, find_obstacle, measure_detections, scored_part
from roiline.report.ground_truth import read_ground_truth
from roiline.report.proposal_recall import measure_recall
from roiline.report.result_columns import ProposalResults, Results, ScoredResults
from roiline.report.results import dataset_of_run, read_results
from roiline.report.tables import format_copy_paste, format_detection_table, format_recall_table

FORMAT_VERSION = 1
METRICS_NAME = "metrics.json"
_PER_CLASS: Mapping[Scored, str] = {"box": "per_class", "mask": "per_class_mask", "keypoint": "per_class_keypoint"}


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Is what an evaluation found: the `table` to print, the `metrics` as written, and the `file` they are in, if any.

    `metrics` is {format_version, dataset name: {box: {AP, ..}, per_class: {class name: AP}, mask, per_class_mask, keypoint,
    per_class_keypoint, box_proposal: {AR@100, ..}}}, fractions at full precision, with the parts for which there are results.
    """

    table: str
    metrics: dict[str, Any]
    file: Path | None


def evaluate(
    results_path: Path, datasets: Sequence[Dataset], *, out: Path | None = None, class_specific_recall: bool = False
) -> Evaluation:
    """Scores the results of a run (an OUT folder) or of a bare result file, and writes `metrics.json`.

    Of a run over a range of the dataset, the dataset's pictures of that range count. `metrics.json` is written into `out` (a folder, or
    a `.json` file), else into the results' folder; for a bare file without `out` nothing is written. The name of a dataset changes nothing.

    Raises:
        UsageError: a bare file with several datasets, `out` is one of the files read, or faster-coco-eval is not installed.
        OutputError: `metrics.json` cannot be written.
        DataError: there are no results, or they are damaged or of another dataset.
    """
    if not datasets:
        raise UsageError("nothing to evaluate against: no dataset was given")
    if len(datasets) > 1 and results_path.is_file():
        raise UsageError(
            f"{results_path}: is one result file, but {len(datasets)} datasets were given; give its own, or an OUT folder"
        )
    file = _choose_file(results_path, out)
    if file is not None:
        check_output(file, _list_inputs(results_path, datasets))
    metrics: dict[str, Any] = {"format_version": FORMAT_VERSION}
    texts: list[str] = []
    for dataset in datasets:
        covered = dataset_of_run(results_path, dataset)
        found = read_results(results_path, covered)
        scored = [results for results in found if not isinstance(results, ProposalResults)]
        parts = [_score_detections(scored, covered)] if scored else []
        parts += [
            _score_proposals(results, covered, class_specific=class_specific_recall)
            for results in found
            if isinstance(results, ProposalResults)
        ]
        texts += [text for text, _ in parts]
        metrics[dataset.name] = {key: value for _, measured in parts for key, value in measured.items()}
    if file is not None:
        make_folder(file.parent)
        write_json(file, metrics)
    return Evaluation("\n\n".join(texts), metrics, file)


def _score_detections(found: Sequence[ScoredResults], dataset: Dataset) -> tuple[str, dict[str, Any]]:
    """Scores boxes, masks and keypoints against one reading of the ground truth."""
    wanted = [part for results in found for part in PARTS[scored_part(results)]]
    truth = read_ground_truth(dataset, found[0].entries, parts=wanted)
    texts: list[str] = []
    measured: dict[str, Any] = {}
    for results in found:
        part = scored_part(results)
        scores = measure_detections(results, dataset, truth)
        title = _describe_coverage(results, dataset)
        obstacle = find_obstacle(results, truth)
        table = (
            format_detection_table(title, scores, part)
            if obstacle is None
            else f"{title}: {part} AP cannot be measured: {obstacle}"
        )
        texts.append(f"{table}\n{format_copy_paste(dataset.name, part, scores.overall)}")
        measured |= {part: dict(scores.overall), _PER_CLASS[part]: dict(scores.per_class)}
    return "\n\n".join(texts), measured


def _score_proposals(results: ProposalResults, dataset: Dataset, *, class_specific: bool) -> tuple[str, dict[str, Any]]:
    recalls = measure_recall(results, class_specific=class_specific)
    lines = format_copy_paste(dataset.name, "box_proposal", recalls)
    text = f"{format_recall_table(_describe_coverage(results, dataset), recalls)}\n{lines}"
    return text, {"box_proposal": recalls}


def _describe_coverage(results: Results, dataset: Dataset) -> str:
    covered = len(results.entries)
    if covered == dataset.total:
        return f"{dataset.name} ({covered} pictures)"
    return f"{dataset.name} ({covered} of {dataset.total} pictures)"


def _list_inputs(results_path: Path, datasets: Sequence[Dataset]) -> list[Path]:
    """Lists the files that an evaluation reads and a file of metrics could replace by mistake: annotations and JSON files of a run."""
    annotations = [dataset.annotation_file for dataset in datasets if dataset.annotation_file is not None]
    if results_path.is_file():
        return [results_path, *annotations]
    folders = (results_path, *(results_path / dataset.name for dataset in datasets))
    stored = [file for folder in folders for file in folder.glob("*.json") if file.name != METRICS_NAME]
    return [*annotations, *stored]


def _choose_file(results_path: Path, out: Path | None) -> Path | None:
    if out is not None:
        return out if out.suffix == ".json" else out / METRICS_NAME
    return results_path / METRICS_NAME if results_path.is_dir() else None
