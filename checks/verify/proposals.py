"""Dense parts of the reference network: the RPN with its proposals, and the one-stage head with its candidates."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from roiline.checks.verify.arithmetic import sigmoid, softmax
from roiline.checks.verify.computation import Computation
from roiline.checks.verify.heads import Features
from roiline.checks.verify.plan import DensePlan, RpnPlan
from roiline.core.spec import Conventions
from roiline.core.structures import Float32, Int64
from roiline.ops.collect_proposals import COLLECT_PROPOSALS
from roiline.ops.generate_proposals import GENERATE_PROPOSALS
from roiline.ops.retinanet_candidates import RETINANET_CANDIDATES


class DenseMaps(NamedTuple):
    """Is maps of one picture, level by level: scores (1, A or A * C, h, w) and deltas (1, 4A, h, w)."""

    scores: tuple[Float32, ...]
    deltas: tuple[Float32, ...]


class ProposalRows(NamedTuple):
    """Is the proposals of one picture: boxes (R, 4) in network-input pixels and scores (R,), by descending score."""

    boxes: Float32
    scores: Float32


class CandidateRows(NamedTuple):
    """Is the candidates of a one-stage head, with the pictures as first axis: boxes (1, M, 4), scores, classes and levels (1, M)."""

    boxes: Float32
    scores: Float32
    classes: Int64
    levels: Int64


def name_rpn_maps(plan: RpnPlan) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the names of the maps of scores and of deltas that proposals are made of, level by level."""
    ends = [f"_fpn{level.level}" if plan.suffixed else "" for level in plan.levels]
    scores = "rpn_cls_logits" if plan.by_logit else "rpn_cls_probs"
    return tuple(f"{scores}{end}" for end in ends), tuple(f"rpn_bbox_pred{end}" for end in ends)


def compute_rpn_maps(c: Computation, plan: RpnPlan, features: Features) -> DenseMaps:
    """Returns objectness and deltas on every level."""
    shared = f"_fpn{plan.levels[0].level}" if plan.suffixed else ""
    every_score, every_delta = [], []
    for level in plan.levels:
        here = f"_fpn{level.level}" if plan.suffixed else ""
        x = features[level.level]
        for index in range(plan.depth):
            layer = f"conv_rpn{index + 1}" if index else "conv_rpn"
            x = c.conv(x, f"{layer}{here}", pad=1, relu=True, weights_of=f"{layer}{shared}")
        scores = c.conv(x, f"rpn_cls_logits{here}", weights_of=f"rpn_cls_logits{shared}")
        every_delta.append(c.conv(x, f"rpn_bbox_pred{here}", weights_of=f"rpn_bbox_pred{shared}"))
        every_score.append(scores if plan.by_logit else c.show(f"rpn_cls_probs{here}", sigmoid(scores)))
    return DenseMaps(tuple(every_score), tuple(every_delta))


def choose_proposals(plan: RpnPlan, maps: DenseMaps, im_info: Float32, conventions: Conventions) -> ProposalRows:
    """Returns the proposals of one picture that maps of scores and deltas give."""
    parts = []
    for level, scores, deltas in zip(plan.levels, *maps, strict=True):
        stride = np.full(2, level.stride, np.float32)
        parts.append(_generate(plan, scores, deltas, im_info, level.anchors.astype(np.float32), stride, conventions))
    if not plan.suffixed:
        return ProposalRows(parts[0][0][0], parts[0][1][0])
    boxes, best, _ = COLLECT_PROPOSALS.run(
        *(part[0] for part in parts), *(part[1] for part in parts), post_nms_top_n=plan.after_nms
    )
    return ProposalRows(boxes[0], best[0])


def _generate(
    plan: RpnPlan,
    scores: Float32,
    deltas: Float32,
    im_info: Float32,
    anchors: Float32,
    stride: Float32,
    conventions: Conventions,
) -> tuple[Float32, Float32]:
    """Returns the boxes (1, P, 4) and scores (1, P) of a level; Detectron's Python drops NMS and the limit together."""
    everything = plan.nms <= 0 and not plan.native
    offset = float(conventions.plus_one)
    boxes, best, _ = GENERATE_PROPOSALS.run(
        scores,
        deltas,
        im_info,
        anchors,
        stride,
        pre_nms_top_n=plan.before_nms,
        post_nms_top_n=0 if everything else plan.after_nms,
        nms_thresh=1.0 if everything else plan.nms,
        nms_inclusive=int(conventions.nms_inclusive and not plan.native and not everything),
        min_size=plan.min_size,
        min_size_in_network=int(plan.native),
        min_side=plan.min_side,
        size_offset=offset,
        corner_offset=offset,
        delta_clip=conventions.delta_clip,
    )
    return boxes, best


def name_dense_maps(plan: DensePlan) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the names of the maps of scores and of deltas that candidates are made of, level by level."""
    levels = range(plan.low, plan.low + len(plan.anchors))
    return tuple(f"retnet_cls_prob_fpn{level}" for level in levels), tuple(
        f"retnet_bbox_pred_fpn{level}" for level in levels
    )


def compute_dense_maps(c: Computation, plan: DensePlan, features: Features) -> DenseMaps:
    """Returns class probabilities, background included where there is a softmax, and deltas on every level."""
    probabilities, deltas = [], []
    for level in range(plan.low, plan.low + len(plan.anchors)):
        x = _tower(c, plan, features[level], "cls", level)
        logits = c.conv(x, f"retnet_cls_pred_fpn{level}", pad=1, weights_of=f"retnet_cls_pred_fpn{plan.low}")
        if not plan.shared:
            x = _tower(c, plan, features[level], "bbox", level)
        deltas.append(c.conv(x, f"retnet_bbox_pred_fpn{level}", pad=1, weights_of=f"retnet_bbox_pred_fpn{plan.low}"))
        values = sigmoid(logits)
        if plan.softmax:
            values = softmax(_part_anchors(plan, logits), 2).reshape(logits.shape)
        probabilities.append(c.show(f"retnet_cls_prob_fpn{level}", values))
    return DenseMaps(tuple(probabilities), tuple(deltas))


def _part_anchors(plan: DensePlan, maps: Float32) -> Float32:
    """Returns maps (1, A * K, h, w) as (1, A, K, h, w)."""
    return maps.reshape(1, len(plan.anchors[0]), plan.classes, *maps.shape[2:])


def choose_candidates(
    plan: DensePlan, maps: DenseMaps, im_info: Float32, im_size: Float32, conventions: Conventions, *, regress: bool
) -> CandidateRows:
    """Returns the best anchors of each level of one picture that maps of probabilities and deltas give."""
    scores = maps.scores
    if plan.softmax:
        scores = tuple(_part_anchors(plan, one)[:, :, 1:].reshape(1, -1, *one.shape[2:]) for one in scores)
    offset = float(conventions.plus_one)
    rows = RETINANET_CANDIDATES.run(
        *scores,
        *maps.deltas,
        np.stack(plan.anchors).astype(np.float32),
        im_info,
        im_size,
        strides=tuple(2.0**level for level in range(plan.low, plan.low + len(plan.anchors))),
        pre_nms_top_n=plan.before_nms,
        regress=int(regress),
        network_frame=int(conventions.network_frame),
        clip=int(not conventions.final_clip),
        size_offset=offset,
        corner_offset=offset,
        delta_clip=conventions.delta_clip,
    )
    return CandidateRows(*rows)


def _tower(c: Computation, plan: DensePlan, x: Float32, kind: str, level: int) -> Float32:
    for index in range(plan.convs):
        layer = f"retnet_{kind}_conv_n{index}"
        x = c.conv(
            x,
            f"{layer}_fpn{level}",
            pad=1,
            norm=plan.norm,
            relu=True,
            weights_of=f"{layer}_fpn{plan.low}",
            biased=True,
        )
    return x
