"""Test-time augmentation: altered forms of a picture, what becomes of boxes in them, and how the answers are joined.

Source: the test-time augmentation of Detectron. Passes are given as data by a model's specification.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from roiline.core.boxes import box_areas
from roiline.core.errors import ModelError
from roiline.core.spec import Augmentation, BoxAugmentation, ImageRules, KeypointAugmentation, MaskAugmentation
from roiline.core.structures import Float32, Int64, UInt8
from roiline.infer.detection_rules import ScoredBoxes
from roiline.infer.pictures import open_cv2

COCO_FLIPPED = (0, 2, 1, 4, 3, 6, 5, 8, 7, 10, 9, 12, 11, 14, 13, 16, 15)
"""Which of COCO's 17 keypoints each one is in the mirrored picture."""

_SMALLEST_CHANCE = np.float32(1e-20)


@dataclass(frozen=True, slots=True)
class Pass:
    """Is one altered form of a picture: its width times `aspect`, then mirrored with `flip`, then brought to `scale` and `max_size`."""

    scale: int
    max_size: int
    aspect: float = 1.0
    flip: bool = False

    def image_rules(self, rules: ImageRules) -> ImageRules:
        """Returns the rules by which the altered picture becomes network input."""
        return replace(rules, scale=self.scale, max_size=self.max_size)

    def alter_picture(self, picture: UInt8) -> UInt8:
        """Returns the altered picture (H, W', 3)."""
        if self.aspect != 1.0:
            height, width = picture.shape[:2]
            picture = open_cv2().resize(picture, (self.altered_width(width), height))
        return np.ascontiguousarray(picture[:, ::-1]) if self.flip else picture

    def altered_width(self, width: int) -> int:
        """Returns the width of the altered picture in pixels."""
        return round(self.aspect * width)

    def alter_boxes(self, boxes: Float32, width: int, *, plus_one: float) -> Float32:
        """Moves boxes (..., 4) of a picture of `width` pixels to where they are in the altered picture."""
        stretched = _stretch(boxes, self.aspect)
        return _mirror(stretched, self.altered_width(width), plus_one) if self.flip else stretched

    def restore_boxes(self, boxes: Float32, width: int, *, plus_one: float) -> Float32:
        """Moves boxes (..., 4) of the altered picture back to the picture of `width` pixels."""
        upright = _mirror(boxes, self.altered_width(width), plus_one) if self.flip else boxes
        return _stretch(upright, 1.0 / self.aspect)

    def restore_masks(self, masks: Float32) -> Float32:
        """Turns masks (M, S, S) of the altered picture back."""
        return masks[:, :, ::-1] if self.flip else masks

    def restore_keypoints(self, maps: Float32) -> Float32:
        """Turns keypoint maps (M, J, S, S) of the altered picture back: left and right change places.

        Raises:
            ModelError: the keypoints are not COCO's, of which alone it is known what is left and right.
        """
        if not self.flip:
            return maps
        if maps.shape[1] != len(COCO_FLIPPED):
            raise ModelError(
                f"test-time augmentation: mirrored pictures need COCO's {len(COCO_FLIPPED)} keypoints, the model has {maps.shape[1]}; "
                "export it without TEST.KPS_AUG's flips"
            )
        return maps[:, COCO_FLIPPED, :, ::-1]


def _stretch(boxes: Float32, factor: float) -> Float32:
    if factor == 1.0:
        return boxes
    stretched: Float32 = boxes * np.array([factor, 1.0, factor, 1.0], np.float32)
    return stretched


def _mirror(boxes: Float32, width: int, plus_one: float) -> Float32:
    mirrored = boxes.copy()
    mirrored[..., 0] = np.float32(width) - boxes[..., 2] - np.float32(plus_one)
    mirrored[..., 2] = np.float32(width) - boxes[..., 0] - np.float32(plus_one)
    return mirrored


def identity_pass(rules: ImageRules) -> Pass:
    """Returns the pass that alters nothing."""
    return Pass(rules.scale, rules.max_size)


def list_passes(augmentation: Augmentation, rules: ImageRules) -> tuple[Pass, ...]:
    """Returns the passes beside the picture itself, in the original's order: mirrored, scales, aspect ratios."""
    plain = [replace(identity_pass(rules), flip=True)] if augmentation.h_flip else []
    for scale in augmentation.scales:
        plain += _with_flip(Pass(scale, augmentation.max_size), augmentation.scale_h_flip)
    for aspect in augmentation.aspect_ratios:
        plain += _with_flip(Pass(rules.scale, rules.max_size, aspect), augmentation.aspect_ratio_h_flip)
    return tuple(plain)


def _with_flip(single: Pass, flip: bool) -> list[Pass]:
    return [single, replace(single, flip=True)] if flip else [single]


def join_boxes(altered: Sequence[ScoredBoxes], own: ScoredBoxes, rule: BoxAugmentation) -> ScoredBoxes:
    """Joins what the passes and the picture itself gave, boxes already restored.

    Raises:
        ModelError: a mean is asked of passes that have different proposals.
    """
    every = [*altered, own]
    if "AVG" in (rule.scores, rule.coordinates) and len({scored.scores.shape for scored in every}) > 1:
        raise ModelError(
            "test-time augmentation: AVG joins passes over the same proposals, and this model makes its own in every pass; "
            "export it with TEST.BBOX_AUG.SCORE_HEUR and COORD_HEUR UNION"
        )
    scores = _join_rows([scored.scores for scored in every], rule.scores)
    return ScoredBoxes(scores, _join_rows([scored.boxes for scored in every], rule.coordinates))


def _join_rows(rows: Sequence[Float32], how: str) -> Float32:
    if how == "UNION":
        return np.concatenate(rows)
    return rows[-1] if how == "ID" else np.asarray(np.mean(rows, axis=0, dtype=np.float32))


def join_masks(masks: Sequence[Float32], rule: MaskAugmentation) -> Float32:
    """Joins probabilities (M, S, S) of several passes."""
    stacked = np.stack(masks)
    if rule.join == "SOFT_MAX":
        return np.asarray(stacked.max(axis=0))
    if rule.join == "SOFT_AVG":
        return np.asarray(stacked.mean(axis=0))
    with np.errstate(divide="ignore", over="ignore"):
        logits = -np.log((np.float32(1) - stacked) / np.maximum(stacked, _SMALLEST_CHANCE))
        return np.asarray(np.float32(1) / (np.float32(1) + np.exp(-logits.mean(axis=0))))


def join_keypoints(
    maps: Sequence[Float32], passes: Sequence[Pass], boxes: Float32, rule: KeypointAugmentation, *, plus_one: float
) -> Float32:
    """Joins maps (M, J, S, S) of several passes; the first pass is the picture itself.

    With `rule.by_size` boxes (M, 4) smaller than the threshold leave out passes of a smaller scale than the first one's, the others those
    of a larger scale.
    """
    stacked = np.stack(maps)
    if not rule.by_size:
        return _join_maps(stacked, rule)
    base = passes[0].scale
    scales: Int64 = np.array([one.scale for one in passes])
    small = box_areas(boxes, plus_one=plus_one) < rule.area_thresh
    joined: Float32 = np.empty_like(stacked[0])
    for row, is_small in enumerate(small):
        fitting = scales >= base if is_small else scales <= base
        joined[row] = _join_maps(stacked[fitting, row], rule)
    return joined


def _join_maps(stacked: Float32, rule: KeypointAugmentation) -> Float32:
    return np.asarray(stacked.max(axis=0) if rule.join == "HM_MAX" else stacked.mean(axis=0))
