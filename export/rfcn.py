"""Position-sensitive heads (R-FCN, Dai et al. 2016), alone or fused with a Fast R-CNN head on the same RoIs."""

from __future__ import annotations

from typing import NamedTuple

from roiline.core.spec import Conventions
from roiline.export.architecture import FusedHead, RfcnHead, RoiTransform
from roiline.export.graph import GraphWriter
from roiline.export.heads import (
    RawTensors,
    write_deltas,
    write_head_features,
    write_probabilities,
    write_roi_features,
    write_scores,
)
from roiline.export.layers import Feature, Kernel, write_conv, write_relu
from roiline.ops.ps_roi_pool import MULTILEVEL_PS_ROI_POOL

_PURPOSE = "R-FCN head"


class _Votes(NamedTuple):
    """Is what the cells of each RoI say on average: class scores (T, K) and box deltas (T, 4K) or (T, 8)."""

    scores: Feature
    deltas: Feature


def write_rfcn_head(
    g: GraphWriter, head: RfcnHead, features: dict[int, Feature], rois: str, conventions: Conventions
) -> RawTensors:
    """Writes a position-sensitive head on RoI rows (T, 5)."""
    votes = _write_votes(g, head, features, rois, conventions, scores="cls_score", deltas="bbox_pred")
    return RawTensors(rois, write_probabilities(g, votes.scores, head.outputs), votes.deltas.name)


def write_fused_head(
    g: GraphWriter, head: FusedHead, features: dict[int, Feature], rois: str, conventions: Conventions
) -> RawTensors:
    """Writes both heads and joins what they say by the rule that the configuration names."""
    outputs = head.fast.outputs
    pooled = write_roi_features(g, head.fast.transform, features, rois, conventions, head.fast.pooled)
    x = write_head_features(g, head.fast.features, pooled, head.fast.transform.resolution)
    votes = _write_votes(g, head.rfcn, features, rois, conventions, scores="psroi_cls_score", deltas="psroi_bbox_pred")
    if head.rule == "concat":
        seen = g.concat(x.name, votes.scores.name, votes.deltas.name, axis=1)
        width = None if x.channels is None else x.channels + outputs.num_classes + 4 * outputs.boxes
        x = Feature(seen, width)
    scores, deltas = write_scores(g, outputs, x), write_deltas(g, outputs, x)
    if head.rule == "concat":
        return RawTensors(rois, write_probabilities(g, scores, outputs), deltas.name)
    joined = [
        _write_join(g, one.name, other.name, f"fused_{one.name}", mean=head.rule == "mean")
        for one, other in ((scores, votes.scores), (deltas, votes.deltas))
    ]
    return RawTensors(rois, write_probabilities(g, Feature(joined[0], outputs.num_classes), outputs), joined[1])


def _write_join(g: GraphWriter, first: str, second: str, name: str, *, mean: bool) -> str:
    if not mean:
        return g.op("Add", first, second, name=name)
    return g.op("Mul", g.op("Add", first, second), g.scalar(0.5), name=name)


def _write_votes(
    g: GraphWriter,
    head: RfcnHead,
    features: dict[int, Feature],
    rois: str,
    conventions: Conventions,
    *,
    scores: str,
    deltas: str,
) -> _Votes:
    """Writes the position-sensitive maps of every level, their pooling, and the mean over the cells."""
    levels = range(head.transform.min_level, head.transform.max_level + 1)
    seen = {level: _write_reduction(g, head, features[level]) for level in levels}
    classes, boxes = head.outputs.num_classes, 4 * head.outputs.boxes
    return _Votes(
        _write_vote(g, head, seen, rois, conventions, layer="conv_cls", out=classes, name=scores),
        _write_vote(g, head, seen, rois, conventions, layer="conv_bbox_pred", out=boxes, name=deltas),
    )


def _write_reduction(g: GraphWriter, head: RfcnHead, feature: Feature) -> Feature:
    if head.reduced is None:
        return feature
    layer = "conv_dim_reduce"
    return write_relu(g, write_conv(g, feature, layer, Kernel(1), purpose=_PURPOSE, out=head.reduced), layer)


def _write_vote(
    g: GraphWriter,
    head: RfcnHead,
    seen: dict[int, Feature],
    rois: str,
    conventions: Conventions,
    *,
    layer: str,
    out: int,
    name: str,
) -> Feature:
    grid = head.transform.resolution
    maps = []
    for level, feature in sorted(seen.items()):
        blob = f"{layer}_fpn{level}" if head.multilevel else layer
        key = "MODEL.NUM_CLASSES or RFCN.PS_GRID_SIZE"
        maps.append(
            write_conv(g, feature, blob, Kernel(1), purpose=_PURPOSE, out=out * grid**2, name=blob, config_key=key)
        )
    pooled = _write_pooling(g, head.transform, rois, maps, conventions, f"psroipooled_{name}")
    return Feature(g.op("ReduceMean", pooled, g.ints(2, 3), name=name, keepdims=0), out)


def _write_pooling(
    g: GraphWriter, transform: RoiTransform, rois: str, maps: list[Feature], conventions: Conventions, name: str
) -> str:
    (pooled,) = g.call(
        MULTILEVEL_PS_ROI_POOL,
        rois,
        *(feature.name for feature in maps),
        names=(name,),
        spatial_scales=transform.scales,
        grid=transform.resolution,
        min_level=transform.min_level,
        canonical_level=transform.canonical_level,
        canonical_scale=transform.canonical_scale,
        size_offset=float(conventions.plus_one),
    )
    return pooled
