"""OKS NMS: of detections whose keypoints nearly agree, the most certain one stays. It runs on the host, so there is a numpy form only.

Object keypoint similarity (COCO): the mean over keypoints of exp(-d^2 / (2 v a)), d the distance, a the area of the more certain box,
v = (2 sigma)^2 of the keypoint.
"""

from __future__ import annotations

import numpy as np

from roiline.core.boxes import box_areas
from roiline.core.errors import DataError
from roiline.core.structures import Float32, Float64, Int64

COCO_SIGMAS: Float64 = (
    np.array([0.26, 0.25, 0.25, 0.35, 0.35, 0.79, 0.79, 0.72, 0.72, 0.62, 0.62, 1.07, 1.07, 0.87, 0.87, 0.89, 0.89])
    / 10
)
"""How far annotators scatter, in units of the object's size: COCO's 17 keypoints of a person, nose first."""

OKS_THRESH = 0.3
"""Detectron's fixed threshold of KRCNN.NMS_OKS."""


def nms_oks(
    keypoints: Float32,
    boxes: Float32,
    *,
    threshold: float = OKS_THRESH,
    sigmas: Float64 = COCO_SIGMAS,
    plus_one: float = 1.0,
) -> Int64:
    """Returns the rows that stay of keypoints (D, 4, J: x, y, logit, probability), by descending mean logit.

    A detection goes where its similarity to a more certain one is above the threshold. `boxes` (D, 4) are the detections' boxes.

    Raises:
        DataError: there are not as many keypoints as sigmas.
    """
    if keypoints.shape[2] != len(sigmas):
        raise DataError(
            f"OKS NMS is defined for {len(sigmas)} keypoints, the model has {keypoints.shape[2]}; set KRCNN.NMS_OKS to False"
        )
    areas = box_areas(boxes, plus_one=plus_one)
    order = np.argsort(keypoints[:, 2].mean(axis=1, dtype=np.float32))[::-1]
    kept: list[int] = []
    while order.size:
        best, rest = int(order[0]), order[1:]
        kept.append(best)
        similarity = compute_oks(keypoints[best], float(areas[best]), keypoints[rest], sigmas)
        order = rest[similarity <= threshold]
    return np.asarray(kept, np.int64)


def compute_oks(keypoints: Float32, area: float, others: Float32, sigmas: Float64) -> Float64:
    """Returns the similarity (n,) of keypoints (4, J) on an object of `area` square pixels with others (n, 4, J)."""
    offsets = (others[:, :2] - keypoints[None, :2]).astype(np.float64)
    errors = (offsets**2).sum(axis=1) / (2 * sigmas) ** 2 / (area + np.spacing(1)) / 2
    similarity: Float64 = np.exp(-errors).mean(axis=1)
    return similarity
