"""COCO's average precision of box detections, scored by faster-coco-eval.

The ground truth of a COCO file is the file's own annotations, as COCO's evaluator reads them: not clipped, crowds as regions that
excuse detections. Other datasets are scored against their roidb. Image ids of any type work: the evaluator gets numbers of ours.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from roiline.core.boxes import xywh_from_xyxy
from roiline.core.errors import DataError, UsageError
from roiline.core.structures import Float64, ImageId, RoidbEntry
from roiline.infer.roidb import Dataset
from roiline.report.results import DetectionResults

NO_GROUND_TRUTH = -1.0
METRIC_NAMES = ("AP", "AP50", "AP75", "APs", "APm", "APl")

# Axes of the evaluator's precision array: T thresholds .50:.05:.95, recall points, classes, area ranges, detection limits.
_AREAS = {"all": 0, "s": 1, "m": 2, "l": 3}
_THRESHOLDS = {"AP50": 0, "AP75": 5}
_LIMIT_100 = 2


@dataclass(frozen=True, slots=True)
class DetectionMetrics:
    """Is the score of a set of detections: `overall` by metric name, `per_class` AP by class name; fractions, -1 without ground truth."""

    overall: Mapping[str, float]
    per_class: Mapping[str, float]


def measure_detections(results: DetectionResults, dataset: Dataset) -> DetectionMetrics:
    """Scores detections: AP over IoU .50:.05:.95 with at most 100 detections a picture, as COCO defines it.

    Only the pictures of `results.entries` count. No detections at all give zeros.

    Raises:
        UsageError: faster-coco-eval is not installed.
        DataError: the dataset has no categories, or its annotations cannot be read.
    """
    if not dataset.categories:
        raise DataError(
            f"dataset `{dataset.name}` has no ground truth (no categories): detections cannot be scored against it"
        )
    ranks = _class_ranks(dataset)
    truth = _true_records(dataset, results.entries, ranks)
    precision = _evaluate(len(results.entries), sorted(ranks.values()), truth, _found_records(results, ranks))
    overall = {"AP": _mean(precision[:, :, :, _AREAS["all"], _LIMIT_100])}
    overall |= {name: _mean(precision[row, :, :, _AREAS["all"], _LIMIT_100]) for name, row in _THRESHOLDS.items()}
    overall |= {f"AP{area}": _mean(precision[:, :, :, _AREAS[area], _LIMIT_100]) for area in "sml"}
    per_class = {
        category.name: _mean(precision[:, :, ranks[label] - 1, _AREAS["all"], _LIMIT_100])
        for label, category in enumerate(dataset.categories, start=1)
    }
    return DetectionMetrics(overall, per_class)


def _class_ranks(dataset: Dataset) -> dict[int, int]:
    """Returns contiguous class -> rank of its category id, from 1: COCO's evaluator goes (and sums) by ascending category id."""
    order = sorted(range(len(dataset.categories)), key=lambda index: dataset.categories[index].id)
    return {index + 1: rank for rank, index in enumerate(order, start=1)}


def _true_records(dataset: Dataset, entries: Sequence[RoidbEntry], ranks: Mapping[int, int]) -> list[dict[str, Any]]:
    """Returns the ground truth as the evaluator's records; annotation ids start at 1, since 0 means `unmatched` to it."""
    if dataset.annotation_file is not None:
        records = _records_from_json(dataset.annotation_file, dataset, entries, ranks)
    else:
        records = _records_from_roidb(entries, ranks)
    return [{"id": number, **record} for number, record in enumerate(records, start=1)]


def _records_from_roidb(entries: Sequence[RoidbEntry], ranks: Mapping[int, int]) -> list[dict[str, Any]]:
    return [
        {"image_id": position, "category_id": ranks[label], "bbox": box, "area": area, "iscrowd": int(crowd)}
        for position, entry in enumerate(entries, start=1)
        for label, box, area, crowd in zip(
            entry.classes.tolist(),
            xywh_from_xyxy(entry.boxes).tolist(),
            entry.areas.tolist(),
            entry.crowd.tolist(),
            strict=True,
        )
    ]


def _records_from_json(
    path: Path, dataset: Dataset, entries: Sequence[RoidbEntry], ranks: Mapping[int, int]
) -> list[dict[str, Any]]:
    positions = {entry.image_id: position for position, entry in enumerate(entries, start=1)}
    labels = {category.id: ranks[label] for label, category in enumerate(dataset.categories, start=1)}
    return [
        _record_from_annotation(annotation, positions, labels, f"{path}: annotation {number}")
        for number, annotation in enumerate(_read_annotations(path))
        if annotation.get("image_id") in positions
    ]


def _read_annotations(path: Path) -> list[dict[str, Any]]:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as failure:
        raise DataError(f"{path}: the ground truth cannot be read: {failure}") from failure
    annotations = content.get("annotations", []) if isinstance(content, dict) else None
    if not isinstance(annotations, list) or not all(isinstance(item, dict) for item in annotations):
        raise DataError(f"{path}: expected a COCO file with a list of annotations")
    return annotations


def _record_from_annotation(
    annotation: Mapping[str, Any], positions: Mapping[ImageId, int], labels: Mapping[int, int], where: str
) -> dict[str, Any]:
    try:
        x, y, width, height = map(float, annotation["bbox"])
        label = labels[annotation["category_id"]]
        area = float(annotation.get("area", width * height))
    except (KeyError, TypeError, ValueError) as failure:
        raise DataError(
            f"{where}: expected a bbox of 4 numbers, a numeric area and a known category_id; {type(failure).__name__}: {failure}"
        ) from failure
    return {
        "image_id": positions[annotation["image_id"]],
        "category_id": label,
        "bbox": [x, y, width, height],
        "area": area,
        "iscrowd": int(annotation.get("iscrowd", 0)),
    }


def _found_records(results: DetectionResults, ranks: Mapping[int, int]) -> list[dict[str, Any]]:
    areas = results.boxes_xywh[:, 2] * results.boxes_xywh[:, 3]
    columns = zip(
        results.images.tolist(),
        results.classes.tolist(),
        results.boxes_xywh.tolist(),
        results.scores.tolist(),
        areas.tolist(),
        strict=True,
    )
    return [
        {
            "id": number,
            "image_id": position + 1,
            "category_id": ranks[label],
            "bbox": box,
            "score": score,
            "area": area,
            "iscrowd": 0,
        }
        for number, (position, label, box, score, area) in enumerate(columns, start=1)
    ]


def _evaluate(
    images: int, categories: Sequence[int], truth: list[dict[str, Any]], found: list[dict[str, Any]]
) -> Float64:
    """Returns the evaluator's precision array (thresholds, recall points, classes, areas, limits), -1 without ground truth."""
    try:
        from faster_coco_eval import COCO, COCOeval_faster
    except ImportError as failure:
        raise UsageError("scoring detections needs faster-coco-eval: pip install 'roiline[eval]'") from failure
    frame = {
        "images": [{"id": number} for number in range(1, images + 1)],
        "categories": [{"id": number} for number in categories],
    }
    sides = []
    for records in (truth, found):
        side = COCO()
        side.dataset = {**frame, "annotations": records}
        side.createIndex()
        sides.append(side)
    evaluator = COCOeval_faster(*sides, iouType="bbox")
    evaluator.evaluate()
    evaluator.accumulate()
    precision: Float64 = np.asarray(evaluator.eval["precision"], np.float64)
    return precision


def _mean(precision: Float64) -> float:
    measured = precision[precision > NO_GROUND_TRUTH]
    return float(measured.mean()) if len(measured) else NO_GROUND_TRUTH
