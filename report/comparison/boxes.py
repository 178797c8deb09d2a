"""The boxes of two results picture by picture: which are the same, how far matched ones differ, and which pictures differ most.

Boxes of one class are matched one to one by descending overlap, from an IoU of 0.5 on: what is left has no partner on the other side.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from roiline.core.boxes import box_ious
from roiline.core.structures import Float32, Float64, ImageId, Int64

MATCH_IOU = 0.5
MOST_IMAGES = 10


@dataclass(frozen=True, slots=True)
class LooseBoxes:
    """Is the boxes of one picture as a file has them: `boxes` (R, 4) corners, `scores` (R,), `classes` (R,) or category ids."""

    boxes: Float32
    scores: Float32
    classes: Int64


BoxesByImage: TypeAlias = Mapping[ImageId, LooseBoxes]


@dataclass(frozen=True, slots=True)
class ImageDifference:
    """Is how one picture differs: boxes without a partner on either side, and the largest differences of matched ones."""

    image_id: ImageId
    only_a: int
    only_b: int
    score: float
    corner_px: float


@dataclass(frozen=True, slots=True)
class Quantity:
    """Is how large the differences of all matched boxes are."""

    mean: float
    p99: float
    most: float


@dataclass(frozen=True, slots=True)
class BoxComparison:
    """Is all that differs between the boxes of two results; pictures of one side alone have no matches."""

    images: int
    images_only_a: int
    images_only_b: int
    images_equal: int
    boxes_a: int
    boxes_b: int
    matched: int
    scores: Quantity
    corners_px: Quantity
    least_iou: float
    most_different: tuple[ImageDifference, ...]

    @property
    def equal(self) -> bool:
        """Says whether both sides are the same to the last bit."""
        return self.images_equal == self.images and not self.images_only_a and not self.images_only_b


@dataclass(frozen=True, slots=True)
class Matches:
    """Is the matched boxes of one picture: rows of both sides, and their overlaps."""

    a: Int64
    b: Int64
    ious: Float64


_EMPTY = LooseBoxes(np.zeros((0, 4), np.float32), np.zeros(0, np.float32), np.zeros(0, np.int64))


def match_boxes(a: LooseBoxes, b: LooseBoxes) -> Matches:
    """Returns the boxes of one class that overlap most, each taken once, the best pair first."""
    ious = box_ious(a.boxes, b.boxes) if len(a.boxes) and len(b.boxes) else np.zeros((len(a.boxes), len(b.boxes)))
    ious = np.where(a.classes[:, None] == b.classes[None], ious, 0.0)
    rows, columns = np.nonzero(ious >= MATCH_IOU)
    # of equal overlaps those of the closest scores go together, so that repeated boxes find themselves
    apart = np.abs(a.scores[rows] - b.scores[columns])
    order = np.lexsort((apart, -ious[rows, columns]))
    free_a, free_b = np.ones(len(a.boxes), bool), np.ones(len(b.boxes), bool)
    pairs = []
    for place in order.tolist():
        row, column = int(rows[place]), int(columns[place])
        if free_a[row] and free_b[column]:
            free_a[row] = free_b[column] = False
            pairs.append((row, column))
    table = np.array(pairs, np.int64).reshape(-1, 2)
    return Matches(table[:, 0], table[:, 1], ious[table[:, 0], table[:, 1]].astype(np.float64))


def compare_boxes(a: BoxesByImage, b: BoxesByImage) -> BoxComparison:
    """Returns what differs; a picture without boxes may be left out of either side, where the other has it."""
    images = sorted({*a, *b}, key=lambda image: (isinstance(image, str), image))
    scores, corners, ious, differences = [], [], [], []
    equal = matched = 0
    for image in images:
        first, second = a.get(image, _EMPTY), b.get(image, _EMPTY)
        equal += _are_equal(first, second)
        found = match_boxes(first, second)
        matched += len(found.a)
        score = np.abs(first.scores[found.a].astype(np.float64) - second.scores[found.b])
        corner = np.abs(first.boxes[found.a].astype(np.float64) - second.boxes[found.b]).max(axis=1, initial=0.0)
        scores.append(score)
        corners.append(corner)
        ious.append(found.ious)
        differences.append(
            ImageDifference(
                image,
                len(first.boxes) - len(found.a),
                len(second.boxes) - len(found.b),
                float(score.max(initial=0.0)),
                float(corner.max(initial=0.0)),
            )
        )
    return BoxComparison(
        images=len(images),
        images_only_a=len({*a} - {*b}),
        images_only_b=len({*b} - {*a}),
        images_equal=equal,
        boxes_a=sum(len(one.boxes) for one in a.values()),
        boxes_b=sum(len(one.boxes) for one in b.values()),
        matched=matched,
        scores=_quantify(scores),
        corners_px=_quantify(corners),
        least_iou=float(np.concatenate([*ious, [1.0]]).min()),
        most_different=_choose_most_different(differences),
    )


def _are_equal(a: LooseBoxes, b: LooseBoxes) -> bool:
    return all(
        np.array_equal(first, second)
        for first, second in ((a.boxes, b.boxes), (a.scores, b.scores), (a.classes, b.classes))
    )


def _quantify(parts: list[Float64]) -> Quantity:
    values = np.sort(np.concatenate(parts)) if parts else np.zeros(0)
    if not values.size:
        return Quantity(0.0, 0.0, 0.0)
    p99 = values[max(0, int(np.ceil(0.99 * values.size)) - 1)]
    return Quantity(float(values.mean()), float(p99), float(values[-1]))


def _choose_most_different(differences: list[ImageDifference]) -> tuple[ImageDifference, ...]:
    """Returns the pictures with most boxes without a partner, then with the largest differences of scores, then of corners."""
    changed = [one for one in differences if one.only_a or one.only_b or one.score or one.corner_px]
    changed.sort(key=lambda one: (-(one.only_a + one.only_b), -one.score, -one.corner_px))
    return tuple(changed[:MOST_IMAGES])
