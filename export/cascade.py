"""Cascade R-CNN (Cai and Vasconcelos 2018): box heads in a chain, each on the boxes that the one before has regressed."""

from __future__ import annotations

from functools import reduce

import numpy as np

from roiline.core.spec import Conventions
from roiline.export.architecture import CascadeHead, HeadFeatures
from roiline.export.graph import GraphWriter
from roiline.export.heads import (
    PLAIN_NAMES,
    LayerNames,
    RawTensors,
    write_deltas,
    write_head_features,
    write_probabilities,
    write_roi_features,
    write_scores,
)
from roiline.export.layers import Feature
from roiline.ops.box_coding import write_clip, write_decode
from roiline.ops.nodes import LAST


def write_cascade_head(
    g: GraphWriter, head: CascadeHead, features: dict[int, Feature], rois: str, conventions: Conventions
) -> RawTensors:
    """Writes the stages up to the wanted one; the answer is the last stage's, on the last stage's RoIs."""
    pooled = write_roi_features(g, head.first.transform, features, rois, conventions, head.first.pooled)
    raw = _write_stage(g, head, head.first.features, pooled, rois, PLAIN_NAMES)
    said = [raw.cls_prob]
    for stage in range(2, head.stage + 1):
        rois = _write_next_rois(g, head, raw, stage, conventions)
        pooled = write_roi_features(g, head.first.transform, features, rois, conventions, f"roi_{stage}_feat")
        raw = _write_stage(g, head, head.later, pooled, rois, LayerNames(f"_{stage}", f"_{stage}"))
        said.append(raw.cls_prob)
    if not head.ensemble:
        return raw
    return _write_mean(g, head, raw, said if head.own_boxes else _write_ensemble(g, head, pooled, raw))


def _write_stage(
    g: GraphWriter, head: CascadeHead, kind: HeadFeatures, pooled: Feature, rois: str, names: LayerNames
) -> RawTensors:
    outputs = head.first.outputs
    x = write_head_features(g, kind, pooled, head.first.transform.resolution, names)
    scores, deltas = write_scores(g, outputs, x, names), write_deltas(g, outputs, x, names)
    return RawTensors(rois, write_probabilities(g, scores, outputs, f"cls_prob{names.blobs}"), deltas.name)


def _write_next_rois(g: GraphWriter, head: CascadeHead, raw: RawTensors, stage: int, conventions: Conventions) -> str:
    """Writes the RoIs of a stage: those of the stage before, moved by its deltas; none is left out."""
    offset = float(conventions.plus_one)
    boxes = write_decode(
        g,
        g.columns(raw.rois, 1, 5),
        g.columns(raw.bbox_pred, -4, LAST),
        weights=head.bbox_reg_weights[stage - 2],
        size_offset=offset,
        corner_offset=offset,
        delta_clip=conventions.delta_clip,
    )
    image = g.columns(raw.rois, 0, 1)
    if head.clipped:
        sizes = g.op("Gather", g.columns("im_info", 0, 2), g.cast(g.squeeze(image, 1), np.int64), axis=0)
        boxes = write_clip(g, boxes, sizes, size_offset=offset)
    return g.op("Concat", image, boxes, name=f"rois_{stage}", axis=1)


def _write_ensemble(g: GraphWriter, head: CascadeHead, pooled: Feature, raw: RawTensors) -> list[str]:
    """Writes what all heads up to the last stage's say of the last stage's RoIs."""
    outputs, resolution = head.first.outputs, head.first.transform.resolution
    said = [raw.cls_prob]
    for stage in range(1, head.stage):
        names = LayerNames(f"_{stage}_{head.stage}", "" if stage == 1 else f"_{stage}")
        x = write_head_features(g, head.later, pooled, resolution, names)
        scores = write_scores(g, outputs, x, names)
        said.append(write_probabilities(g, scores, outputs, f"cls_prob{names.blobs}"))
    return said


def _write_mean(g: GraphWriter, head: CascadeHead, raw: RawTensors, said: list[str]) -> RawTensors:
    """Writes the mean of probabilities in place of those of the last stage."""
    total = g.op(
        "Identity", reduce(lambda one, other: g.op("Add", one, other), said), name=f"cls_prob_{head.stage}_sum"
    )
    return RawTensors(raw.rois, g.op("Div", total, g.scalar(head.stage), name="cls_prob_mean"), raw.bbox_pred)
