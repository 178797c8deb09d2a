"""The numpy reference of GenerateProposals."""

from __future__ import annotations

import numpy as np

from roiline.core.structures import Bool, Float32, Int64
from roiline.ops.box_coding import decode_boxes
from roiline.ops.suppression import pad_rows, suppress_boxes


def generate_proposals(
    scores: Float32,
    deltas: Float32,
    im_info: Float32,
    anchors: Float32,
    stride: Float32,
    *,
    pre_nms_top_n: int,
    post_nms_top_n: int,
    nms_thresh: float,
    min_size: float,
    min_size_in_network: int,
    min_side: float,
    score_thresh: float,
    logits: int,
    nms_inclusive: int,
    one_empty_box: int,
    size_offset: float,
    corner_offset: float,
    delta_clip: float,
) -> tuple[Float32, Float32, Int64]:
    """Returns boxes (N, P, 4), scores (N, P) and count (N,); see the operator's description."""
    _, _, height, width = scores.shape
    field = _place_anchors(anchors, stride, height, width)
    boxes_of, scores_of = [], []
    for score_map, delta_map, info in zip(scores, deltas, im_info, strict=True):
        flat_scores = score_map.transpose(1, 2, 0).reshape(-1)
        flat_deltas = delta_map.reshape(-1, 4, height, width).transpose(2, 3, 0, 1).reshape(-1, 4)
        order = np.argsort(-flat_scores, kind="stable")
        order = order[:pre_nms_top_n] if pre_nms_top_n > 0 else order
        best = flat_scores[order]
        if logits:
            best = (np.float32(1) / (np.float32(1) + np.exp(-best))).astype(np.float32)
        boxes = decode_boxes(
            field[order],
            flat_deltas[order],
            size_offset=size_offset,
            corner_offset=corner_offset,
            delta_clip=delta_clip,
        )
        limit = np.array([info[1], info[0], info[1], info[0]], np.float32) - np.float32(size_offset)
        boxes = np.maximum(np.minimum(boxes, limit), np.float32(0))
        fits = _large_and_inside(boxes, info, min_size, size_offset, in_network=bool(min_size_in_network))
        if min_side > 0:
            fits &= (boxes[:, 2:] - boxes[:, :2] >= np.float32(min_side)).all(axis=1)
        if score_thresh > 0:
            fits &= best >= np.float32(score_thresh)
        boxes, best = boxes[fits], best[fits]
        kept = suppress_boxes(
            boxes,
            best,
            threshold=nms_thresh,
            inclusive=bool(nms_inclusive),
            plus_one=size_offset,
            limit=post_nms_top_n,
            one_empty_box=bool(one_empty_box),
        )
        boxes_of.append(boxes[kept])
        scores_of.append(best[kept])
    count = np.array([len(best) for best in scores_of], np.int64)
    return pad_rows(boxes_of, 0.0), pad_rows(scores_of, -np.inf), count


def _place_anchors(anchors: Float32, stride: Float32, height: int, width: int) -> Float32:
    """Returns (H * W * A, 4) anchors in (y, x, a) order."""
    y, x = np.meshgrid(np.arange(height) * stride[0], np.arange(width) * stride[1], indexing="ij")
    shifts = np.stack([x, y, x, y], axis=-1).astype(np.float32)
    field: Float32 = (shifts[:, :, None] + anchors[None, None]).reshape(-1, 4).astype(np.float32)
    return field


def _large_and_inside(boxes: Float32, info: Float32, min_size: float, size_offset: float, *, in_network: bool) -> Bool:
    sides = boxes[:, 2:] - boxes[:, :2]
    if in_network:
        sides = sides + np.float32(size_offset)
        large = sides >= np.float32(min_size) * info[2]
    else:
        original = sides / info[2] + np.float32(size_offset)
        large = original >= np.float32(max(min_size, 1.0))
        sides = original * info[2]
    centres = boxes[:, :2] + sides / np.float32(2)
    inside = (centres[:, 0] < info[1]) & (centres[:, 1] < info[0])
    fits: Bool = large.all(axis=1) & inside
    return fits
