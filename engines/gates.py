"""Gates: what an engine must show before it is believed. Pure checks over anything that runs feeds and gives outputs.

A gate returns what it measured, for the passport, or raises. Tensors of pictures are compared by the model's own seams: boxes, scores,
classes and masks, row by row up to a count. Two lists of boxes agree if each box of one has its own box in the other of the
same class, near it and of like score; the order of rows that score alike is nobody's business.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np

from roiline.core.errors import EngineError
from roiline.core.spec import ModelSpec
from roiline.engines.protocol import Tensor

Feeds: TypeAlias = Mapping[str, Tensor]
Outputs: TypeAlias = Mapping[str, Tensor]


class Runner(Protocol):
    """Is what gates run: an engine."""

    def run(self, feeds: Feeds) -> dict[str, Tensor]:
        """Runs once."""


class GateError(EngineError):
    """Says which gate an engine did not pass, and what was found."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Is how near two engines must be.

    Boxes in pixels of the original picture, scores, a mask's probabilities on average, and the share of rows that may have no partner.

    A row near a threshold may be there in one engine and not in the other, the more so in lower precision.
    """

    box_px: float
    score: float
    mask: float
    unmatched: float


BOUNDS: Mapping[str, Bounds] = {
    "fp32": Bounds(box_px=0.5, score=1e-3, mask=0.01, unmatched=0.01),
    "fp16": Bounds(box_px=3.0, score=0.03, mask=0.03, unmatched=0.05),
    "bf16": Bounds(box_px=6.0, score=0.08, mask=0.08, unmatched=0.15),
    "int8": Bounds(box_px=10.0, score=0.15, mask=0.12, unmatched=0.25),
}
"""Bounds of each precision against ONNX Runtime in the same precision's file."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Is the answer for one picture: boxes (n, 4), scores (n,), classes (n,), zeros where the model has none, and masks (n, S, S) or None.

    Of a classifier, the scores are the probabilities of its classes, and boxes are zeros.
    """

    boxes: Tensor
    scores: Tensor
    classes: Tensor
    masks: Tensor | None = None


def read_rows(outputs: Outputs, spec: ModelSpec) -> list[Rows]:
    """Returns the answer for each picture, from the seam of classes, detections or proposals that the outputs have.

    Raises:
        GateError: they have none.
    """
    for name in spec.seams.get("classification", ()):
        if name in outputs:
            return [
                Rows(np.zeros((len(row), 4), np.float32), row, np.arange(len(row), dtype=np.int64))
                for row in outputs[name]
            ]
    seams = (spec.seams.get(seam, ()) for seam in ("detections", "proposals"))
    names = next((seam for seam in seams if seam and set(seam) <= set(outputs)), None)
    if names is None:
        raise GateError("the engine gives no classes, detections or proposals, so there is nothing to compare")
    *tensors, counts = (outputs[name] for name in names)
    masks = next((outputs[name] for name in spec.seams.get("masks", ()) if name in outputs), None)
    ends = np.cumsum(counts)
    rows = []
    for picture, count in enumerate(counts):
        boxes, scores, *classes = (tensor[picture, : int(count)] for tensor in tensors)
        own = None if masks is None else masks[int(ends[picture] - count) : int(ends[picture])]
        rows.append(Rows(boxes, scores, classes[0] if classes else np.zeros(len(scores), np.int64), own))
    return rows


def check_scores(outputs: Outputs, spec: ModelSpec) -> str:
    """Checks that all boxes are finite and all scores numbers in [0, 1]; proposals that are ranked by logits may have any score.

    Raises:
        GateError: some are not.
    """
    any_score = not set(spec.seams.get("detections", ())) & set(outputs)
    total = 0
    for picture, rows in enumerate(read_rows(outputs, spec)):
        total += len(rows.scores)
        inside = np.isfinite(rows.scores) & (any_score | ((rows.scores >= 0) & (rows.scores <= 1)))
        if not inside.all() or not np.isfinite(rows.boxes).all():
            worst = rows.scores[~inside][:3].tolist() or rows.boxes[~np.isfinite(rows.boxes).all(axis=1)][:1].tolist()
            raise GateError(f"picture {picture}: scores lie in [0, 1] and boxes are finite; the engine gives {worst}")
    return f"{total} rows"


def check_equal_rows(engine: Runner, feeds: Feeds, spec: ModelSpec) -> str:
    """Checks that a batch of one picture over and over gives one answer over and over, and that of mixed neighbours the same one.

    `feeds` holds a batch of at least two different pictures of one shape.

    Raises:
        GateError: an answer depends on the row or on its neighbours.
    """
    images = _count(feeds)
    answers = read_rows(engine.run(take_rows(feeds, [0] * images)), spec)
    for row, answer in enumerate(answers[1:], start=1):
        _expect_same(answers[0], answer, f"rows 0 and {row} of a batch of one picture")
    for turn in range(1, images):
        order = [(row + turn) % images for row in range(images)]
        place = order.index(0)
        moved = read_rows(engine.run(take_rows(feeds, order)), spec)[place]
        _expect_same(answers[0], moved, f"a picture in row 0 among its like, and in row {place} among others")
    return f"{images} rows, {images} orders"


def check_batch_one(engine: Runner, feeds: Feeds, spec: ModelSpec, bounds: Bounds) -> str:
    """Checks that a batch gives what its pictures give one by one; other kernels may run then, so within bounds.

    Raises:
        GateError: it does not.
    """
    together = read_rows(engine.run(feeds), spec)
    alone = [read_rows(engine.run(take_rows(feeds, [row])), spec)[0] for row in range(_count(feeds))]
    return _compare_all(alone, together, bounds, "one by one", "in a batch")


def check_parity(engine: Runner, reference: Runner, batches: Sequence[Feeds], spec: ModelSpec, bounds: Bounds) -> str:
    """Checks that an engine answers as a reference does.

    Raises:
        GateError: it does not.
    """
    expected = [rows for feeds in batches for rows in read_rows(reference.run(feeds), spec)]
    got = [rows for feeds in batches for rows in read_rows(engine.run(feeds), spec)]
    return _compare_all(expected, got, bounds, "ONNX Runtime", "the engine")


def run_gate(name: str, skipped: Sequence[str], gate: Callable[[], str]) -> str:
    """Runs a gate, or returns `skipped`; what it raises names it.

    Raises:
        GateError: the gate is not passed.
    """
    if name in skipped:
        return "skipped"
    try:
        return f"passed: {gate()}"
    except GateError as error:
        raise GateError(f"gate `{name}`: {error}; --skip-gate {name} goes on without it") from error


def _compare_all(expected: Sequence[Rows], got: Sequence[Rows], bounds: Bounds, one: str, other: str) -> str:
    """Compares answers picture by picture, and the share of rows without a partner over all."""
    partners = [match_rows(first, second, bounds) for first, second in zip(expected, got, strict=True)]
    total = sum(len(first.scores) + len(second.scores) for first, second in zip(expected, got, strict=True))
    matched = sum(len(pairs) for pairs in partners)
    lost = 1 - 2 * matched / total if total else 0.0
    if lost > bounds.unmatched:
        counts = ", ".join(f"{len(a.scores)}/{len(b.scores)}" for a, b in zip(expected[:8], got[:8], strict=True))
        raise GateError(
            f"{100 * lost:.1f} % of the rows have no partner within {bounds.box_px} pixels and {bounds.score} of score (at most "
            f"{100 * bounds.unmatched:.0f} % may); rows {one} / {other}: {counts}"
        )
    box, score, mask = _largest_differences(expected, got, partners)
    if mask > bounds.mask:
        raise GateError(f"a mask differs by {mask:.3f} a pixel on average (at most {bounds.mask} may it)")
    return (
        f"{matched} rows matched, {100 * lost:.2f} % without a partner, boxes within {box:.3g} px, scores within {score:.2g}, "
        f"masks within {mask:.2g} on average"
    )


def match_rows(expected: Rows, got: Rows, bounds: Bounds) -> list[tuple[int, int]]:
    """Returns pairs (row, row) of boxes of one class within bounds, nearest first, each row once."""
    if not len(expected.scores) or not len(got.scores):
        return []
    apart = np.abs(expected.boxes[:, None] - got.boxes[None]).max(axis=2)
    scored = np.abs(expected.scores[:, None] - got.scores[None])
    fits = (apart <= bounds.box_px) & (scored <= bounds.score) & (expected.classes[:, None] == got.classes[None])
    first, second = np.nonzero(fits)
    order = np.argsort(apart[first, second] / bounds.box_px + scored[first, second] / bounds.score, kind="stable")
    taken: tuple[set[int], set[int]] = (set(), set())
    pairs = []
    for row, partner in zip(first[order].tolist(), second[order].tolist(), strict=True):
        if row not in taken[0] and partner not in taken[1]:
            taken[0].add(row)
            taken[1].add(partner)
            pairs.append((row, partner))
    return pairs


def _largest_differences(
    expected: Sequence[Rows], got: Sequence[Rows], partners: Sequence[Sequence[tuple[int, int]]]
) -> tuple[float, float, float]:
    """Returns the largest difference of a coordinate and of a score, and the largest mean difference of a mask, over all pairs."""
    boxes, scores, masks = [0.0], [0.0], [0.0]
    for first, second, pairs in zip(expected, got, partners, strict=True):
        for row, partner in pairs:
            boxes.append(float(np.abs(first.boxes[row] - second.boxes[partner]).max()))
            scores.append(float(abs(first.scores[row] - second.scores[partner])))
            if first.masks is not None and second.masks is not None:
                masks.append(float(np.abs(first.masks[row] - second.masks[partner]).mean()))
    return max(boxes), max(scores), max(masks)


def _expect_same(first: Rows, second: Rows, what: str) -> None:
    if len(first.scores) != len(second.scores):
        raise GateError(f"{what}: {len(first.scores)} and {len(second.scores)} rows")
    for name in ("boxes", "scores", "classes"):
        one, other = getattr(first, name), getattr(second, name)
        if not np.array_equal(one, other):
            raise GateError(f"{what}: {name} differ by up to {np.abs(one - other).max():.3g}")


def _count(feeds: Feeds) -> int:
    return len(next(iter(feeds.values())))


def take_rows(feeds: Feeds, rows: Sequence[int]) -> dict[str, Tensor]:
    """Returns rows of feeds that have one a picture."""
    return {name: np.ascontiguousarray(tensor[list(rows)]) for name, tensor in feeds.items()}
