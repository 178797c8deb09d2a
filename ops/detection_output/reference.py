"""The numpy reference of DetectionOutput, in its three steps: decode, select per class, limit per picture."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from roiline.core.boxes import clip_boxes
from roiline.core.structures import Float32, Int64
from roiline.ops.box_coding import decode_boxes
from roiline.ops.box_voting import BoxVoting, vote_boxes
from roiline.ops.soft_nms import SoftNms, soft_nms
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
    regress: int,
    nms_inclusive: int,
    size_offset: float,
    corner_offset: float,
    delta_clip: float,
) -> tuple[Float32, Float32, Int64, Int64]:
    """Returns boxes (N, D, 4), scores (N, D), classes (N, D) and count (N,); see the operator's description."""
    boxes_of, scores_of, classes_of = [], [], []
    ends = np.cumsum(roi_count)
    for image, (start, end) in enumerate(zip(ends - roi_count, ends, strict=True)):
        proposals = rois[start:end, 1:] / im_info[image, 2]
        boxes = np.repeat(proposals[:, None], cls_prob.shape[1], axis=1)
        if regress:
            boxes = decode_detections(
                proposals,
                bbox_pred[start:end],
                im_size[image],
                classes=cls_prob.shape[1],
                bbox_reg_weights=bbox_reg_weights,
                class_agnostic=bool(class_agnostic),
                size_offset=size_offset,
                corner_offset=corner_offset,
                delta_clip=delta_clip,
            )
        limited = box_results(
            cls_prob[start:end],
            boxes,
            score_thresh=score_thresh,
            nms_thresh=nms_thresh,
            max_dets=max_dets,
            inclusive=bool(nms_inclusive),
            plus_one=size_offset,
        )
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
    boxes: Float32,
    cls_prob: Float32,
    *,
    score_thresh: float,
    nms_thresh: float,
    inclusive: bool,
    plus_one: float,
    soft: SoftNms | None = None,
    voting: BoxVoting | None = None,
) -> tuple[Float32, Float32, Int64]:
    """Returns boxes (D, 4), scores (D,), classes (D,) after threshold and NMS per class; (R, K, 4) boxes, (R, K) probabilities go in.

    With `soft` scores decay instead, and rows come in the order of choice; with `voting` all candidates of a class refine what is kept.
    """
    found = [(np.zeros((0, 4), np.float32), np.zeros(0, np.float32))]
    for index in range(1, cls_prob.shape[1]):
        candidates = np.flatnonzero(cls_prob[:, index] > np.float32(score_thresh))
        of_class, scores = boxes[candidates, index], cls_prob[candidates, index]
        if soft is None:
            rows = np.sort(
                suppress_boxes(of_class, scores, threshold=nms_thresh, inclusive=inclusive, plus_one=plus_one)
            )
            kept_scores = scores[rows]
        else:
            kept_scores, rows = soft_nms(of_class, scores, soft, overlap_thresh=nms_thresh, plus_one=plus_one)
        kept = of_class[rows], kept_scores
        found.append(kept if voting is None else vote_boxes(*kept, of_class, scores, voting))
    classes = np.repeat(np.arange(len(found)), [len(scores) for _, scores in found])
    return np.concatenate([rows for rows, _ in found]), np.concatenate([scores for _, scores in found]), classes


def box_results(
    cls_prob: Float32,
    boxes: Float32,
    *,
    score_thresh: float,
    nms_thresh: float,
    max_dets: int,
    inclusive: bool = True,
    plus_one: float = 1.0,
    soft: SoftNms | None = None,
    voting: BoxVoting | None = None,
) -> tuple[Float32, Float32, Int64]:
    """Returns boxes (D, 4), scores (D,), classes (D,) of one picture from probabilities (R, K) and boxes (R, K, 4) or (R, 4K).

    Source: Detectron's `box_results_with_nms_and_limit`, whose options for soft-NMS and box voting are `soft` and `voting`.
    """
    by_class = boxes.reshape(len(cls_prob), cls_prob.shape[1], 4)
    selected = select_detections(
        by_class,
        cls_prob,
        score_thresh=score_thresh,
        nms_thresh=nms_thresh,
        inclusive=inclusive,
        plus_one=plus_one,
        soft=soft,
        voting=voting,
    )
    return limit_detections(*selected, max_dets=max_dets)


def limit_detections(
    boxes: Float32, scores: Float32, classes: Int64, *, max_dets: int
) -> tuple[Float32, Float32, Int64]:
    """Keeps what scores at least as much as the `max_dets`-th best (<= 0: everything), in order."""
    if 0 < max_dets < len(scores):
        kept = scores >= np.sort(scores)[-max_dets]
        return boxes[kept], scores[kept], classes[kept]
    return boxes, scores, classes
