"""The numpy reference of DetectionOutput, in its three steps: decode, select per class, limit per picture."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from roiline.core.boxes import clip_boxes
from roiline.core.structures import Float32, Int64
from roiline.ops.box_coding import decode_boxes
from roiline.ops.suppression import pad_rows, suppress_boxes


def detection_output(
    rois: Float32,
    cls_prob: Float32,
    bbox_pred: Float32,
    im_info: Float32,
    im_size: Float32,
    roi_count: Int64,
    *,
    score_thresh: float,
    nms_thresh: float,
    max_dets: int,
    bbox_reg_weights: Sequence[float],
    class_agnostic: int,
    nms_inclusive: int,
    size_offset: float,
    corner_offset: float,
    delta_clip: float,
) -> tuple[Float32, Float32, Int64, Int64]:
    """Returns boxes (N, D, 4), scores (N, D), classes (N, D) and count (N,); see the operator's description."""
    boxes_of, scores_of, classes_of = [], [], []
    ends = np.cumsum(roi_count)
    for image, (start, end) in enumerate(zip(ends - roi_count, ends, strict=True)):
        boxes = decode_detections(
            rois[start:end, 1:] / im_info[image, 2],
            bbox_pred[start:end],
            im_size[image],
            classes=cls_prob.shape[1],
            bbox_reg_weights=bbox_reg_weights,
            class_agnostic=bool(class_agnostic),
            size_offset=size_offset,
            corner_offset=corner_offset,
            delta_clip=delta_clip,
        )
        picked = select_detections(
            boxes,
            cls_prob[start:end],
            score_thresh=score_thresh,
            nms_thresh=nms_thresh,
            inclusive=bool(nms_inclusive),
            plus_one=size_offset,
        )
        limited = limit_detections(*picked, max_dets=max_dets)
        boxes_of.append(limited[0])
        scores_of.append(limited[1])
        classes_of.append(limited[2].astype(np.float32))
    count = np.array([len(scores) for scores in scores_of], np.int64)
    classes = pad_rows(classes_of, 0.0).astype(np.int64)
    return pad_rows(boxes_of, 0.0), pad_rows(scores_of, -np.inf), classes, count


def decode_detections(
    boxes: Float32,
    bbox_pred: Float32,
    size_hw: Float32,
    *,
    classes: int,
    bbox_reg_weights: Sequence[float],
    class_agnostic: bool,
    size_offset: float,
    corner_offset: float,
    delta_clip: float,
) -> Float32:
    """Returns (R, K, 4) boxes in original pixels, clipped, from proposals (R, 4) in original pixels and their deltas."""
    deltas = bbox_pred[:, None, -4:] if class_agnostic else bbox_pred.reshape(len(bbox_pred), classes, 4)
    decoded = decode_boxes(
        boxes[:, None],
        deltas,
        weights=bbox_reg_weights,
        size_offset=size_offset,
        corner_offset=corner_offset,
        delta_clip=delta_clip,
    )
    clipped = clip_boxes(decoded, float(size_hw[0]), float(size_hw[1]), plus_one=size_offset)
    return np.broadcast_to(clipped, (len(boxes), classes, 4))


def select_detections(
    boxes: Float32, cls_prob: Float32, *, score_thresh: float, nms_thresh: float, inclusive: bool, plus_one: float
) -> tuple[Float32, Float32, Int64]:
    """Returns boxes (D, 4), scores (D,), classes (D,) after threshold and NMS per class; (R, K, 4) boxes, (R, K) probabilities go in."""
    rows, classes = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for index in range(1, cls_prob.shape[1]):
        candidates = np.flatnonzero(cls_prob[:, index] > np.float32(score_thresh))
        kept = suppress_boxes(
            boxes[candidates, index],
            cls_prob[candidates, index],
            threshold=nms_thresh,
            inclusive=inclusive,
            plus_one=plus_one,
        )
        rows.append(candidates[np.sort(kept)])
        classes.append(np.full(len(kept), index, np.int64))
    row, column = np.concatenate(rows), np.concatenate(classes)
    return boxes[row, column], cls_prob[row, column], column


def limit_detections(
    boxes: Float32, scores: Float32, classes: Int64, *, max_dets: int
) -> tuple[Float32, Float32, Int64]:
    """Keeps what scores at least as much as the `max_dets`-th best (<= 0: everything), in order."""
    if 0 < max_dets < len(scores):
        kept = scores >= np.sort(scores)[-max_dets]
        return boxes[kept], scores[kept], classes[kept]
    return boxes, scores, classes
