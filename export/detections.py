"""The last step of a detector: raw scores and deltas of RoIs into the detections of every picture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from roiline.core.spec import Conventions, DetectionRules
from roiline.export.graph import GraphWriter
from roiline.export.heads import RawTensors
from roiline.ops.detection_output import DETECTION_OUTPUT
from roiline.ops.trim import TRIM


@dataclass(frozen=True, slots=True)
class DetectionTensors:
    """Names padded detections in original pixels: boxes (N, D, 4), scores (N, D), classes (N, D), count (N,)."""

    boxes: str
    scores: str
    classes: str
    count: str


class DetectedRois(NamedTuple):
    """Names the detections as RoI rows in network-input pixels, picture by picture: rois (M, 5) and classes (M,) int64."""

    rois: str
    classes: str


def write_detections(
    g: GraphWriter, rules: DetectionRules, raw: RawTensors, counts: str, conventions: Conventions
) -> DetectionTensors:
    """Writes decode, NMS per class and the limit per picture; `counts` (N,) are the RoI rows of each picture."""
    offset = float(conventions.plus_one)
    boxes, scores, classes, count = g.call(
        DETECTION_OUTPUT,
        raw.rois,
        raw.cls_prob,
        raw.bbox_pred,
        "im_info",
        "im_size",
        counts,
        names=("boxes", "scores", "classes", "count"),
        score_thresh=rules.score_thresh,
        nms_thresh=rules.nms_thresh,
        max_dets=rules.max_dets,
        bbox_reg_weights=rules.bbox_reg_weights,
        class_agnostic=int(rules.class_agnostic),
        regress=int(rules.regress),
        network_frame=int(conventions.network_frame),
        smallest_side=conventions.smallest_side,
        ranked=int(conventions.ranked),
        later_first=int(conventions.ties != "earlier"),
        final_clip=int(conventions.final_clip),
        nms_inclusive=int(conventions.nms_inclusive),
        size_offset=offset,
        corner_offset=offset,
        delta_clip=conventions.delta_clip,
    )
    return DetectionTensors(boxes, scores, classes, count)


def write_detected_rois(g: GraphWriter, found: DetectionTensors, scale: str, prefix: str) -> DetectedRois:
    """Writes what heads on final boxes run on, without padding; `scale` (N, 1, 1 or 4) is network pixels per original pixel."""
    boxes = g.op("Mul", found.boxes, scale)
    (rois,) = g.call(TRIM, boxes, found.count, names=(f"{prefix}_rois",))
    (rows,) = g.dims(found.classes, 1)
    real = g.op("Less", g.unsqueeze(g.range(rows), 0), g.unsqueeze(found.count, 1))
    slots = g.op("Transpose", g.op("NonZero", real), perm=(1, 0))
    return DetectedRois(rois, g.op("GatherND", found.classes, slots, name=f"{prefix}_classes"))
