"""The numpy reference of RetinaNetOutput, and what a host run does with the candidates of one picture."""

from __future__ import annotations

import numpy as np

from roiline.core.structures import Float32, Int64
from roiline.ops.final_clip import clip_finally
from roiline.ops.soft_nms import SoftNms, soft_nms
from roiline.ops.suppression import pad_rows, suppress_boxes


def retinanet_output(
    boxes: Float32,
    scores: Float32,
    classes: Int64,
    levels: Int64,
    im_size: Float32 | None = None,
    *,
    num_classes: int,
    first_class: int,
    score_thresh: float,
    coarsest_score_thresh: float,
    nms_thresh: float,
    max_dets: int,
    nms_inclusive: int,
    size_offset: float,
    ranked: int,
) -> tuple[Float32, Float32, Int64, Int64]:
    """Returns boxes (N, D, 4), scores (N, D), classes (N, D) and count (N,); see the operator's description."""
    results = [
        retinanet_results(
            *candidates,
            num_classes=num_classes,
            first_class=first_class,
            score_thresh=score_thresh,
            coarsest_score_thresh=coarsest_score_thresh,
            nms_thresh=nms_thresh,
            max_dets=max_dets,
            inclusive=bool(nms_inclusive),
            plus_one=size_offset,
            ranked=bool(ranked),
        )
        for candidates in zip(boxes, scores, classes, levels, strict=True)
    ]
    if im_size is not None:
        ends = [clip_finally(result[0], size_hw) for result, size_hw in zip(results, im_size, strict=True)]
        results = [
            (clipped[alive], scores[alive], labels[alive])
            for (clipped, alive), (_, scores, labels) in zip(ends, results, strict=True)
        ]
    count = np.array([len(result[1]) for result in results], np.int64)
    padded_classes = pad_rows([result[2].astype(np.float32) for result in results], 0.0).astype(np.int64)
    return (
        pad_rows([result[0] for result in results], 0.0),
        pad_rows([result[1] for result in results], -np.inf),
        padded_classes,
        count,
    )


def retinanet_results(
    boxes: Float32,
    scores: Float32,
    classes: Int64,
    levels: Int64,
    *,
    num_classes: int,
    score_thresh: float,
    coarsest_score_thresh: float = 0.0,
    nms_thresh: float,
    max_dets: int,
    inclusive: bool = True,
    plus_one: float = 1.0,
    first_class: int = 1,
    ranked: bool = False,
    soft: SoftNms | None = None,
) -> tuple[Float32, Float32, Int64]:
    """Returns boxes (D, 4), scores (D,), classes (D,) of one picture from its candidates (M, 4) and (M,).

    With `soft` scores decay in place of NMS, over all candidates of a class.
    """
    coarsest = levels == levels.max(initial=0)
    above = scores > np.where(coarsest, np.float32(coarsest_score_thresh), np.float32(score_thresh))
    found = [(np.zeros((0, 4), np.float32), np.zeros(0, np.float32))]
    for label in range(first_class, num_classes):
        candidates = np.flatnonzero(above & (classes == label))
        of_class, best = boxes[candidates], scores[candidates]
        if soft is None:
            rows = suppress_boxes(
                of_class, best, threshold=nms_thresh, inclusive=inclusive, plus_one=plus_one, limit=max_dets
            )
            found.append((of_class[rows], best[rows]))
        else:
            decayed, rows = soft_nms(of_class, best, soft, overlap_thresh=nms_thresh, plus_one=plus_one)
            found.append((of_class[rows], decayed))
    all_boxes, all_scores = (np.concatenate(parts) for parts in zip(*found, strict=True))
    labels = np.repeat(np.arange(len(found)) + first_class - 1, [len(of_class) for _, of_class in found])
    kept = np.argsort(-all_scores, kind="stable")
    kept = kept[:max_dets] if max_dets > 0 else kept
    kept = kept if ranked else np.sort(kept)
    return all_boxes[kept], all_scores[kept], labels[kept]
