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


def compute_proposals(
    c: Computation, plan: RpnPlan, features: Features, im_info: Float32, conventions: Conventions
) -> ProposalRows:
    """Returns the proposals of one picture."""
    parts = []
    shared = f"_fpn{plan.levels[0].level}" if plan.suffixed else ""
    for level in plan.levels:
        here = f"_fpn{level.level}" if plan.suffixed else ""
        x = features[level.level]
        for index in range(plan.depth):
            layer = f"conv_rpn{index + 1}" if index else "conv_rpn"
            x = c.conv(x, f"{layer}{here}", pad=1, relu=True, weights_of=f"{layer}{shared}")
        scores = c.conv(x, f"rpn_cls_logits{here}", weights_of=f"rpn_cls_logits{shared}")
        deltas = c.conv(x, f"rpn_bbox_pred{here}", weights_of=f"rpn_bbox_pred{shared}")
        if not plan.by_logit:
            scores = c.show(f"rpn_cls_probs{here}", sigmoid(scores))
        stride = np.full(2, level.stride, np.float32)
        anchors = level.anchors.astype(np.float32)
        parts.append(_generate(plan, scores, deltas, im_info, anchors, stride, conventions))
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


def compute_candidates(
    c: Computation,
    plan: DensePlan,
    features: Features,
    im_info: Float32,
    im_size: Float32,
    conventions: Conventions,
    *,
    regress: bool,
) -> CandidateRows:
    """Returns what a RetinaNet head says of the anchors of all levels, the best of each level."""
    probabilities, deltas, strides = [], [], []
    count = len(plan.anchors[0])
    for level in range(plan.low, plan.low + len(plan.anchors)):
        x = _tower(c, plan, features[level], "cls", level)
        logits = c.conv(x, f"retnet_cls_pred_fpn{level}", pad=1, weights_of=f"retnet_cls_pred_fpn{plan.low}")
        if not plan.shared:
            x = _tower(c, plan, features[level], "bbox", level)
        deltas.append(c.conv(x, f"retnet_bbox_pred_fpn{level}", pad=1, weights_of=f"retnet_bbox_pred_fpn{plan.low}"))
        name = f"retnet_cls_prob_fpn{level}"
        if plan.softmax:
            blocks = softmax(logits.reshape(1, count, plan.classes, *logits.shape[2:]), 2)
            c.show(name, blocks.reshape(logits.shape))
            probabilities.append(blocks[:, :, 1:].reshape(1, -1, *logits.shape[2:]))
        else:
            probabilities.append(c.show(name, sigmoid(logits)))
        strides.append(2.0**level)
    offset = float(conventions.plus_one)
    rows = RETINANET_CANDIDATES.run(
        *probabilities,
        *deltas,
        np.stack(plan.anchors).astype(np.float32),
        im_info,
        im_size,
        strides=tuple(strides),
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
