"""The numpy reference of BBoxTransform."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from roiline.core.boxes import clip_boxes
from roiline.core.structures import Float32
from roiline.ops.box_coding import decode_boxes


def bbox_transform(
    rois: Float32,
    deltas: Float32,
    im_info: Float32,
    *,
    weights: Sequence[float],
    apply_scale: int,
    size_offset: float,
    corner_offset: float,
    delta_clip: float,
) -> tuple[Float32, Float32]:
    """Returns boxes (T, 4m) and RoI counts (N,); see the operator's description."""
    image = rois[:, 0].astype(np.int64) if rois.shape[1] == 5 else np.zeros(len(rois), np.int64)
    boxes = np.empty((len(rois), deltas.shape[1] // 4, 4), np.float32)
    for index, (height, width, scale) in enumerate(im_info):
        here = image == index
        decoded = decode_boxes(
            rois[here, None, -4:] / scale,
            deltas[here].reshape(-1, boxes.shape[1], 4),
            weights=weights,
            size_offset=size_offset,
            corner_offset=corner_offset,
            delta_clip=delta_clip,
        )
        size = np.floor(height / scale + np.float32(0.5)), np.floor(width / scale + np.float32(0.5))
        clipped = clip_boxes(decoded, float(size[0]), float(size[1]), plus_one=size_offset)
        boxes[here] = clipped * scale if apply_scale else clipped
    return boxes.reshape(deltas.shape), np.bincount(image, minlength=len(im_info)).astype(np.float32)
