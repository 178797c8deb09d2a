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
    found: Detections,
    masks: Float32 | None,
    maps: Float32 | None,
    size_hw: Float32,
    spec: ModelSpec,
    *,
    network_hw: Float32,
) -> Detections:
    """Returns the detections of one picture with masks and keypoints.

    `masks` (D, S, S) are probabilities of each detection's class, `maps` (D, J, S, S) keypoint logits; None where the model has no
    such head. `size_hw` is the original picture's, `network_hw` what the network was told of it.

    Raises:
        ModelError: the model has a head and no rules for it.
    """
    completed = found
    if masks is not None:
        if spec.masks is None:
            raise ModelError("the model's specification has no rules for its masks; export the model again")
        height, width = (int(side) for side in size_hw)
        pasted = paste_masks(
            masks, found.boxes, height, width, threshold=spec.masks.threshold, convention=spec.masks.paste
        )
        completed = replace(completed, masks=tuple(pasted), size_hw=(height, width))
    if maps is not None:
        if spec.keypoints is None:
            raise ModelError("the model's specification has no rules for its keypoints; export the model again")
        frames = (network_hw, size_hw) if spec.keypoints.network_frame else (size_hw, size_hw)
        completed = _add_keypoints(completed, maps, spec.keypoints, frames, plus_one=float(spec.conventions.plus_one))
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


def _add_keypoints(
    found: Detections, maps: Float32, rules: KeypointRules, frames: tuple[Float32, Float32], *, plus_one: float
) -> Detections:
    """Adds keypoints that are decoded in a frame of one (height, width), and brought to one of another."""
    boxes = move_boxes(found.boxes, frames[1], frames[0])
    keypoints = decode_keypoints(maps, boxes, min_size=rules.min_size, map_normalised=rules.map_normalised)
    if rules.network_frame:
        keypoints[:, :2] *= (frames[1] / frames[0])[::-1, None]
    completed = replace(found, keypoints=keypoints)
    if rules.nms_oks and len(keypoints):
        return select_rows(completed, nms_oks(keypoints, found.boxes, plus_one=plus_one))
    return completed


def move_boxes(boxes: Float32, from_hw: Float32, to_hw: Float32) -> Float32:
    """Returns boxes (D, 4) of a picture of one (height, width) in one of another; what lies on its border stays there exactly."""
    if (from_hw == to_hw).all():
        return boxes
    down, across = to_hw / from_hw
    moved: Float32 = boxes * np.array([across, down, across, down], np.float32)
    at_border = boxes[:, 2:] >= from_hw[::-1]
    moved[:, 2:] = np.where(at_border, to_hw[::-1], moved[:, 2:])
    return moved


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
