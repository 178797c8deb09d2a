"""Keypoint decode: heatmaps of detections into points of the picture. It runs on the host, so there is a numpy form only.

Every map is resized bicubically to the size of its box; the point is the centre of the cell with the greatest logit (the first one, row
by row), its probability the softmax over all cells there (He et al., Mask R-CNN, 2017, as Detectron does it).
"""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

import numpy as np

from roiline.core.errors import ConfigError, DataError
from roiline.core.structures import Float32, Float64

KeypointConfidence: TypeAlias = Literal["bbox", "logit", "prob"]
KEYPOINT_CONFIDENCES: tuple[KeypointConfidence, ...] = get_args(KeypointConfidence)

_LOGIT, _PROBABILITY = 2, 3
_MOST_CELLS_AT_ONCE = 1 << 24
_FEWEST_AT_ONCE = 2


def decode_keypoints(maps: Float32, boxes: Float32, *, min_size: int = 0, map_normalised: bool = False) -> Float32:
    """Returns (D, 4, J) float32 keypoints: rows x, y in pixels of the boxes' picture, logit, probability.

    `maps` (D, J, S, S) float32 logits, `boxes` (D, 4) float32. A map is never resized to less than `min_size` cells on a side. Of
    large boxes two resized maps are held at a time, else those of one detection. `map_normalised`: the probability is the greatest
    cell's exponential over the sum of those of the map as it was before resizing, which may exceed 1 (detectron2).

    Raises:
        DataError: maps and boxes do not belong together, or a box is not finite.
    """
    if maps.ndim != 4 or boxes.shape != (len(maps), 4):
        raise DataError(f"keypoints: expected maps (D, J, S, S) and boxes (D, 4), got {maps.shape} and {boxes.shape}")
    if not np.isfinite(boxes).all():
        raise DataError("keypoints: a box is not finite")
    keypoints = np.zeros((len(maps), 4, maps.shape[1]), np.float32)
    for rows, stack, box in zip(keypoints, maps, boxes, strict=True):
        extent = np.maximum(box[2:] - box[:2], np.float32(1))
        cells = np.maximum(np.ceil(extent).astype(np.int64), min_size)
        pixels = (extent / cells)[:, None]
        for joints in _group_joints(len(stack), int(cells[0]) * int(cells[1])):
            peaks = _find_peaks(stack[joints], int(cells[0]), int(cells[1]))
            rows[:2, joints] = (peaks[:2] + 0.5) * pixels + box[:2, None]
            rows[2:, joints] = peaks[2:]
        if map_normalised:
            with np.errstate(over="ignore"):  # a heatmap may rise far above what is left of it after resizing
                rows[_PROBABILITY] = 1 / np.exp(stack - rows[_LOGIT][:, None, None]).sum(axis=(1, 2))
    return keypoints


def _group_joints(joints: int, cells: int) -> list[slice]:
    """Returns the maps that are resized at once: all of them, as the original does, or two at a time where they are large.

    The last group then overlaps the one before, for OpenCV resizes single maps by another routine with other roundings.
    """
    if joints <= _FEWEST_AT_ONCE or joints * cells <= _MOST_CELLS_AT_ONCE:
        return [slice(0, joints)]
    starts = [min(start, joints - _FEWEST_AT_ONCE) for start in range(0, joints, _FEWEST_AT_ONCE)]
    return [slice(start, start + _FEWEST_AT_ONCE) for start in starts]


def _find_peaks(stack: Float32, width: int, height: int) -> Float64:
    """Returns (4, J): column, row, logit and probability of the greatest cell of maps (J, S, S) resized to `width` x `height` cells."""
    import cv2

    interleaved = np.ascontiguousarray(stack.transpose(1, 2, 0))
    resized = cv2.resize(interleaved, (width, height), interpolation=cv2.INTER_CUBIC).reshape(height, width, len(stack))
    peaks = np.empty((4, len(stack)))
    for joint in range(len(stack)):
        cells = np.ascontiguousarray(resized[:, :, joint])
        row, column = divmod(int(cells.argmax()), width)
        logit = cells[row, column]
        np.subtract(cells, logit, out=cells)
        np.exp(cells, out=cells)
        peaks[:, joint] = column, row, logit, 1 / cells.sum()
    return peaks


def score_keypoints(keypoints: Float32, box_scores: Float32, confidence: KeypointConfidence) -> Float64:
    """Returns the score (D,) of keypoints (D, 4, J) as the result file carries it, in double precision.

    `bbox`: the detection's score; `logit` and `prob`: the mean over the keypoints.

    Raises:
        ConfigError: the confidence is not one of these.
    """
    if confidence == "bbox":
        return box_scores.astype(np.float64)
    rows = {"logit": _LOGIT, "prob": _PROBABILITY}
    if confidence not in rows:
        raise ConfigError(
            f"keypoints: the confidence is one of {', '.join(KEYPOINT_CONFIDENCES)}, not {confidence!r}; "
            "set KRCNN.KEYPOINT_CONFIDENCE"
        )
    means: Float64 = keypoints[:, rows[confidence]].mean(axis=1, dtype=np.float64)
    return means
