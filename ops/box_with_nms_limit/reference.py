"""The numpy reference of BoxWithNMSLimit."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, cast

import numpy as np

from roiline.core.errors import DataError
from roiline.core.structures import Bool, Float32, Int32, Int64
from roiline.ops.soft_nms import SoftNms, SoftNmsMethod, soft_nms
from roiline.ops.suppression import suppress_boxes

Suppression: TypeAlias = Callable[[Float32, Float32], tuple[Float32, Int64]]
"""Takes boxes (n, 4) and scores (n,), returns the scores (D,) and rows (D,) of what is kept."""


def box_with_nms_limit(
    scores: Float32,
    boxes: Float32,
    batch_splits: Float32 | None = None,
    *,
    score_thresh: float,
    nms_thresh: float,
    max_dets: int,
    class_agnostic: int,
    boxes_have_background: int,
    classes_have_background: int,
    size_offset: float,
    soft_nms: str,
    soft_nms_sigma: float,
    soft_nms_score_thresh: float,
) -> tuple[Float32, Float32, Float32, Float32, Int32, Int32]:
    """Returns scores, boxes, classes, splits, keeps and their counts; see the operator's description.

    Raises:
        DataError: the boxes do not have the columns that the attributes ask for.
    """
    rows, classes = scores.shape
    blocks = 1 if class_agnostic else classes - (0 if boxes_have_background else 1)
    if boxes.shape != (rows, 4 * blocks):
        raise DataError(
            f"BoxWithNMSLimit: boxes have shape {boxes.shape}, expected {(rows, 4 * blocks)} for scores {scores.shape}"
        )
    by_class = boxes.reshape(rows, blocks, 4)[:, -(classes - 1) :]
    foreground = scores[:, 1:] if boxes_have_background else scores[:, :-1]
    suppress = (
        _soft(SoftNms(cast(SoftNmsMethod, soft_nms), soft_nms_sigma, soft_nms_score_thresh), nms_thresh, size_offset)
        if soft_nms
        else _hard(nms_thresh, max_dets, size_offset)
    )
    splits = np.array([rows], np.int64) if batch_splits is None else batch_splits.astype(np.int64)
    ends = np.cumsum(splits)
    found = [
        _detect_in_picture(foreground[start:end], by_class[start:end], score_thresh, max_dets, suppress)
        for start, end in zip(ends - splits, ends, strict=True)
    ]
    kept_scores, kept_boxes, labels, keeps = (np.concatenate(column) for column in zip(*found, strict=True))
    sizes = [np.bincount(labels_of, minlength=classes).astype(np.int32) for _, _, labels_of, _ in found]
    first = 0 if classes_have_background else 1
    return (
        kept_scores,
        kept_boxes,
        (labels - first).astype(np.float32),
        np.array([len(row[0]) for row in found], np.float32),
        keeps.astype(np.int32),
        np.stack(sizes),
    )


def _detect_in_picture(
    scores: Float32, boxes: Float32, score_thresh: float, max_dets: int, suppress: Suppression
) -> tuple[Float32, Float32, Int64, Int64]:
    """Returns scores (D,), boxes (D, 4), classes (D,) and rows (D,) of one picture; scores (R, K - 1), boxes (R, K - 1 or 1, 4)."""
    no_rows = np.zeros(0, np.int64)
    parts = [(np.zeros(0, np.float32), np.zeros((0, 4), np.float32), no_rows, no_rows)]
    for column in range(scores.shape[1]):
        candidates = np.flatnonzero(scores[:, column] > np.float32(score_thresh))
        of_class = boxes[candidates, min(column, boxes.shape[1] - 1)]
        kept_scores, kept = suppress(of_class, scores[candidates, column])
        parts.append((kept_scores, of_class[kept], np.full(len(kept), column + 1, np.int64), candidates[kept]))
    kept_scores, kept_boxes, labels, rows = (np.concatenate(column) for column in zip(*parts, strict=True))
    best = _is_best(kept_scores, max_dets)
    return kept_scores[best], kept_boxes[best], labels[best], rows[best]


def _is_best(scores: Float32, max_dets: int) -> Bool:
    """Marks the `max_dets` best scores, ties in order (<= 0: all)."""
    chosen = np.zeros(len(scores), np.bool_)
    chosen[np.argsort(-scores, kind="stable")[: max_dets if max_dets > 0 else None]] = True
    return chosen


def _hard(nms_thresh: float, max_dets: int, size_offset: float) -> Suppression:
    def suppress(boxes: Float32, scores: Float32) -> tuple[Float32, Int64]:
        kept = suppress_boxes(
            boxes,
            scores,
            threshold=nms_thresh,
            inclusive=False,
            plus_one=size_offset,
            limit=max_dets,
            one_empty_box=size_offset == 0,
        )
        return scores[kept], kept

    return suppress


def _soft(rule: SoftNms, nms_thresh: float, size_offset: float) -> Suppression:
    def suppress(boxes: Float32, scores: Float32) -> tuple[Float32, Int64]:
        return soft_nms(boxes, scores, rule, overlap_thresh=nms_thresh, plus_one=size_offset, drop_distant=True)

    return suppress
