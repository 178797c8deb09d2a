"""Detections made on the host: from what the box head says of RoIs, by the numpy references of our operators.

The graph of a model does the same in an ordinary run; this path is for what it cannot do: soft-NMS, box voting, rows of several passes, and
thresholds that a run overrides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from roiline.core.errors import ModelError
from roiline.core.spec import Conventions, DetectionRules, ModelSpec, TestOptions
from roiline.core.structures import Detections, Float32, ImageBatch, ImageId, Int64
from roiline.engines.protocol import Tensor
from roiline.ops.box_voting import BoxVoting
from roiline.ops.detection_output import box_results, score_boxes
from roiline.ops.final_clip import clip_finally
from roiline.ops.retinanet_output import retinanet_results
from roiline.ops.soft_nms import SoftNms


@dataclass(frozen=True, slots=True)
class ScoredBoxes:
    """Is what a model says of the RoIs of one picture: `scores` (R, K), and `boxes` (R, K, 4) in original pixels."""

    scores: Float32
    boxes: Float32


@dataclass(frozen=True, slots=True)
class Candidates:
    """Is what a one-stage model says of one picture: decoded `boxes` (M, 4) in original pixels, `scores`, `classes`, `levels` (M,)."""

    boxes: Float32
    scores: Float32
    classes: Int64
    levels: Int64


def rules_of(spec: ModelSpec) -> DetectionRules:
    """Returns the rules by which a model detects.

    Raises:
        ModelError: it has none.
    """
    if spec.detection is None:
        raise ModelError(f"{spec.architecture}: this model's specification has no rules for detections")
    return spec.detection


def read_candidates(outputs: Mapping[str, Tensor], spec: ModelSpec) -> list[Candidates]:
    """Returns the candidates of every picture of a batch, from the seam `candidates`."""
    columns = (outputs[name] for name in spec.seams["candidates"])
    return [Candidates(*rows) for rows in zip(*columns, strict=True)]


def read_scored_boxes(outputs: Mapping[str, Tensor], batch: ImageBatch, spec: ModelSpec) -> list[ScoredBoxes]:
    """Splits the rows of the seam `raw` by picture, and decodes them."""
    rois, roi_count, cls_prob, bbox_pred = (outputs[name] for name in spec.seams["raw"])
    rules, conventions = rules_of(spec), spec.conventions
    offset = float(conventions.plus_one)
    ends = np.cumsum(roi_count)
    return [
        ScoredBoxes(
            *score_boxes(
                rois[start:end, 1:],
                cls_prob[start:end],
                bbox_pred[start:end],
                batch.im_info[image],
                batch.sizes[image],
                bbox_reg_weights=rules.bbox_reg_weights,
                class_agnostic=rules.class_agnostic,
                regress=rules.regress,
                network_frame=conventions.network_frame,
                smallest_side=conventions.smallest_side,
                size_offset=offset,
                corner_offset=offset,
                delta_clip=conventions.delta_clip,
            )
        )
        for image, (start, end) in enumerate(zip(ends - roi_count, ends, strict=True))
    ]


def select_detections(image_id: ImageId, found: ScoredBoxes | Candidates, spec: ModelSpec) -> Detections:
    """Returns the detections of one picture: threshold, NMS or soft-NMS and voting per class, and the limit."""
    rules, conventions = rules_of(spec), spec.conventions
    offset, soft = float(conventions.plus_one), _soft_nms_from_options(spec.test)
    if isinstance(found, Candidates):
        boxes, scores, classes = retinanet_results(
            found.boxes,
            found.scores,
            found.classes,
            found.levels,
            num_classes=spec.num_classes,
            first_class=rules.first_class,
            score_thresh=rules.score_thresh,
            coarsest_score_thresh=rules.coarsest_thresh,
            nms_thresh=rules.nms_thresh,
            max_dets=rules.max_dets,
            inclusive=conventions.nms_inclusive,
            plus_one=offset,
            ranked=conventions.ranked,
            soft=soft,
        )
    else:
        boxes, scores, classes = box_results(
            found.scores,
            found.boxes,
            score_thresh=rules.score_thresh,
            nms_thresh=rules.nms_thresh,
            max_dets=rules.max_dets,
            inclusive=conventions.nms_inclusive,
            plus_one=offset,
            ranked=conventions.ranked,
            soft=soft,
            voting=_voting_from_options(spec.test),
            ties=conventions.ties,
        )
    return Detections(image_id, boxes, scores, classes.astype(np.int64))


def clip_detections(found: Detections, size_hw: Float32, spec: ModelSpec) -> Detections:
    """Clips selected boxes to the original picture of (height, width) and drops the empty ones, where the model's source does so."""
    if not spec.conventions.final_clip:
        return found
    boxes, alive = clip_finally(found.boxes, size_hw)
    return replace(found, boxes=boxes[alive], scores=found.scores[alive], classes=found.classes[alive])


def _soft_nms_from_options(options: TestOptions) -> SoftNms | None:
    """Returns soft-NMS as the operators take it, None where it is not asked for."""
    return None if options.soft_nms is None else SoftNms(options.soft_nms.method, options.soft_nms.sigma)


def _voting_from_options(options: TestOptions) -> BoxVoting | None:
    voting = options.voting
    return None if voting is None else BoxVoting(voting.vote_thresh, voting.scoring_method)


def network_scales(batch: ImageBatch, conventions: Conventions) -> Float32:
    """Returns network-input pixels per original pixel of the boxes of N pictures: (N, 1), or (N, 4) where they differ across and down."""
    if not conventions.network_frame:
        return batch.im_info[:, 2:]
    ratios: Float32 = (batch.im_info[:, :2] / batch.sizes)[:, [1, 0, 1, 0]]
    return ratios


def stack_rois(found: Sequence[Detections], scales: Float32) -> Float32:
    """Returns rows (M, 5) of the boxes of N pictures: image index, box in network pixels; `scales` as `network_scales` gives them."""
    rows = [np.zeros((0, 5), np.float32)]
    for image, (detections, scale) in enumerate(zip(found, scales, strict=True)):
        index = np.full((len(detections.boxes), 1), image, np.float32)
        rows.append(np.concatenate([index, detections.boxes * scale], axis=1))
    return np.concatenate(rows)
