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
from roiline.report.ground_truth import GroundTruth, read_ground_truth
from roiline.report.proposal_recall import LIMITS, measure_recalls
from roiline.report.result_columns import DetectionResults, ProposalResults, Results, ScoredResults
from roiline.report.results import dataset_of_run, read_results
from roiline.report.run_difference import compare_metrics, compare_pictures
from roiline.report.tables import (
    format_class_recalls,
    format_copy_paste,
    format_detection_log,
    format_detection_table,
    format_recall_log,
    format_recall_table,
    format_voc_table,
)
from roiline.report.voc_metrics import measure_voc

FORMAT_VERSION = 1
METRICS_NAME = "metrics.json"
_SUFFIXES: Mapping[Scored, str] = {"box": "", "mask": "_mask", "keypoint": "_keypoint"}


@dataclass(frozen=True, slots=True)
class EvaluationOptions:
    """Is what is measured and told beyond the ordinary.

    `per_class`: every metric of each class, and recall of proposals class by class. `voc`: Pascal VOC's metrics of boxes too, which a VOC
    root always has. `recall_limits` are how many proposals a picture count. `log_form`: the text is as the original program logs it.
    `against` is another run over the same pictures, or its result file, to be compared with.
    """

    per_class: bool = False
    voc: bool = False
    recall_limits: tuple[int, ...] = LIMITS
    log_form: bool = False
    against: Path | None = None


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Is what an evaluation found: the `table` to print, the `metrics` as written, and the `file` they are in, if any.

    `metrics` is {format_version, dataset name: {box: {AP, ..}, per_class: {class name: AP}, recall, mask, per_class_mask, recall_mask,
    keypoint, per_class_keypoint, recall_keypoint, voc, per_class_voc, box_proposal: {AR@100, ..}}}, fractions at full precision, with the
    parts for which there are results; with `per_class` also classes (_mask, _keypoint): {class name: {AP, .., AR}}, box_proposal_per_class
    and box_proposal_class_mean; of a comparison `against`: {results, the same parts, difference: B - A, images}.
    """

    table: str
    metrics: dict[str, Any]
    file: Path | None


@dataclass(frozen=True, slots=True)
class _Scored:
    """Is the results of one run over one dataset, as text and as numbers."""

    results: tuple[Results, ...]
    texts: tuple[str, ...]
    measured: dict[str, Any]


def evaluate(
    results_path: Path,
    datasets: Sequence[Dataset],
    *,
    out: Path | None = None,
    options: EvaluationOptions | None = None,
) -> Evaluation:
    """Scores the results of a run (an OUT folder) or of a bare result file, and writes `metrics.json`.

    Of a run over a range of the dataset, the dataset's pictures of that range count. `metrics.json` is written into `out` (a folder, or
    a `.json` file), else into the results' folder; for a bare file without `out` nothing is written. The name of a dataset changes nothing.

    Raises:
        UsageError: a bare file with several datasets, `out` is one of the files read, or faster-coco-eval is not installed.
        OutputError: `metrics.json` cannot be written.
        DataError: there are no results, or they are damaged or of another dataset.
    """
    options = options or EvaluationOptions()
    if not datasets:
        raise UsageError("nothing to evaluate against: no dataset was given")
    if min(options.recall_limits, default=0) < 1:
        raise UsageError(f"--recall-limits: expected numbers of proposals from 1 on, got {options.recall_limits}")
    paths = [results_path, *([] if options.against is None else [options.against])]
    for path in paths:
        if len(datasets) > 1 and path.is_file():
            raise UsageError(
                f"{path}: is one result file, but {len(datasets)} datasets were given; give its own, or an OUT folder"
            )
    file = _choose_file(results_path, out)
    if file is not None:
        check_output(file, [one for path in paths for one in _list_inputs(path, datasets)])
    metrics: dict[str, Any] = {"format_version": FORMAT_VERSION}
    texts: list[str] = []
    for dataset in datasets:
        scored = _score(results_path, dataset, options)
        metrics[dataset.name] = scored.measured
        texts += scored.texts
        if options.against is not None:
            text, compared = _compare(scored, options.against, dataset, options)
            texts.append(f"A  {results_path}\nB  {options.against}\n\n{text}")
            metrics[dataset.name]["against"] = compared
    if file is not None:
        make_folder(file.parent)
        write_json(file, metrics)
    return Evaluation("\n\n".join(texts), metrics, file)


def _score(path: Path, dataset: Dataset, options: EvaluationOptions) -> _Scored:
    covered = dataset_of_run(path, dataset)
    found = read_results(path, covered)
    detections = [results for results in found if not isinstance(results, ProposalResults)]
    parts = _score_detections(detections, covered, options) if detections else []
    boxes = [results for results in detections if isinstance(results, DetectionResults)]
    if options.voc or dataset.kind == "voc":
        parts += [_score_voc(results, covered) for results in boxes]
    parts += [_score_proposals(results, covered, options) for results in found if isinstance(results, ProposalResults)]
    return _Scored(
        found,
        tuple(text for text, _ in parts),
        {key: value for _, measured in parts for key, value in measured.items()},
    )


def _compare(
    scored: _Scored, against: Path, dataset: Dataset, options: EvaluationOptions
) -> tuple[str, dict[str, Any]]:
    """Scores another run over a dataset and returns what differs, as text and as numbers."""
    other = _score(against, dataset, options)
    tables, differences = compare_metrics(scored.measured, other.measured)
    pictures, records = compare_pictures(scored.results, other.results)
    measured = {"results": str(against), **other.measured, "difference": differences, "images": records}
    return "\n\n".join(text for text in (tables, pictures) if text), measured


def _score_detections(
    found: Sequence[ScoredResults], dataset: Dataset, options: EvaluationOptions
) -> list[tuple[str, dict[str, Any]]]:
    """Scores boxes, masks and keypoints against one reading of the ground truth."""
    wanted = [part for results in found for part in PARTS[scored_part(results)]]
    truth = read_ground_truth(dataset, found[0].entries, parts=wanted)
    return [_score_part(results, dataset, truth, options) for results in found]


def _score_part(
    results: ScoredResults, dataset: Dataset, truth: GroundTruth, options: EvaluationOptions
) -> tuple[str, dict[str, Any]]:
    part = scored_part(results)
    scores = measure_detections(results, dataset, truth)
    title = _describe_coverage(results, dataset)
    obstacle = find_obstacle(results, truth)
    if obstacle is not None:
        table = f"{title}: {part} AP cannot be measured: {obstacle}"
    elif options.log_form:
        by_id = sorted(dataset.categories, key=lambda category: category.id)
        table = format_detection_log(scores, part, [category.name for category in by_id])
    else:
        table = format_detection_table(title, scores, part, per_class=options.per_class)
    suffix = _SUFFIXES[part]
    measured: dict[str, Any] = {
        part: dict(scores.overall),
        f"per_class{suffix}": dict(scores.per_class),
        f"recall{suffix}": dict(scores.recall),
    }
    if options.per_class:
        measured[f"classes{suffix}"] = {name: dict(one) for name, one in scores.classes.items()}
    return f"{table}\n{format_copy_paste(dataset.name, part, scores.overall)}", measured


def _score_voc(results: DetectionResults, dataset: Dataset) -> tuple[str, dict[str, Any]]:
    scores = measure_voc(results, dataset)
    overall = {f"AP50_{rule}": value for rule, value in scores.overall.items()}
    per_class = {name: {f"AP50_{rule}": value for rule, value in one.items()} for name, one in scores.per_class.items()}
    table = format_voc_table(_describe_coverage(results, dataset), scores)
    return f"{table}\n{format_copy_paste(dataset.name, 'voc', overall)}", {"voc": overall, "per_class_voc": per_class}


def _score_proposals(
    results: ProposalResults, dataset: Dataset, options: EvaluationOptions
) -> tuple[str, dict[str, Any]]:
    recalls = measure_recalls(results, limits=options.recall_limits)
    if options.log_form:
        texts = [format_recall_log(dataset.name, recalls.overall)]
    else:
        texts = [format_recall_table(_describe_coverage(results, dataset), recalls.overall)]
    measured: dict[str, Any] = {"box_proposal": dict(recalls.overall)}
    if options.per_class:
        names = [category.name for category in dataset.categories]
        texts += ["", format_class_recalls(recalls, names)]
        measured["box_proposal_per_class"] = {names[label - 1]: dict(one) for label, one in recalls.per_class.items()}
        measured["box_proposal_class_mean"] = dict(recalls.class_mean)
    return "\n".join([*texts, format_copy_paste(dataset.name, "box_proposal", recalls.overall)]), measured


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
