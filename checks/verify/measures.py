"""What a comparison finds: how far tensors are apart, which boxes have no partner, and the first stage that leaves its tolerance."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roiline.core.boxes import box_ious
from roiline.core.spec import Precision
from roiline.core.structures import Bool, Float32, Int64

SAME_BOX = 0.99
"""The overlap from which two boxes are one box."""
_WIDER = 2.0
"""Boxes are compared two pixels wider: one whose inclusive corners are a pixel the wrong way round has an area too."""
_ROWS_TOGETHER = 256
_MANY = 10
_SMALLEST = float(np.finfo(np.float32).tiny)


@dataclass(frozen=True, slots=True)
class Tolerances:
    """Is what may differ.

    `tensor`: the largest difference of a tensor over its largest absolute value; `input`: likewise of the network's input. `unmatched`:
    the share of boxes without a partner of the same class (overlap of 0.99, scores within `score`) where both sides are given the same
    numbers; `whole`: where each made its own; `engine`: likewise of another engine, whose last bits differ. `maps`: as `tensor`, for
    masks and heatmaps of boxes that each side found itself.
    """

    tensor: float
    input: float
    score: float
    unmatched: float
    whole: float
    engine: float
    maps: float


TOLERANCES: Mapping[Precision, Tolerances] = {
    "fp32": Tolerances(tensor=1e-4, input=1e-3, score=1e-3, unmatched=0.01, whole=0.03, engine=0.1, maps=1e-2),
    "fp16": Tolerances(tensor=2e-2, input=1e-3, score=2e-2, unmatched=0.05, whole=0.1, engine=0.2, maps=0.1),
    "bf16": Tolerances(tensor=1e-1, input=1e-3, score=1e-1, unmatched=0.1, whole=0.2, engine=0.3, maps=0.3),
    "int8": Tolerances(tensor=4e-1, input=1e-3, score=2e-1, unmatched=0.2, whole=0.4, engine=0.5, maps=0.6),
}
"""By the precision of the model's layers; beyond fp32 they say "no worse than such a model is", not "the same"."""


WEIGHT_TOLERANCE = 1e-6
"""Parameters of an fp32 model are those of the checkpoint, affine channels folded in: as a tensor."""


@dataclass(frozen=True, slots=True)
class Measure:
    """Is the comparison of one thing on one picture.

    `error` is what `tolerance` bounds; `absolute` is the largest difference in its own unit. `note` says in words what is wrong.
    """

    stage: str
    name: str
    picture: int
    shape: tuple[int, ...]
    absolute: float
    error: float
    tolerance: float
    note: str = ""

    @property
    def passed(self) -> bool:
        """Whether it is within its tolerance; what is no number is not."""
        return self.error <= self.tolerance


@dataclass(frozen=True, slots=True)
class StageResult:
    """Is all measures of one stage, over all pictures."""

    name: str
    measures: tuple[Measure, ...]

    @property
    def passed(self) -> bool:
        """Whether all of them are within their tolerance."""
        return all(measure.passed for measure in self.measures)

    @property
    def worst(self) -> Measure:
        """Is the one that is furthest out, measured by its tolerance."""
        return max(self.measures, key=lambda one: np.inf if np.isnan(one.error) else one.error / one.tolerance)


def gather_stages(measures: Iterable[Measure]) -> tuple[StageResult, ...]:
    """Returns the measures by stage, in the order in which stages first come."""
    stages: dict[str, list[Measure]] = {}
    for measure in measures:
        stages.setdefault(measure.stage, []).append(measure)
    return tuple(StageResult(name, tuple(found)) for name, found in stages.items())


def measure_tensor(
    stage: str, name: str, picture: int, expected: NDArray[Any], got: NDArray[Any], tolerance: float
) -> Measure:
    """Compares two tensors; the error is the largest difference over the largest absolute value that is expected.

    What is no number must be none on both sides: a checkpoint may hold such values.
    """
    if expected.size == got.size and _without_ones(expected) == _without_ones(got):
        one, other = (values.astype(np.float64).reshape(-1) for values in (expected, got))
        finite = np.isfinite(one)
        if not np.array_equal(finite, np.isfinite(other)):
            note = "it has values that are no numbers where none are expected, or the other way round"
            return Measure(stage, name, picture, expected.shape, np.inf, np.inf, tolerance, note)
        absolute = float(np.abs(one[finite] - other[finite]).max(initial=0.0))
        largest = float(np.abs(one[finite]).max(initial=0.0))
        error = absolute / max(largest, _SMALLEST) if absolute else 0.0
        return Measure(stage, name, picture, expected.shape, absolute, error, tolerance)
    note = f"its shape is {got.shape}, expected {expected.shape}"
    return Measure(stage, name, picture, expected.shape, np.inf, np.inf, tolerance, note)


def _without_ones(array: NDArray[Any]) -> tuple[int, ...]:
    return tuple(size for size in array.shape if size != 1)


@dataclass(frozen=True, slots=True)
class BoxRows:
    """Is boxes (n, 4) with their scores (n,) and classes (n,)."""

    boxes: Float32
    scores: Float32
    classes: Int64


def match_boxes(expected: BoxRows, got: BoxRows, score_tolerance: float) -> Int64:
    """Returns (n,) for every expected box the row of its partner, -1 where it has none; no row is taken twice.

    Partners have one class, overlap by `SAME_BOX` and score the same within the tolerance; of several the nearest in score is taken.
    """
    partner = np.full(len(expected.scores), -1, np.int64)
    free: Bool = np.ones(len(got.scores), np.bool_)
    for start in range(0, len(partner), _ROWS_TOGETHER):
        rows = slice(start, start + _ROWS_TOGETHER)
        apart = np.abs(expected.scores[rows, None] - got.scores[None])
        overlaps = box_ious(expected.boxes[rows], got.boxes, plus_one=_WIDER)
        alike = (overlaps >= SAME_BOX) & (apart <= score_tolerance)
        alike &= expected.classes[rows, None] == got.classes[None]
        for row in range(len(alike)):
            choices = np.flatnonzero(alike[row] & free)
            if len(choices):
                corners = np.abs(got.boxes[choices] - expected.boxes[start + row]).max(axis=1)
                chosen = choices[np.argmin(apart[row, choices] + corners)]
                partner[start + row], free[chosen] = chosen, False
    return partner


def measure_boxes(
    stage: str,
    picture: int,
    expected: BoxRows,
    got: BoxRows,
    *,
    score: float,
    unmatched: float,
    name: str = "boxes",
    one_may_flip: bool = False,
) -> Measure:
    """Compares two sets of boxes; the error is the share of either that has no partner in the other.

    `one_may_flip`: one of many may lie so near to a threshold that rounding decides on it.
    """
    partner = match_boxes(expected, got, score)
    pairs = partner >= 0
    missing, extra = int((~pairs).sum()), len(got.scores) - int(pairs.sum())
    most = max(len(expected.scores), len(got.scores))
    absolute = float(np.abs(expected.boxes[pairs] - got.boxes[partner[pairs]]).max(initial=0.0))
    note = f"{missing} of {len(partner)} expected boxes are missing, {extra} of {len(got.scores)} were not expected"
    error = max(missing, extra) / most if most else 0.0
    if one_may_flip and most >= _MANY:
        unmatched = max(unmatched, 1 / most)
    return Measure(stage, name, picture, (len(partner),), absolute, error, unmatched, note if missing or extra else "")


def measure_settings(stage: str, expected: Mapping[str, object], got: Mapping[str, object]) -> Measure:
    """Compares settings by name; the error is how many differ."""
    differing = [name for name in expected if expected[name] != got.get(name)]
    note = "; ".join(f"{name} is {got.get(name)!r}, expected {expected[name]!r}" for name in differing)
    count = float(len(differing))
    return Measure(stage, "settings", -1, (len(expected),), count, count, 0.5, note)


def first_failure(stages: Sequence[StageResult]) -> StageResult | None:
    """Returns the first stage that leaves its tolerance."""
    return next((stage for stage in stages if not stage.passed), None)
