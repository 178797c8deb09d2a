"""The region proposal network: objectness and deltas on every level, and the proposals made of them (Ren et al. 2015)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from roiline.core.spec import Conventions
from roiline.export.architecture import RpnLevel, RpnRules
from roiline.export.graph import GraphWriter
from roiline.export.layers import Feature, Kernel, write_conv, write_relu
from roiline.ops.collect_proposals import COLLECT_PROPOSALS
from roiline.ops.generate_proposals import GENERATE_PROPOSALS


class ProposalTensors(NamedTuple):
    """Names padded proposals in network-input pixels: boxes (N, R, 4), scores (N, R), count (N,)."""

    boxes: str
    scores: str
    count: str


def write_rpn(
    g: GraphWriter, rpn: RpnRules, features: dict[int, Feature], im_info: str, conventions: Conventions
) -> ProposalTensors:
    """Writes the RPN on its levels; the weights of the finest level serve all of them."""
    shared = f"fpn{rpn.levels[0].level}"
    parts = [_write_level(g, rpn, level, features[level.level], im_info, shared, conventions) for level in rpn.levels]
    boxes, scores, count = g.call(
        COLLECT_PROPOSALS,
        *(part.boxes for part in parts),
        *(part.scores for part in parts),
        names=("rpn_boxes", "rpn_scores", "rpn_count"),
        post_nms_top_n=rpn.post_nms_top_n,
    )
    return ProposalTensors(boxes, scores, count)


def _write_level(
    g: GraphWriter,
    rpn: RpnRules,
    level: RpnLevel,
    feature: Feature,
    im_info: str,
    shared: str,
    conventions: Conventions,
) -> ProposalTensors:
    here, anchors = f"fpn{level.level}", len(level.anchors)
    purpose, key = "region proposal network", "FPN.RPN_ASPECT_RATIOS"
    hidden = write_conv(
        g,
        feature,
        f"conv_rpn_{here}",
        Kernel(3, pad=1),
        purpose=purpose,
        out=feature.channels,
        weights_of=f"conv_rpn_{shared}",
        config_key="FPN.DIM",
    )
    hidden = write_relu(g, hidden, f"conv_rpn_{here}")
    logits = write_conv(
        g,
        hidden,
        f"rpn_cls_logits_{here}",
        Kernel(1),
        purpose=purpose,
        out=anchors,
        weights_of=f"rpn_cls_logits_{shared}",
        name=f"rpn_cls_logits_{here}",
        config_key=key,
    )
    deltas = write_conv(
        g,
        hidden,
        f"rpn_bbox_pred_{here}",
        Kernel(1),
        purpose=purpose,
        out=4 * anchors,
        weights_of=f"rpn_bbox_pred_{shared}",
        name=f"rpn_bbox_pred_{here}",
        config_key=key,
    )
    offset = float(conventions.plus_one)
    everything = rpn.nms_thresh <= 0
    boxes, scores, count = g.call(
        GENERATE_PROPOSALS,
        g.op("Sigmoid", logits.name, name=f"rpn_cls_probs_{here}"),
        deltas.name,
        im_info,
        g.constant(level.anchors.astype(np.float32)),
        g.constant(np.full(2, level.stride, np.float32)),
        names=(f"rpn_boxes_{here}", f"rpn_roi_probs_{here}", f"rpn_count_{here}"),
        pre_nms_top_n=rpn.pre_nms_top_n,
        post_nms_top_n=0 if everything else rpn.post_nms_top_n,
        nms_thresh=1.0 if everything else rpn.nms_thresh,
        nms_inclusive=int(conventions.nms_inclusive and not everything),
        min_size=rpn.min_size,
        size_offset=offset,
        corner_offset=offset,
        delta_clip=conventions.delta_clip,
    )
    return ProposalTensors(boxes, scores, count)
