"""The numpy reference of RetinaNetCandidates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roiline.core.boxes import clip_boxes
from roiline.core.structures import Float32, Int64
from roiline.ops.box_coding import decode_boxes


def retinanet_candidates(
    *tensors: NDArray[Any],
    strides: Sequence[float],
    pre_nms_top_n: int,
    regress: int,
    network_frame: int,
    clip: int,
    first_class: int,
    size_offset: float,
    corner_offset: float,
    delta_clip: float,
) -> tuple[Float32, Float32, Int64, Int64]:
    """Returns boxes (N, M, 4), scores (N, M), classes (N, M) and levels (N, M); see the operator's description."""
    count = len(strides)
    cls_prob, bbox_pred = tensors[:count], tensors[count : 2 * count]
    anchors, im_info, im_size, *given = tensors[2 * count :]
    steps = given[0] if given else np.repeat(np.asarray(strides, np.float32)[:, None], 2, axis=1)
    boxes_of, scores_of, classes_of, levels_of = [], [], [], []
    for image, size_hw in enumerate(im_size):
        for level, stride in enumerate(steps):
            field, deltas, scores, classes = _select(
                cls_prob[level][image], bbox_pred[level][image], anchors[level], stride, pre_nms_top_n
            )
            if regress:
                field = decode_boxes(
                    field, deltas, size_offset=size_offset, corner_offset=corner_offset, delta_clip=delta_clip
                )
            frames = im_info[image], size_hw
            boxes_of.append(_place_in_picture(field, *frames, size_offset, in_network=network_frame, clip=clip))
            scores_of.append(scores)
            classes_of.append(classes + first_class)
            levels_of.append(np.full(len(scores), level, np.int64))
    images = len(im_size)
    return (
        np.concatenate(boxes_of).reshape(images, -1, 4),
        np.concatenate(scores_of).reshape(images, -1),
        np.concatenate(classes_of).reshape(images, -1),
        np.concatenate(levels_of).reshape(images, -1),
    )


def _place_in_picture(
    boxes: Float32, info: Float32, size_hw: Float32, size_offset: float, *, in_network: int, clip: int
) -> Float32:
    """Returns boxes (m, 4) in original pixels, clipped (if at all) to the picture in the one frame or the other."""
    if not in_network:
        boxes = boxes / info[2]
        return clip_boxes(boxes, float(size_hw[0]), float(size_hw[1]), plus_one=size_offset) if clip else boxes
    down, across = size_hw / info[:2]
    if clip:
        boxes = clip_boxes(boxes, float(info[0]), float(info[1]), plus_one=size_offset)
    return boxes * np.array([across, down, across, down], np.float32)


def _select(
    cls_prob: Float32, bbox_pred: Float32, anchors: Float32, stride: Float32, top_n: int
) -> tuple[Float32, Float32, Float32, Int64]:
    """Returns shifted anchors (m, 4), deltas (m, 4), scores (m,) and class columns (m,) of the best of one level of a picture."""
    channels, height, width = cls_prob.shape
    flat = cls_prob.reshape(-1)
    order = np.argsort(-flat, kind="stable")
    order = order[:top_n] if top_n > 0 else order
    anchor, column, y, x = np.unravel_index(order, (len(anchors), channels // len(anchors), height, width))
    shifts = np.stack([x, y, x, y], axis=1).astype(np.float32) * stride[[1, 0, 1, 0]]
    deltas = bbox_pred.reshape(len(anchors), 4, height, width)[anchor, :, y, x]
    return shifts + anchors[anchor], deltas, flat[order], column.astype(np.int64)
