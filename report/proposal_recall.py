"""Average recall of proposals: how much of the ground truth the first 100 and 1000 boxes of each picture cover.

Detectron's measure. Ground truth and proposals of a picture are paired greedily, best overlap first, each at most once; recall at a
threshold is the share of ground truth whose pair overlaps at least that much; average recall is its mean over .50:.05:.95.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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


def measure_recall(results: ProposalResults, *, class_specific: bool = False) -> dict[str, float]:
    """Returns AR@100, ARs@100, ARm@100, ARl@100 and the same @1000, -1 where a range has no ground truth.

    Proposals go through the loader's rules first (clipped, without duplicates and slivers). `class_specific` gives each
    category the same weight: the mean, over the categories that have ground truth in the range, of their average recalls.
    Detectron's own class-specific numbers are off: it lists a picture's overlaps best first but its classes in box order (taken by position
    among the boxes left after crowds and areas), so that overlaps are credited to wrong classes. Here each stays with its box.
    """
    covered: dict[str, list[tuple[Float64, Int64]]] = {key: [] for key in recall_keys()}
    for entry, found in zip(results.entries, results.proposals, strict=True):
        ious = box_ious(select_proposals(found.boxes, entry, limit=0)[: max(LIMITS)], entry.boxes)
        for limit in LIMITS:
            for suffix, bounds in AREAS.items():
                covered[f"AR{suffix}@{limit}"].append(_cover(entry, ious[:limit], bounds))
    return {key: _summarise(pairs, class_specific=class_specific) for key, pairs in covered.items()}


def recall_keys() -> tuple[str, ...]:
    """Returns the metric names in the order of Detectron's copy-paste line."""
    return tuple(f"AR{suffix}@{limit}" for limit in LIMITS for suffix in AREAS)


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


def _summarise(covered: Sequence[tuple[Float64, Int64]], *, class_specific: bool) -> float:
    overlaps = np.concatenate([np.zeros(0), *(overlap for overlap, _ in covered)])
    classes = np.concatenate([np.zeros(0, np.int64), *(kinds for _, kinds in covered)])
    return mean_class_recall(overlaps, classes) if class_specific else average_recall(overlaps)
