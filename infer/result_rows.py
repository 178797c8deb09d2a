"""The rows that an image has in results: those of its boxes, of its masks and of its keypoints, each with scores and classes of its own.

Masks and keypoints are apart from boxes, because combined models may give them for other detections than the boxes are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from roiline.core.structures import Classification, Detections, Float32, Int64, Result

Part: TypeAlias = Literal["masks", "keypoints"]
"""What detections can have beside boxes."""

_NO_SCORES = np.zeros(0, np.float32)
_NO_CLASSES = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class MaskRows:
    """Are the masks of one image: `scores` (M,), `classes` (M,), and M of COCO's compressed run lengths of `size_hw`."""

    scores: Float32
    classes: Int64
    counts: tuple[bytes, ...]
    size_hw: tuple[int, int]

    def __len__(self) -> int:
        return len(self.counts)

    def take(self, rows: Int64) -> MaskRows:
        """Returns the given rows, in the given order."""
        return MaskRows(self.scores[rows], self.classes[rows], tuple(self.counts[row] for row in rows), self.size_hw)


@dataclass(frozen=True, slots=True)
class KeypointRows:
    """Are the keypoints of one image: `scores` (M,) of the boxes, `classes` (M,), `points` (M, 4, J) x, y, logit, probability."""

    scores: Float32
    classes: Int64
    points: Float32

    def __len__(self) -> int:
        return len(self.points)

    def take(self, rows: Int64) -> KeypointRows:
        """Returns the given rows, in the given order."""
        return KeypointRows(self.scores[rows], self.classes[rows], self.points[rows])


NO_MASKS = MaskRows(_NO_SCORES, _NO_CLASSES, (), (0, 0))
NO_KEYPOINTS = KeypointRows(_NO_SCORES, _NO_CLASSES, np.zeros((0, 4, 0), np.float32))


@dataclass(frozen=True, slots=True)
class Rows:
    """Are the rows of one image: `boxes` (R, 4), `scores` (R,), `classes` (R,), the latter without rows for proposals.

    Of a classified picture there are `scores` alone, one a class.
    """

    boxes: Float32
    scores: Float32
    classes: Int64
    masks: MaskRows = NO_MASKS
    keypoints: KeypointRows = NO_KEYPOINTS

    def take(self, boxes: Int64, masks: Int64, keypoints: Int64) -> Rows:
        """Returns the given boxes, masks and keypoints, each in the given order."""
        return Rows(
            self.boxes[boxes],
            self.scores[boxes],
            self.classes[boxes],
            self.masks.take(masks),
            self.keypoints.take(keypoints),
        )


NO_ROWS = Rows(np.zeros((0, 4), np.float32), _NO_SCORES, _NO_CLASSES)


def rows_from_result(result: Result) -> Rows:
    """Returns the rows of one answer."""
    if isinstance(result, Classification):
        return Rows(NO_ROWS.boxes, result.scores, _NO_CLASSES)
    if not isinstance(result, Detections):
        return Rows(result.boxes, result.scores, _NO_CLASSES)
    masks, keypoints = NO_MASKS, NO_KEYPOINTS
    if result.masks is not None:
        owner = result.mask_rows or result
        masks = MaskRows(owner.scores, owner.classes, result.masks, owner.size_hw)
    if result.keypoints is not None:
        owner = result.keypoint_rows or result
        keypoints = KeypointRows(owner.scores, owner.classes, result.keypoints)
    return Rows(result.boxes, result.scores, result.classes, masks, keypoints)
