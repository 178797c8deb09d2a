"""COCO's average precision of boxes, masks and keypoints, scored by faster-coco-eval.

Image ids of any type work: the evaluator gets numbers of ours.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np

from roiline.core.errors import UsageError
from roiline.core.structures import Float64, Int64, RoidbEntry
from roiline.infer.result_rows import Part
from roiline.infer.roidb import Dataset
from roiline.ops.oks_nms import COCO_SIGMAS
from roiline.report.ground_truth import GroundTruth, read_ground_truth
from roiline.report.result_columns import DetectionResults, KeypointResults, MaskResults, ScoredResults
from roiline.report.single_hits import lower_single_hits, single_hit_probes

NO_GROUND_TRUTH = -1.0
METRIC_NAMES = ("AP", "AP50", "AP75", "APs", "APm", "APl")
KEYPOINT_METRIC_NAMES = ("AP", "AP50", "AP75", "APm", "APl")

Scored: TypeAlias = Literal["box", "mask", "keypoint"]

# Axes of the evaluator's precision array: T thresholds .50:.05:.95, recall points, classes, area ranges, detection limits.
_AREAS = {"all": 0, "s": 1, "m": 2, "l": 3}
_KEYPOINT_AREAS = {"all": 0, "m": 1, "l": 2}
_THRESHOLDS = {"AP50": 0, "AP75": 5}
_LIMITS = (1, 10, 100)
_MOST_DETECTIONS = -1  # the last limit: 100 boxes or masks, 20 persons
PARTS: Mapping[Scored, tuple[Part, ...]] = {"box": (), "mask": ("masks",), "keypoint": ("keypoints",)}
"""What scoring needs of the ground truth beside boxes."""

_IOU_TYPES: Mapping[Scored, str] = {"box": "bbox", "mask": "segm", "keypoint": "keypoints"}


@dataclass(frozen=True, slots=True)
class DetectionMetrics:
    """Is the score of a set of detections, in fractions, -1 without ground truth.

    `overall` is average precision by metric name, `per_class` AP by class name, `recall` COCO's average recalls (AR@1, AR@10, AR@100, ARs,
    ARm, ARl; of keypoints AR, AR50, AR75, ARm, ARl), `classes` every metric of each class and its AR, `objects` the annotations of each
    class that count (no crowds).
    """

    overall: Mapping[str, float]
    per_class: Mapping[str, float]
    recall: Mapping[str, float] = field(default_factory=dict)
    classes: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    objects: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Scores:
    """Is the evaluator's arrays: `precision` (thresholds, recall points, classes, areas, limits), `recall` without the second axis."""

    precision: Float64
    recall: Float64


def scored_part(results: ScoredResults) -> Scored:
    """Returns what of detections some results are."""
    if isinstance(results, DetectionResults):
        return "box"
    return "mask" if isinstance(results, MaskResults) else "keypoint"


def find_obstacle(results: ScoredResults, truth: GroundTruth) -> str | None:
    """Returns why masks or keypoints cannot be scored against a ground truth; None: they can."""
    part = scored_part(results)
    if part == "mask" and truth.masks == 0:
        return "the dataset has no masks"
    if part == "mask" and truth.masks < len(truth.records):
        return f"{len(truth.records) - truth.masks} of the dataset's {len(truth.records)} annotations have no mask"
    if isinstance(results, KeypointResults):
        if truth.joints is None:
            return "the dataset has no keypoints"
        if len(results.images) and results.points.shape[2] != truth.joints:
            return f"the dataset has {truth.joints} keypoints, the results have {results.points.shape[2]}"
        if truth.joints != len(COCO_SIGMAS):
            return f"object keypoint similarity is defined for {len(COCO_SIGMAS)} keypoints, the dataset has {truth.joints}"
    return None


def measure_detections(results: ScoredResults, dataset: Dataset, truth: GroundTruth | None = None) -> DetectionMetrics:
    """Scores boxes, masks or keypoints: AP over IoU (OKS) .50:.95 with at most 100 (20) a picture, as COCO defines it.

    Only the pictures of `results.entries` count. No detections at all give zeros, what stands in the way of scoring (`find_obstacle`) -1.
    `truth` saves reading the ground truth of these entries again.

    Raises:
        UsageError: faster-coco-eval is not installed.
        DataError: the dataset has no categories, or its annotations cannot be read.
    """
    part = scored_part(results)
    known = read_ground_truth(dataset, results.entries, parts=PARTS[part]) if truth is None else truth
    if find_obstacle(results, known) is not None:
        precision = np.full((10, 1, len(known.ranks), len(_AREAS), 3), NO_GROUND_TRUTH)
        scores = _Scores(precision, precision[:, 0])
    else:
        scores = _evaluate(part, known, _found_records(results, known.ranks))
    areas = _KEYPOINT_AREAS if part == "keypoint" else _AREAS
    columns = {category.name: known.ranks[label] - 1 for label, category in enumerate(dataset.categories, start=1)}
    names = {rank - 1: dataset.categories[label - 1].name for label, rank in known.ranks.items()}
    counted = Counter(names[record["category_id"] - 1] for record in known.records if not record["iscrowd"])
    classes = {name: _summarise_class(scores, column, areas) for name, column in columns.items()}
    return DetectionMetrics(
        _summarise_precision(scores.precision, areas),
        {name: one["AP"] for name, one in classes.items()},
        _summarise_recall(scores.recall, part, areas),
        classes,
        {name: counted[name] for name in columns},
    )


def _summarise_precision(precision: Float64, areas: Mapping[str, int]) -> dict[str, float]:
    summary = {"AP": _mean(precision[:, :, :, areas["all"], _MOST_DETECTIONS])}
    summary |= {name: _mean(precision[row, :, :, areas["all"], _MOST_DETECTIONS]) for name, row in _THRESHOLDS.items()}
    return summary | {
        f"AP{area}": _mean(precision[:, :, :, axis, _MOST_DETECTIONS]) for area, axis in areas.items() if area != "all"
    }


def _summarise_recall(recall: Float64, part: Scored, areas: Mapping[str, int]) -> dict[str, float]:
    if part == "keypoint":
        summary = {"AR": _mean(recall[:, :, areas["all"], _MOST_DETECTIONS])}
        summary |= {
            f"AR{name[2:]}": _mean(recall[row, :, areas["all"], _MOST_DETECTIONS]) for name, row in _THRESHOLDS.items()
        }
    else:
        summary = {f"AR@{most}": _mean(recall[:, :, areas["all"], axis]) for axis, most in enumerate(_LIMITS)}
    return summary | {
        f"AR{area}": _mean(recall[:, :, axis, _MOST_DETECTIONS]) for area, axis in areas.items() if area != "all"
    }


def _summarise_class(scores: _Scores, column: int, areas: Mapping[str, int]) -> dict[str, float]:
    of_class = scores.precision[:, :, column : column + 1]
    recall = _mean(scores.recall[:, column, areas["all"], _MOST_DETECTIONS])
    return {**_summarise_precision(of_class, areas), "AR": recall}


def _found_records(results: ScoredResults, ranks: Mapping[int, int]) -> list[dict[str, Any]]:
    """Returns the detections as the evaluator's records; the area of keypoints is that of the box around them."""
    columns = zip(
        results.images.tolist(), results.classes.tolist(), results.scores.tolist(), _list_shapes(results), strict=True
    )
    return [
        {
            "id": number,
            "image_id": position + 1,
            "category_id": ranks[label],
            "score": score,
            "iscrowd": 0,
            **shape,
        }
        for number, (position, label, score, shape) in enumerate(columns, start=1)
    ]


def _list_shapes(results: ScoredResults) -> list[dict[str, Any]]:
    if isinstance(results, DetectionResults):
        areas = results.boxes_xywh[:, 2] * results.boxes_xywh[:, 3]
        boxes = zip(results.boxes_xywh.tolist(), areas.tolist(), strict=True)
        return [{"bbox": box, "area": area} for box, area in boxes]
    if isinstance(results, MaskResults):
        masks = zip(results.counts, results.sizes_hw.tolist(), results.areas.tolist(), strict=True)
        return [
            {"segmentation": {"size": size, "counts": counts.decode("ascii")}, "area": area, "bbox": [0, 0, 0, 0]}
            for counts, size, area in masks
        ]
    shapes = []
    for places in results.points:
        low, high = places.min(axis=1), places.max(axis=1)
        flat = np.vstack([places, np.ones(places.shape[1])]).T.ravel().tolist()
        sides = (high - low).tolist()
        shapes.append({"keypoints": flat, "area": sides[0] * sides[1], "bbox": [*low.tolist(), *sides]})
    return shapes


def _evaluate(part: Scored, truth: GroundTruth, found: list[dict[str, Any]]) -> _Scores:
    """Returns the evaluator's arrays, -1 without ground truth."""
    try:
        from faster_coco_eval import COCO, COCOeval_faster
    except ImportError as failure:
        raise UsageError("scoring detections needs faster-coco-eval: pip install 'roiline[eval]'") from failure
    categories = sorted(truth.ranks.values())
    frame = {"images": _frame_images(truth.entries), "categories": [{"id": number} for number in categories]}
    sides = []
    for records in (_true_records(part, truth), found):
        side = COCO()
        side.dataset = {**frame, "annotations": records}
        side.createIndex()
        sides.append(side)
    evaluator = COCOeval_faster(*sides, iouType=_IOU_TYPES[part])
    params = evaluator.params
    params.catIds = categories  # for keypoints it leaves out those without annotations
    points = np.asarray(params.recThrs, np.float64)
    objects = _count_objects(part, truth, np.asarray(params.areaRng, np.float64))
    probes = single_hit_probes(int(objects.max(initial=0)))
    params.recThrs = np.unique(np.concatenate([points, probes]))
    evaluator.evaluate()
    evaluator.accumulate()
    precision, recall = (np.asarray(evaluator.eval[name], np.float64) for name in ("precision", "recall"))
    columns, probed = (precision[:, np.searchsorted(params.recThrs, chosen)] for chosen in (points, probes))
    return _Scores(lower_single_hits(columns, probed, objects), recall)


def _count_objects(part: Scored, truth: GroundTruth, bounds: Float64) -> Int64:
    """Returns how many annotations count for each class, by rank, and each range of areas (A, 2), as COCO counts them."""
    objects = np.zeros((len(truth.ranks), len(bounds)), np.int64)
    for record in truth.records:
        if record["iscrowd"] or (part == "keypoint" and not record.get("num_keypoints")):
            continue
        objects[record["category_id"] - 1] += (bounds[:, 0] <= record["area"]) & (record["area"] <= bounds[:, 1])
    return objects


def _frame_images(entries: Sequence[RoidbEntry]) -> list[dict[str, int]]:
    return [
        {"id": number, "height": entry.height, "width": entry.width} for number, entry in enumerate(entries, start=1)
    ]


def _true_records(part: Scored, truth: GroundTruth) -> list[dict[str, Any]]:
    """Returns the annotations that count for a part, as copies, since the evaluator writes into them."""
    key = {"box": "bbox", "mask": "segmentation", "keypoint": "keypoints"}[part]
    return [dict(record) for record in truth.records if key in record]


def _mean(precision: Float64) -> float:
    measured = precision[precision > NO_GROUND_TRUTH]
    return float(measured.mean()) if len(measured) else NO_GROUND_TRUTH
