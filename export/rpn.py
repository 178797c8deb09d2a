"""The region proposal network: objectness and deltas on every level, and the proposals made of them (Ren et al. 2015)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from roiline.core.spec import Conventions
from roiline.export.architecture import RpnLevel, RpnRules
from roiline.export.graph import GraphWriter
from roiline.export.layers import Feature, Kernel, write_conv, write_relu
from roiline.ops.collect_proposals import COLLECT_PROPOSALS
from roiline.ops.generate_proposals import GENERATE_PROPOSALS

_PURPOSE = "region proposal network"


@dataclass(frozen=True, slots=True)
class ProposalTensors:
    """Names padded proposals in network-input pixels: boxes (N, R, 4), scores (N, R), count (N,)."""

    boxes: str
    scores: str
    count: str


class _Names(NamedTuple):
    """Is what is appended to the names of blobs here, and of the weights that all levels share."""

    here: str
    shared: str


def write_rpn(
    g: GraphWriter, rpn: RpnRules, features: dict[int, Feature], im_info: str, conventions: Conventions
) -> ProposalTensors:
    """Writes the RPN on its levels; the weights of the finest level serve all of them."""
    if not rpn.multilevel:
        (level,) = rpn.levels
        return _write_level(g, rpn, level, features[level.level], im_info, _Names("", ""), conventions)
    shared = f"_fpn{rpn.levels[0].level}"
    parts = [
        _write_level(g, rpn, level, features[level.level], im_info, _Names(f"_fpn{level.level}", shared), conventions)
        for level in rpn.levels
    ]
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
    names: _Names,
    conventions: Conventions,
) -> ProposalTensors:
    hidden = feature
    for index in range(rpn.depth):
        layer = f"conv_rpn{index + 1}" if index else "conv_rpn"
        hidden = _write_layer(
            g,
            hidden,
            layer,
            names,
            Kernel(3, pad=1),
            out=(rpn.widths[index] if rpn.widths else 0) or hidden.channels,
            config_key="FPN.DIM",
            relu=True,
        )
    key = "FPN.RPN_ASPECT_RATIOS" if rpn.multilevel else "RPN.SIZES and RPN.ASPECT_RATIOS"
    anchors = len(level.anchors)
    logits = _write_layer(g, hidden, "rpn_cls_logits", names, Kernel(1), out=anchors, config_key=key)
    deltas = _write_layer(g, hidden, "rpn_bbox_pred", names, Kernel(1), out=4 * anchors, config_key=key)
    offset = float(conventions.plus_one)
    everything = rpn.nms_thresh <= 0 and not rpn.native
    inclusive = conventions.nms_inclusive and not rpn.native and not everything
    scores = logits.name
    if not (rpn.ranked_by_logit or rpn.scored_by_logit):
        scores = g.op("Sigmoid", logits.name, name=f"rpn_cls_probs{names.here}")
    boxes, scores, count = g.call(
        GENERATE_PROPOSALS,
        scores,
        deltas.name,
        im_info,
        g.constant(level.anchors.astype(np.float32)),
        write_strides(g, feature) if level.stride is None else g.constant(np.full(2, level.stride, np.float32)),
        names=(
            f"rpn_boxes{names.here}",
            f"rpn_roi_probs{names.here}" if names.here else "rpn_scores",
            f"rpn_count{names.here}",
        ),
        pre_nms_top_n=rpn.pre_nms_top_n,
        post_nms_top_n=0 if everything else rpn.post_nms_top_n,
        nms_thresh=1.0 if everything else rpn.nms_thresh,
        nms_inclusive=int(inclusive),
        min_size=rpn.min_size,
        min_size_in_network=int(rpn.native),
        min_side=rpn.min_side,
        score_thresh=rpn.score_thresh,
        logits=int(rpn.ranked_by_logit),
        size_offset=offset,
        corner_offset=offset,
        delta_clip=conventions.delta_clip,
    )
    return ProposalTensors(boxes, scores, count)


def write_strides(g: GraphWriter, feature: Feature) -> str:
    """Writes (2,) = (down, across): the whole pixels of the network input that a cell of a feature map stands for."""
    pixels = g.op("Shape", "data", start=2, end=4)
    return g.cast(g.op("Div", pixels, g.op("Shape", feature.name, start=2, end=4)), np.float32)


def _write_layer(
    g: GraphWriter,
    x: Feature,
    layer: str,
    names: _Names,
    kernel: Kernel,
    *,
    out: int | None,
    config_key: str,
    relu: bool = False,
) -> Feature:
    blob = f"{layer}{names.here}"
    y = write_conv(
        g,
        x,
        blob,
        kernel,
        purpose=_PURPOSE,
        out=out,
        weights_of=f"{layer}{names.shared}",
        name=None if relu else blob,
        config_key=config_key,
    )
    return write_relu(g, y, blob) if relu else y
