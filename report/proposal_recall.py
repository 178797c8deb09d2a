"""Average recall of proposals: how much of the ground truth the first 100 and 1000 boxes of each picture cover.

Detectron's measure. Ground truth and proposals of a picture are paired greedily, best overlap first, each at most once; recall at a
threshold is the share of ground truth whose pair overlaps at least that much; average recall is its mean over .50:.05:.95.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from roiline.core.boxes import box_ious
from roiline.core.structures import Bool, Float32, Float64, Int64, RoidbEntry
from roiline.infer.proposal_files import select_proposals
from roiline.report.result_columns import ProposalResults

LIMITS = (100, 1000)
AREAS: Mapping[str, tuple[float, float]] = {
    "": (0.0, 1e5**2),
    "s": (0.0, 32.0**2),
    "m": (32.0**2, 96.0**2),
    "l": (96.0**2, 1e5**2),
}
"""The suffix of each area range and its bounds in square pixels of the annotation's area, both inclusive."""

NO_GROUND_TRUTH = -1.0
_THRESHOLDS = np.arange(0.5, 0.95 + 1e-5, 0.05)


@dataclass(frozen=True, slots=True)
class RecallMetrics:
    """Is the average recall of proposals by AR@100, ARs@100, .., -1 where a range has no ground truth.

    `overall` is class-agnostic. `per_class` is that of each class's own objects, by contiguous class; `class_mean` is the mean over the
    classes that have any in the range.
    """

    overall: Mapping[str, float]
    class_mean: Mapping[str, float]
    per_class: Mapping[int, Mapping[str, float]]


def measure_recalls(results: ProposalResults, *, limits: Sequence[int] = LIMITS) -> RecallMetrics:
    """Measures average recall for each limit of proposals a picture and each range of areas: class-agnostic and class by class.

    Proposals go through the loader's rules first (clipped, without duplicates and slivers).
    Detectron's own class-specific numbers are off: it lists a picture's overlaps best first but its classes in box order (taken by position
    among the boxes left after crowds and areas), so that overlaps are credited to wrong classes. Here each stays with its box.
    """
    covered: dict[str, list[tuple[Float64, Int64]]] = {key: [] for key in recall_keys(limits)}
    for entry, found in zip(results.entries, results.proposals, strict=True):
        ious = box_ious(select_proposals(found.boxes, entry, limit=0)[: max(limits)], entry.boxes)
        for limit in limits:
            for suffix, bounds in AREAS.items():
                covered[f"AR{suffix}@{limit}"].append(_cover(entry, ious[:limit], bounds))
    joined = {key: _join(pairs) for key, pairs in covered.items()}
    present = sorted({label for _, classes in joined.values() for label in classes.tolist()})
    return RecallMetrics(
        {key: average_recall(overlaps) for key, (overlaps, _) in joined.items()},
        {key: mean_class_recall(*pair) for key, pair in joined.items()},
        {
            label: {key: average_recall(overlaps[classes == label]) for key, (overlaps, classes) in joined.items()}
            for label in present
        },
    )


def measure_recall(results: ProposalResults, *, class_specific: bool = False) -> dict[str, float]:
    """Returns Detectron's eight recalls, AR@100 to ARl@1000: class-agnostic, or with each category of the same weight."""
    recalls = measure_recalls(results)
    return dict(recalls.class_mean if class_specific else recalls.overall)


def recall_keys(limits: Sequence[int] = LIMITS) -> tuple[str, ...]:
    """Returns the metric names in the order of Detectron's copy-paste line."""
    return tuple(f"AR{suffix}@{limit}" for limit in limits for suffix in AREAS)


def average_recall(overlaps: Float64) -> float:
    """Returns the mean over the thresholds of the share of `overlaps` (G,) that reach them, -1 for no ground truth."""
    if len(overlaps) == 0:
        return NO_GROUND_TRUTH
    shares = [float((overlaps >= threshold).sum()) / len(overlaps) for threshold in _THRESHOLDS]
    return float(np.mean(shares))


def mean_class_recall(overlaps: Float64, classes: Int64) -> float:
    """Returns the mean of `average_recall` over the classes that occur in `classes` (G,), -1 where none does."""
    present = np.unique(classes)
    if len(present) == 0:
        return NO_GROUND_TRUTH
    return float(np.mean([average_recall(overlaps[classes == label]) for label in present]))


def pair_greedily(ious: Float32) -> Float64:
    """Returns for each of G ground truth boxes the overlap of its proposal, 0 for those left over, from `ious` (R, G).

    The pair with the highest overlap of all is taken first (the first proposal and then the first ground truth among equals), and both
    are out of the game.
    """
    rest = ious.astype(np.float64)
    overlaps = np.zeros(rest.shape[1])
    for _ in range(min(rest.shape)):
        best_rows = rest.argmax(axis=0)
        best = rest[best_rows, np.arange(rest.shape[1])]
        column = int(best.argmax())
        if best[column] <= 0:
            break
        overlaps[column] = best[column]
        rest[best_rows[column], :] = -1
        rest[:, column] = -1
    return overlaps


def _cover(entry: RoidbEntry, ious: Float32, bounds: tuple[float, float]) -> tuple[Float64, Int64]:
    kept: Bool = (entry.classes > 0) & ~entry.crowd & (entry.areas >= bounds[0]) & (entry.areas <= bounds[1])
    return pair_greedily(ious[:, kept]), entry.classes[kept].astype(np.int64)


def _join(covered: Sequence[tuple[Float64, Int64]]) -> tuple[Float64, Int64]:
    """Returns the overlaps and the classes of all objects of all pictures."""
    overlaps = np.concatenate([np.zeros(0), *(overlap for overlap, _ in covered)])
    classes = np.concatenate([np.zeros(0, np.int64), *(kinds for _, kinds in covered)])
    return overlaps, classes
