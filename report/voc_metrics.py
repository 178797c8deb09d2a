"""Pascal VOC's average precision of boxes at one overlap, by both of its rules: eleven recall points (2007) and the whole area (from 2010).

Detections of a class are taken by descending score, those of equal scores in the file's order. Each is held against the object of
its picture that it overlaps most (inclusive corners: a width is x2 - x1 + 1); it is right if the overlap is above the threshold and the
object was not taken before. Objects marked difficult are neither asked for nor counted against a detection. The original rounds scores
to three and corners to one decimal on the way through its text files; here nothing is rounded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from roiline.core.boxes import box_ious
from roiline.core.structures import Bool, Float64, Int64, RoidbEntry
from roiline.infer.roidb import Dataset
from roiline.report.result_columns import DetectionResults

NO_OBJECTS = -1.0
OVERLAP = 0.5
RULES = ("area", "11point")
"""The rules, as metric names have them."""


@dataclass(frozen=True, slots=True)
class VocMetrics:
    """Is VOC's score of boxes: `overall` is the mean over classes that have objects by rule, `per_class` the same of each class by name."""

    overall: Mapping[str, float]
    per_class: Mapping[str, Mapping[str, float]]


def measure_voc(results: DetectionResults, dataset: Dataset, *, overlap: float = OVERLAP) -> VocMetrics:
    """Scores boxes as Pascal VOC does; -1 for a class without objects that count, and without any class that has some.

    Ground truth is that of the roidb: its crowds are the difficult objects.
    """
    per_class = {}
    for label, category in enumerate(dataset.categories, start=1):
        hits, objects = _mark_hits(results, label, overlap)
        per_class[category.name] = {rule: _score(hits, objects, rule) for rule in RULES}
    overall = {}
    for rule in RULES:
        known = [one[rule] for one in per_class.values() if one[rule] >= 0]
        overall[rule] = float(np.mean(known)) if known else NO_OBJECTS
    return VocMetrics(overall, per_class)


def area_precision(hits: Bool, objects: int) -> float:
    """Returns the area under the precision curve, made to fall from left to right; `hits` (D,) are by descending score."""
    recall, precision = _curve(hits, objects)
    recall = np.concatenate([[0.0], recall, [1.0]])
    precision = np.maximum.accumulate(np.concatenate([[0.0], precision, [0.0]])[::-1])[::-1]
    steps = np.flatnonzero(recall[1:] != recall[:-1])
    return float(np.sum((recall[steps + 1] - recall[steps]) * precision[steps + 1]))


def eleven_point_precision(hits: Bool, objects: int) -> float:
    """Returns the mean of the best precision from recall 0, 0.1, .. 1 on; `hits` (D,) are by descending score."""
    recall, precision = _curve(hits, objects)
    best = [precision[recall >= point].max(initial=0.0) for point in np.arange(0.0, 1.1, 0.1)]
    return float(sum(best) / len(best))


def _score(hits: Bool, objects: int, rule: str) -> float:
    if objects == 0:
        return NO_OBJECTS
    return area_precision(hits, objects) if rule == "area" else eleven_point_precision(hits, objects)


def _curve(hits: Bool, objects: int) -> tuple[Float64, Float64]:
    right = np.cumsum(hits)
    return right / objects, right / np.arange(1, len(hits) + 1)


def _mark_hits(results: DetectionResults, label: int, overlap: float) -> tuple[Bool, int]:
    """Returns whether each detection of a class that counts is right, best first, and how many objects there are to find."""
    rows = np.flatnonzero(results.classes == label)
    rows = rows[np.argsort(-results.scores[rows], kind="stable")]
    objects = sum(int(np.count_nonzero((entry.classes == label) & ~entry.crowd)) for entry in results.entries)
    verdicts = np.zeros(len(rows), np.int64)
    by_image: dict[int, list[int]] = defaultdict(list)
    for place, image in enumerate(results.images[rows].tolist()):
        by_image[image].append(place)
    for image, places in by_image.items():
        verdicts[places] = _judge(results.entries[image], label, results.boxes_xywh[rows[places]], overlap)
    counted = verdicts != _IGNORED
    return (verdicts == _RIGHT)[counted], objects


_WRONG, _RIGHT, _IGNORED = 0, 1, 2


def _judge(entry: RoidbEntry, label: int, boxes_xywh: Float64, overlap: float) -> Int64:
    """Returns the verdict on each of a picture's detections of one class, best first."""
    chosen = entry.classes == label
    difficult: Sequence[bool] = entry.crowd[chosen].tolist()
    corners = boxes_xywh.copy()
    corners[:, 2:] += corners[:, :2] - 1
    verdicts = np.full(len(corners), _WRONG, np.int64)
    if not difficult:
        return verdicts
    ious = box_ious(corners.astype(np.float32), entry.boxes[chosen])
    taken = [False] * len(difficult)
    for place, (best, iou) in enumerate(zip(ious.argmax(axis=1).tolist(), ious.max(axis=1).tolist(), strict=True)):
        if iou <= overlap:
            continue
        if difficult[best]:
            verdicts[place] = _IGNORED
        elif not taken[best]:
            verdicts[place], taken[best] = _RIGHT, True
    return verdicts
