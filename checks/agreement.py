"""Whether a model of lower precision still answers as the fp32 one does: the gate that a calibrated export must pass.

Both have answered the same pictures. Answers that matter are the confident ones: those that score at least half as much as the best
one of all. Each should have a counterpart in the other model's answers, and this in both directions; what collapsed (everything one
class, nothing found, scores gone) has none. It is no measure of quality: that is `roiline evaluate` on annotated pictures.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from roiline.core.boxes import box_ious
from roiline.core.errors import DataError, ExportError
from roiline.core.spec import ModelSpec
from roiline.core.structures import Float32, Int64
from roiline.export.activation_ranges import Answers
from roiline.export.precision import Verdict

LEAST_AGREEMENT = 0.8
LEAST_OF_A_CLASS = 0.5
_SAME_BOX = 0.5  # IoU
_CONFIDENT = 0.5  # of the best score
_NEAR = 0.25  # of the best score: what a counterpart has at least
_ENOUGH_OF_A_CLASS = 10


class _Scored(NamedTuple):
    """Is the scored boxes of one picture: (n, 4), (n,), and classes (n,), 0 for proposals."""

    boxes: Float32
    scores: Float32
    classes: Int64

    def above(self, score: float) -> _Scored:
        """Returns those with at least a score."""
        keep = self.scores >= score
        return _Scored(self.boxes[keep], self.scores[keep], self.classes[keep])


def judge_answers(spec: ModelSpec, expected: Sequence[Answers], got: Sequence[Answers]) -> Verdict:
    """Compares the answers of the fp32 model with those of the changed one.

    Raises:
        ExportError: they agree too little, or values are not finite.
        DataError: the fp32 model finds nothing on the pictures, so that nothing can be said.
    """
    _check_finite(got)
    if spec.tasks[-1] == "classification":
        return _judge_classes(spec, expected, got)
    before, after = (list(_scored(spec, answers)) for answers in (expected, got))
    best = max((float(found.scores.max(initial=0.0)) for found in before), default=0.0)
    if best <= 0:
        raise DataError(
            f"the fp32 model finds nothing on the {len(expected)} calibration pictures; give pictures such as the model was trained for"
        )
    kept = _count_matched(before, after, best)
    real = _count_matched(after, before, best)
    return _decide(spec, kept, real)


def _check_finite(got: Sequence[Answers]) -> None:
    bad = sorted({name for answers in got for name, array in answers.items() if not np.isfinite(array).all()})
    if bad:
        raise ExportError(f"the model of lower precision gives values that are not finite: {', '.join(bad)}")


def _scored(spec: ModelSpec, answers: Sequence[Answers]) -> Iterator[_Scored]:
    names = spec.seams[spec.tasks[-1]]
    for one in answers:
        boxes, scores = (one[name] for name in names[:2])
        (count,) = one[names[-1]]
        classes = one[names[2]] if len(names) > 3 else np.zeros(scores.shape, np.int64)
        yield _Scored(boxes[0, :count], scores[0, :count], classes[0, :count])


def _count_matched(asked: Sequence[_Scored], offered: Sequence[_Scored], best: float) -> Mapping[int, tuple[int, int]]:
    """Returns for each class how many confident answers there are, and how many of them have a counterpart."""
    counts: dict[int, tuple[int, int]] = {}
    for one, other in zip(asked, offered, strict=True):
        sure, near = one.above(_CONFIDENT * best), other.above(_NEAR * best)
        same = (box_ious(sure.boxes, near.boxes) >= _SAME_BOX) & (sure.classes[:, None] == near.classes)
        for label, matched in zip(sure.classes.tolist(), same.any(axis=1).tolist(), strict=True):
            total, found = counts.get(label, (0, 0))
            counts[label] = (total + 1, found + matched)
    return counts


def _decide(spec: ModelSpec, kept: Mapping[int, tuple[int, int]], real: Mapping[int, tuple[int, int]]) -> Verdict:
    shares = [
        sum(found for _, found in counts.values()) / max(sum(total for total, _ in counts.values()), 1)
        for counts in (kept, real)
    ]
    what = spec.tasks[-1]
    said = f"{shares[0]:.1%} of the fp32 model's confident {what} are found again, {shares[1]:.1%} of its own were there before"
    lost = [
        f"{_name(spec, label)} ({found} of {total})"
        for label, (total, found) in sorted(kept.items())
        if total >= _ENOUGH_OF_A_CLASS and found < LEAST_OF_A_CLASS * total
    ]
    if min(shares) < LEAST_AGREEMENT or lost:
        classes = f"; lost classes: {', '.join(lost)}" if lost else ""
        raise ExportError(
            f"the model of lower precision does not stand for the fp32 one: {said} (at least {LEAST_AGREEMENT:.0%} are needed){classes}. "
            "Calibrate on more pictures, such as the model will see, or take another precision"
        )
    return Verdict((f"on the calibration pictures {said}",), _warn_of_classes(spec, len(kept)))


def _warn_of_classes(spec: ModelSpec, seen: int) -> tuple[str, ...]:
    known = len(spec.class_names)
    if spec.tasks[-1] != "detections" or 2 * seen >= known:
        return ()
    return (f"the calibration pictures show {seen} of the model's {known} classes; how the others fare was not seen",)


def _judge_classes(spec: ModelSpec, expected: Sequence[Answers], got: Sequence[Answers]) -> Verdict:
    (name,) = spec.seams["classification"]
    before, after = (np.concatenate([one[name] for one in answers]).argmax(axis=1) for answers in (expected, got))
    share = float((before == after).mean())
    said = f"{share:.1%} of the pictures get the class that the fp32 model gives them"
    if share < LEAST_AGREEMENT:
        raise ExportError(
            f"the model of lower precision does not stand for the fp32 one: {said} (at least {LEAST_AGREEMENT:.0%} are needed)"
        )
    return Verdict((f"on the calibration pictures: {said}",))


def _name(spec: ModelSpec, label: int) -> str:
    return spec.class_names[label - 1] if 1 <= label <= len(spec.class_names) else f"class {label}"
