"""From what a model's heads say of detections to what a picture's own size decides: pasted masks, decoded keypoints."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from roiline.core.errors import ModelError
from roiline.core.spec import KeypointRules, ModelSpec
from roiline.core.structures import Detections, Float32, ImageId, Int64
from roiline.ops.keypoint_decode import decode_keypoints
from roiline.ops.mask_paste import paste_masks
from roiline.ops.oks_nms import nms_oks


def complete_detections(
    found: Detections, masks: Float32 | None, maps: Float32 | None, size_hw: Float32, spec: ModelSpec
) -> Detections:
    """Returns the detections of one picture with masks and keypoints.

    `masks` (D, S, S) are probabilities of each detection's class, `maps` (D, J, S, S) keypoint logits; None where the model has no
    such head. `size_hw` is the original picture's.

    Raises:
        ModelError: the model has a head and no rules for it.
    """
    completed = found
    if masks is not None:
        if spec.masks is None:
            raise ModelError("the model's specification has no rules for its masks; export the model again")
        height, width = (int(side) for side in size_hw)
        pasted = paste_masks(masks, found.boxes, height, width, threshold=spec.masks.threshold)
        completed = replace(completed, masks=tuple(pasted), size_hw=(height, width))
    if maps is not None:
        if spec.keypoints is None:
            raise ModelError("the model's specification has no rules for its keypoints; export the model again")
        completed = _add_keypoints(completed, maps, spec.keypoints, plus_one=float(spec.conventions.plus_one))
    return completed


def empty_detections(image_id: ImageId, spec: ModelSpec) -> Detections:
    """Returns the answer for a picture without detections, with the parts that the model has."""
    return Detections(
        image_id,
        np.zeros((0, 4), np.float32),
        np.zeros(0, np.float32),
        np.zeros(0, np.int64),
        masks=None if spec.masks is None else (),
        keypoints=None if spec.keypoints is None else np.zeros((0, 4, spec.keypoints.count), np.float32),
    )


def _add_keypoints(found: Detections, maps: Float32, rules: KeypointRules, *, plus_one: float) -> Detections:
    keypoints = decode_keypoints(maps, found.boxes, min_size=rules.min_size)
    completed = replace(found, keypoints=keypoints)
    if rules.nms_oks and len(keypoints):
        return select_rows(completed, nms_oks(keypoints, found.boxes, plus_one=plus_one))
    return completed


def select_rows(found: Detections, rows: Int64) -> Detections:
    """Returns the given rows of detections, in that order."""
    return replace(
        found,
        boxes=found.boxes[rows],
        scores=found.scores[rows],
        classes=found.classes[rows],
        masks=None if found.masks is None else tuple(found.masks[row] for row in rows),
        keypoints=None if found.keypoints is None else found.keypoints[rows],
    )


def split_rows(rows: Float32 | None, counts: Int64) -> list[Float32 | None]:
    """Splits rows that follow each other picture by picture; None for each where there are none at all."""
    if rows is None:
        return [None] * len(counts)
    return list(np.split(rows, np.cumsum(counts)[:-1]))
