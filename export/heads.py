"""Heads: features of RoIs into class probabilities, box deltas, and the final detections."""

from __future__ import annotations

from typing import NamedTuple

from roiline.core.spec import Conventions
from roiline.export.architecture import BoxHead, RoiTransform
from roiline.export.graph import GraphWriter
from roiline.export.layers import Feature, write_fc, write_flatten, write_relu
from roiline.ops.detection_output import DETECTION_OUTPUT
from roiline.ops.multilevel_roi_align import MULTILEVEL_ROI_ALIGN


class RawTensors(NamedTuple):
    """Names what a box head says of RoI rows (T, 5): class probabilities (T, K) and deltas (T, 4K) or (T, 8)."""

    cls_prob: str
    bbox_pred: str


class DetectionTensors(NamedTuple):
    """Names padded detections in original pixels: boxes (N, D, 4), scores (N, D), classes (N, D), count (N,)."""

    boxes: str
    scores: str
    classes: str
    count: str


def write_roi_features(
    g: GraphWriter,
    transform: RoiTransform,
    features: dict[int, Feature],
    rois: str,
    conventions: Conventions,
    name: str,
) -> Feature:
    """Writes RoIAlign over the transform's levels: (T, channels, resolution, resolution)."""
    levels = range(transform.min_level, transform.max_level + 1)
    (pooled,) = g.call(
        MULTILEVEL_ROI_ALIGN,
        rois,
        *(features[level].name for level in levels),
        names=(name,),
        spatial_scales=tuple(2.0**-level for level in levels),
        resolution=transform.resolution,
        sampling_ratio=transform.sampling_ratio,
        half_pixel=int(conventions.roi_half_pixel),
        min_level=transform.min_level,
        canonical_level=transform.canonical_level,
        canonical_scale=transform.canonical_scale,
        size_offset=float(conventions.plus_one),
    )
    return Feature(pooled, features[transform.min_level].channels)


def write_box_head(
    g: GraphWriter, head: BoxHead, features: dict[int, Feature], rois: str, conventions: Conventions
) -> RawTensors:
    """Writes fc6, fc7 and the two outputs on RoI rows (T, 5)."""
    pooled = write_roi_features(g, head.transform, features, rois, conventions, "roi_feat")
    x = write_flatten(g, pooled, head.transform.resolution**2)
    for blob in ("fc6", "fc7"):
        key = "FAST_RCNN.ROI_XFORM_RESOLUTION" if blob == "fc6" else "FAST_RCNN.MLP_HEAD_DIM"
        x = write_relu(g, write_fc(g, x, blob, purpose="box head", config_key=key), blob)
    return write_box_outputs(g, head, x)


def write_box_outputs(g: GraphWriter, head: BoxHead, x: Feature) -> RawTensors:
    """Writes class probabilities and box deltas of head features (T, channels)."""
    purpose = "box head outputs"
    boxes = 2 if head.rules.class_agnostic else head.num_classes
    logits = write_fc(
        g, x, "cls_score", purpose=purpose, out=head.num_classes, name="cls_score", config_key="MODEL.NUM_CLASSES"
    )
    key = "MODEL.CLS_AGNOSTIC_BBOX_REG" if head.rules.class_agnostic else "MODEL.NUM_CLASSES"
    deltas = write_fc(g, x, "bbox_pred", purpose=purpose, out=4 * boxes, name="bbox_pred", config_key=key)
    return RawTensors(g.op("Softmax", logits.name, name="cls_prob", axis=1), deltas.name)


def write_detections(
    g: GraphWriter, head: BoxHead, rois: str, raw: RawTensors, counts: str, conventions: Conventions
) -> DetectionTensors:
    """Writes decode, NMS per class and the limit per picture."""
    offset = float(conventions.plus_one)
    boxes, scores, classes, count = g.call(
        DETECTION_OUTPUT,
        rois,
        raw.cls_prob,
        raw.bbox_pred,
        "im_info",
        "im_size",
        counts,
        names=("boxes", "scores", "classes", "count"),
        score_thresh=head.rules.score_thresh,
        nms_thresh=head.rules.nms_thresh,
        max_dets=head.rules.max_dets,
        bbox_reg_weights=head.rules.bbox_reg_weights,
        class_agnostic=int(head.rules.class_agnostic),
        nms_inclusive=int(conventions.nms_inclusive),
        size_offset=offset,
        corner_offset=offset,
        delta_clip=conventions.delta_clip,
    )
    return DetectionTensors(boxes, scores, classes, count)
