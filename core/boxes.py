"""Box arithmetic that more than one room needs: forms, sizes, overlaps.

`plus_one` is 1.0 where corners are inclusive (Detectron: width = x2 - x1 + 1) and 0.0 where they are not.
"""

from __future__ import annotations

import numpy as np

from roiline.core.structures import Float32


def xyxy_from_xywh(boxes: Float32) -> Float32:
    """Returns (n, 4) boxes with inclusive corners from COCO's x, y, width, height: x2 = x1 + max(0, width - 1)."""
    corners = boxes.copy()
    corners[:, 2:] = boxes[:, :2] + np.maximum(0.0, boxes[:, 2:] - 1.0)
    return corners


def xywh_from_xyxy(boxes: Float32) -> Float32:
    """Returns (n, 4) boxes as COCO's x, y, width, height from inclusive corners: width = x2 - x1 + 1."""
    sized = boxes.copy()
    sized[:, 2:] = boxes[:, 2:] - boxes[:, :2] + 1
    return sized


def box_areas(boxes: Float32, *, plus_one: float = 1.0) -> Float32:
    """Returns the (n,) areas of (n, 4) boxes in square pixels."""
    areas: Float32 = (boxes[:, 2] - boxes[:, 0] + plus_one) * (boxes[:, 3] - boxes[:, 1] + plus_one)
    return areas


def clip_boxes(boxes: Float32, height: float, width: float, *, plus_one: float = 1.0) -> Float32:
    """Returns (..., 4) boxes moved into a picture: [0, width - plus_one] x [0, height - plus_one]."""
    limit = np.array([width, height, width, height], boxes.dtype) - boxes.dtype.type(plus_one)
    clipped: Float32 = np.maximum(np.minimum(boxes, limit), boxes.dtype.type(0))
    return clipped


def box_ious(first: Float32, second: Float32, *, plus_one: float = 1.0) -> Float32:
    """Returns the (n, k) intersection over union of (n, 4) and (k, 4) boxes, 0 where they do not overlap."""
    low = np.maximum(first[:, None, :2], second[None, :, :2])
    high = np.minimum(first[:, None, 2:], second[None, :, 2:])
    sides = np.maximum(high - low + np.float32(plus_one), 0)
    shared = sides[..., 0] * sides[..., 1]
    union = box_areas(first, plus_one=plus_one)[:, None] + box_areas(second, plus_one=plus_one)[None] - shared
    ious: Float32 = np.where(shared > 0, shared / np.where(shared > 0, union, 1), 0).astype(np.float32)
    return ious
