"""The numpy reference of DetectionOutput, in its three steps: decode, select per class, limit per picture."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from roiline.core.boxes import clip_boxes
from roiline.core.structures import Float32, Int64
from roiline.ops.box_coding import decode_boxes
from roiline.ops.box_voting import BoxVoting, vote_boxes
from roiline.ops.final_clip import clip_finally
from roiline.ops.soft_nms import SoftNms, soft_nms
from roiline.ops.suppression import pad_rows, suppress_boxes
from roiline.ops.visit_order import Ties, visit_order


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
    network_frame: int,
    smallest_side: float,
    ranked: int,
    later_first: int,
    final_clip: int,
    nms_inclusive: int,
    size_offset: float,
    corner_offset: float,
    delta_clip: float,
) -> tuple[Float32, Float32, Int64, Int64]:
    """Returns boxes (N, D, 4), scores (N, D), classes (N, D) and count (N,); see the operator's description."""
    boxes_of, scores_of, classes_of = [], [], []
    ends = np.cumsum(roi_count)
    for image, (start, end) in enumerate(zip(ends - roi_count, ends, strict=True)):
        scores, boxes = score_boxes(
            rois[start:end, 1:],
            cls_prob[start:end],
            bbox_pred[start:end],
            im_info[image],
            im_size[image],
            bbox_reg_weights=bbox_reg_weights,
            class_agnostic=bool(class_agnostic),
            regress=bool(regress),
            network_frame=bool(network_frame),
            smallest_side=smallest_side,
            size_offset=size_offset,
            corner_offset=corner_offset,
            delta_clip=delta_clip,
        )
        limited = box_results(
            scores,
            boxes,
            score_thresh=score_thresh,
            nms_thresh=nms_thresh,
            max_dets=max_dets,
            inclusive=bool(nms_inclusive),
            plus_one=size_offset,
            ranked=bool(ranked),
            ties="later" if later_first else "earlier",
        )
        if final_clip:
            clipped, alive = clip_finally(limited[0], im_size[image])
            limited = clipped[alive], limited[1][alive], limited[2][alive]
        boxes_of.append(limited[0])
        scores_of.append(limited[1])
        classes_of.append(limited[2].astype(np.float32))
    count = np.array([len(scores) for scores in scores_of], np.int64)
    classes = pad_rows(classes_of, 0.0).astype(np.int64)
    return pad_rows(boxes_of, 0.0), pad_rows(scores_of, -np.inf), classes, count


def score_boxes(
    rois: Float32,
    cls_prob: Float32,
    bbox_pred: Float32,
    info: Float32,
    size_hw: Float32,
    *,
    bbox_reg_weights: Sequence[float],
    class_agnostic: bool,
    regress: bool,
    network_frame: bool,
    smallest_side: float,
    size_offset: float,
    corner_offset: float,
    delta_clip: float,
) -> tuple[Float32, Float32]:
    """Returns scores (R, K) and boxes (R, K, 4) in original pixels of the RoIs (R, 4) of one picture, in network-input pixels.

    `info` (3,) and `size_hw` (2,) are its rows of im_info and im_size. A box that is too small has the score -inf.
    """
    proposals = rois if network_frame else rois / info[2]
    boxes = np.repeat(proposals[:, None], cls_prob.shape[1], axis=1)
    if regress:
        boxes = decode_detections(
            proposals,
            bbox_pred,
            info[:2] if network_frame else size_hw,
            classes=cls_prob.shape[1],
            bbox_reg_weights=bbox_reg_weights,
            class_agnostic=class_agnostic,
            size_offset=size_offset,
            corner_offset=corner_offset,
            delta_clip=delta_clip,
        )
    scores = cls_prob
    if smallest_side > 0:
        large = (boxes[..., 2:] - boxes[..., :2] >= np.float32(smallest_side)).all(axis=2)
        scores = np.where(large, cls_prob, np.float32(-np.inf))
    if network_frame:
        down, across = size_hw / info[:2]
        boxes = boxes * np.array([across, down, across, down], np.float32)
    return scores, boxes


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
    """Returns (R, K, 4) boxes from proposals (R, 4) of a picture of the given size and their deltas, clipped to it."""
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
    ties: Ties = "earlier",
) -> tuple[Float32, Float32, Int64, Int64]:
    """Returns boxes (D, 4), scores (D,), classes (D,) after threshold and NMS per class, and their rows (D,) in what goes in.

    That is boxes (R, K, 4) and probabilities (R, K).

    `ties` says which of equal scores wins (see `ops.visit_order`). With `soft` scores decay instead, and rows come in the
    order of choice; with `voting` all candidates of a class refine what is kept.
    """
    found = [(np.zeros((0, 4), np.float32), np.zeros(0, np.float32))]
    places = [np.zeros(0, np.int64)]
    for index in range(1, cls_prob.shape[1]):
        candidates = np.flatnonzero(cls_prob[:, index] > np.float32(score_thresh))
        of_class, scores = boxes[candidates, index], cls_prob[candidates, index]
        if soft is None:
            order = visit_order(scores, ties)
            kept_rows = suppress_boxes(
                of_class, scores, threshold=nms_thresh, inclusive=inclusive, plus_one=plus_one, order=order
            )
            rows = np.sort(kept_rows)
            kept_scores = scores[rows]
        else:
            kept_scores, rows = soft_nms(of_class, scores, soft, overlap_thresh=nms_thresh, plus_one=plus_one)
        kept = of_class[rows], kept_scores
        found.append(kept if voting is None else vote_boxes(*kept, of_class, scores, voting))
        places.append(candidates[rows])
    classes = np.repeat(np.arange(len(found)), [len(scores) for _, scores in found])
    kept_boxes, kept_scores = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return kept_boxes, kept_scores, classes, np.concatenate(places)


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
    ranked: bool = False,
    ties: Ties = "earlier",
) -> tuple[Float32, Float32, Int64]:
    """Returns boxes (D, 4), scores (D,), classes (D,) of one picture from probabilities (R, K) and boxes (R, K, 4) or (R, 4K).

    Source: Detectron's `box_results_with_nms_and_limit`, whose options for soft-NMS and box voting are `soft` and `voting`. `ranked`: by
    descending score, as torchvision has them.
    """
    by_class = boxes.reshape(len(cls_prob), cls_prob.shape[1], 4)
    selected_boxes, scores, classes, rows = select_detections(
        by_class,
        cls_prob,
        score_thresh=score_thresh,
        nms_thresh=nms_thresh,
        inclusive=inclusive,
        plus_one=plus_one,
        soft=soft,
        voting=voting,
        ties=ties,
    )
    if ranked:
        order = np.lexsort((classes, rows, -scores))[: max_dets if max_dets > 0 else None]
        return selected_boxes[order], scores[order], classes[order]
    return limit_detections(selected_boxes, scores, classes, max_dets=max_dets)


def limit_detections(
    boxes: Float32, scores: Float32, classes: Int64, *, max_dets: int
) -> tuple[Float32, Float32, Int64]:
    """Keeps what scores at least as much as the `max_dets`-th best (<= 0: everything), in order."""
    if 0 < max_dets < len(scores):
        kept = scores >= np.sort(scores)[-max_dets]
        return boxes[kept], scores[kept], classes[kept]
    return boxes, scores, classes
