"""Mask paste: small masks of detections into the picture, as run lengths. It runs on the host, so there is a numpy form only.

Conventions, by name:

`detectron`: the mask gets a frame of one zero on every side and the box grows with it about its centre, by (M + 2) / M; corners are cut to
whole pixels toward zero; the framed mask is resized bilinearly to the box (inclusive corners, at least one pixel); a pixel is foreground
above the threshold (He et al., Mask R-CNN, 2017, as Detectron does it).

`detectron2`: the box is taken as it is; the centre of every pixel is looked up in the mask bilinearly, with zeros around it; a pixel is
foreground at the threshold and above.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias, get_args

import numpy as np

from roiline.core.errors import DataError
from roiline.core.rle import encode_crop
from roiline.core.structures import Bool, Float32, Int32
from roiline.ops.mask_paste.sampled import sample_mask

PasteConvention: TypeAlias = Literal["detectron", "detectron2"]


class Crop(NamedTuple):
    """Is the part of a picture that a mask can reach: its pixels (h, w), and the row and column of the first one."""

    pixels: Bool
    top: int
    left: int


def paste_masks(
    masks: Float32,
    boxes: Float32,
    height: int,
    width: int,
    *,
    threshold: float,
    convention: PasteConvention = "detectron",
) -> list[bytes]:
    """Returns COCO's compressed run lengths of D masks in a picture of `height` x `width` pixels.

    `masks` (D, M, M) float32 are foreground probabilities, `boxes` (D, 4) float32 the boxes that they fill, in pixels of the picture. One
    mask is held at a time, and no more of it than its box.

    Raises:
        DataError: masks and boxes do not belong together, a box is not finite, or the convention is unknown.
    """
    if convention not in get_args(PasteConvention):
        raise DataError(f"pasting masks: the convention is `detectron2` or `detectron`, not {convention!r}")
    if masks.ndim != 3 or masks.shape[1] != masks.shape[2] or boxes.shape != (len(masks), 4):
        raise DataError(
            f"pasting masks: expected masks (D, M, M) and boxes (D, 4), got {masks.shape} and {boxes.shape}"
        )
    if not np.isfinite(boxes).all():
        raise DataError("pasting masks: a box is not finite")
    if convention == "detectron2":
        return [
            encode_crop(*_paste_sampled(mask, box, height, width, threshold), height, width)
            for mask, box in zip(masks, boxes, strict=True)
        ]
    corners = grow_boxes(boxes, masks.shape[1])
    return [
        encode_crop(*paste_mask(mask, box, height, width, threshold=threshold), height, width)
        for mask, box in zip(masks, corners, strict=True)
    ]


def _paste_sampled(mask: Float32, box: Float32, height: int, width: int, threshold: float) -> Crop:
    if not (box[2:] > box[:2]).all():
        return Crop(np.zeros((0, 0), np.bool_), 0, 0)
    pixels, top, left = sample_mask(mask, box, height, width)
    return Crop(pixels >= np.float32(threshold), top, left)


def grow_boxes(boxes: Float32, resolution: int) -> Int32:
    """Returns (D, 4) int32 boxes of masks with a frame of one cell, corners cut toward zero."""
    scale = np.float32((resolution + 2.0) / resolution)
    half = (boxes[:, 2:] - boxes[:, :2]) * np.float32(0.5) * scale
    centre = (boxes[:, 2:] + boxes[:, :2]) * np.float32(0.5)
    return np.concatenate([centre - half, centre + half], axis=1).astype(np.int32)


def paste_mask(mask: Float32, box: Int32, height: int, width: int, *, threshold: float) -> Crop:
    """Returns the part of a mask (M, M) with its grown box (4,) that lies in the picture."""
    import cv2

    x1, y1, x2, y2 = (int(corner) for corner in box)
    left, top = max(x1, 0), max(y1, 0)
    right, bottom = min(x2 + 1, width), min(y2 + 1, height)
    if right <= left or bottom <= top:
        return Crop(np.zeros((0, 0), np.bool_), 0, 0)
    resized = cv2.resize(np.pad(mask, 1), (max(x2 - x1 + 1, 1), max(y2 - y1 + 1, 1)))
    inside = resized[top - y1 : bottom - y1, left - x1 : right - x1]
    return Crop(inside > np.float32(threshold), top, left)
