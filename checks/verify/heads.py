"""Heads of the reference network: what it says of RoIs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from roiline.checks.verify.arithmetic import enlarge_bilinear, flatten, sigmoid, softmax
from roiline.checks.verify.computation import Computation
from roiline.checks.verify.plan import BoxPlan, KeypointPlan, LastStage, MaskPlan, Perceptron, Pooling
from roiline.core.boxes import clip_boxes
from roiline.core.spec import Conventions
from roiline.core.structures import Float32, Int64
from roiline.ops.box_coding import decode_boxes
from roiline.ops.multilevel_roi_align import MULTILEVEL_ROI_ALIGN
from roiline.ops.nodes import Attribute
from roiline.ops.ps_roi_pool import MULTILEVEL_PS_ROI_POOL
from roiline.ops.roi_pool import MULTILEVEL_ROI_POOL

Features = Mapping[int, Float32]


class RawRows(NamedTuple):
    """Is what a box head says of RoIs: the rows (T, 5) that it decides on, probabilities (T, K), and deltas (T, 4K) or (T, 8)."""

    rois: Float32
    cls_prob: Float32
    bbox_pred: Float32


def pool_features(plan: Pooling, features: Features, rois: Float32, conventions: Conventions) -> Float32:
    """Returns what RoIs (T, 5) take from the maps of their levels."""
    maps = [features[level] for level in range(plan.low, plan.high + 1)]
    levels: dict[str, Attribute] = {
        "spatial_scales": plan.scales,
        "min_level": plan.low,
        "canonical_level": plan.canonical_level,
        "canonical_scale": plan.canonical_scale,
        "size_offset": float(conventions.plus_one),
    }
    if plan.method == "votes":
        return MULTILEVEL_PS_ROI_POOL.run(rois, *maps, grid=plan.resolution, **levels)[0]
    epsilon: dict[str, Attribute] = {"level_epsilon": conventions.epsilon}
    if plan.method == "max":
        return MULTILEVEL_ROI_POOL.run(rois, *maps, resolution=plan.resolution, **levels, **epsilon)[0]
    return MULTILEVEL_ROI_ALIGN.run(
        rois,
        *maps,
        resolution=plan.resolution,
        sampling_ratio=plan.sampling,
        half_pixel=int(plan.half_pixel),
        epsilon_on_level=int(conventions.level_epsilon == "level"),
        **levels,
        **epsilon,
    )[0]


# --- boxes -----------------------------------------------------------------------------------------------------------


def compute_boxes(
    c: Computation, plan: BoxPlan, features: Features, rois: Float32, extent_hw: Float32, conventions: Conventions
) -> RawRows:
    """Returns what the head says of RoIs (T, 5) of one picture, whose size in the network is `extent_hw`."""
    if plan.pooling is None:
        votes = _compute_votes(c, plan, features, rois, conventions, ("cls_score", "bbox_pred"))
        return RawRows(rois, _show_probabilities(c, plan, votes[0]), votes[1])
    pooled = _pool_rois(c, plan.pooling, features, rois, conventions, plan.pooled)
    if plan.join:
        return _compute_fused(c, plan, features, rois, pooled, conventions)
    if not plan.stages:
        return RawRows(rois, *_compute_outputs(c, plan, plan.trunk, pooled))
    return _compute_cascade(c, plan, features, rois, pooled, extent_hw, conventions)


def _pool_rois(
    c: Computation, plan: Pooling, features: Features, rois: Float32, conventions: Conventions, name: str
) -> Float32:
    head, c.stage = c.stage, f"{c.stage}: RoI features"
    pooled = c.show(name, pool_features(plan, features, rois, conventions))
    c.stage = head
    return pooled


def _compute_outputs(
    c: Computation,
    plan: BoxPlan,
    trunk: Perceptron | LastStage | None,
    pooled: Float32,
    here: str = "",
    source: str = "",
) -> tuple[Float32, Float32]:
    """Returns probabilities and deltas; blobs are called by `here`, weights by `source`."""
    x = compute_trunk(c, trunk, pooled, here, source)
    scores = c.dense(x, f"cls_score{here}", weights_of=f"cls_score{source}")
    deltas = c.dense(x, f"bbox_pred{here}", weights_of=f"bbox_pred{source}")
    return _show_probabilities(c, plan, scores, here), deltas


def compute_trunk(
    c: Computation, trunk: Perceptron | LastStage | None, x: Float32, here: str = "", source: str = ""
) -> Float32:
    """Returns what the output layers see of pooled features (T, C, h, w)."""
    if isinstance(trunk, LastStage):
        x = c.residual_stage(x, trunk.body, trunk)
        return c.show("res5_pool", x.mean(axis=(2, 3), keepdims=True))
    if trunk is None:
        return x
    for index in range(1, trunk.convs + 1):
        name = f"head_conv{index}"
        x = c.conv(x, f"{name}{here}", pad=1, norm=trunk.norm, relu=True, weights_of=f"{name}{source}")
    for index in range(6, 6 + trunk.count):
        x = c.dense(x, f"fc{index}{here}", relu=True, weights_of=f"fc{index}{source}")
    return x


def _show_probabilities(c: Computation, plan: BoxPlan, scores: Float32, here: str = "") -> Float32:
    values = sigmoid(scores) if plan.outputs == "sigmoid" else softmax(scores, 1)
    if plan.outputs == "mixed":
        values = (values + sigmoid(scores)) * np.float32(0.5)
    return c.show(f"cls_prob{here}", values)


def _compute_votes(
    c: Computation,
    plan: BoxPlan,
    features: Features,
    rois: Float32,
    conventions: Conventions,
    names: tuple[str, str],
) -> tuple[Float32, Float32]:
    """Returns class scores and deltas by position-sensitive maps, averaged over the cells of each RoI."""
    pooling = plan.votes
    if pooling is None:
        raise ValueError("a head without position-sensitive maps has no votes")
    several = pooling.high > pooling.low
    levels = range(pooling.low, pooling.high + 1)
    seen = {
        level: c.conv(features[level], "conv_dim_reduce", relu=True) if plan.reduced else features[level]
        for level in levels
    }
    said = []
    for layer, name in zip(("conv_cls", "conv_bbox_pred"), names, strict=True):
        maps = {level: c.conv(seen[level], f"{layer}_fpn{level}" if several else layer) for level in levels}
        pooled = _pool_rois(c, pooling, maps, rois, conventions, f"psroipooled_{name}")
        said.append(c.show(name, pooled.mean(axis=(2, 3))))
    return said[0], said[1]


def _compute_fused(
    c: Computation, plan: BoxPlan, features: Features, rois: Float32, pooled: Float32, conventions: Conventions
) -> RawRows:
    x = compute_trunk(c, plan.trunk, pooled)
    votes = _compute_votes(c, plan, features, rois, conventions, ("psroi_cls_score", "psroi_bbox_pred"))
    if plan.join == "concat":
        x = np.concatenate([flatten(x), *votes], axis=1)
    names = ("cls_score", "bbox_pred")
    said = [c.dense(x, name) for name in names]
    if plan.join != "concat":
        part = np.float32(0.5 if plan.join == "mean" else 1)
        rows = zip(names, said, votes, strict=True)
        said = [c.show(f"fused_{name}", (one + other) * part) for name, one, other in rows]
    return RawRows(rois, _show_probabilities(c, plan, said[0]), said[1])


def _compute_cascade(
    c: Computation,
    plan: BoxPlan,
    features: Features,
    rois: Float32,
    pooled: Float32,
    extent_hw: Float32,
    conventions: Conventions,
) -> RawRows:
    """Returns the last stage's answer: every stage runs on the boxes that the one before has moved."""
    if plan.pooling is None:
        raise ValueError("a cascade pools RoIs")
    probabilities, deltas = _compute_outputs(c, plan, plan.trunk, pooled)
    said = [probabilities]
    last = len(plan.stages)
    for stage in range(2, last + 1):
        c.stage = f"box head, stage {stage}"
        rois = c.show(f"rois_{stage}", _move_rois(plan, rois, deltas, stage, extent_hw, conventions))
        pooled = _pool_rois(c, plan.pooling, features, rois, conventions, f"roi_{stage}_feat")
        probabilities, deltas = _compute_outputs(c, plan, plan.later, pooled, f"_{stage}", f"_{stage}")
        said.append(probabilities)
    if plan.mean == "none" or last == 1:
        return RawRows(rois, probabilities, deltas)
    if plan.mean == "last boxes":
        said = [probabilities] + [
            _compute_outputs(c, plan, plan.later, pooled, f"_{stage}_{last}", "" if stage == 1 else f"_{stage}")[0]
            for stage in range(1, last)
        ]
    total = c.show(f"cls_prob_{last}_sum", np.sum(np.stack(said), axis=0, dtype=np.float32))
    return RawRows(rois, c.show("cls_prob_mean", total / np.float32(last)), deltas)


def _move_rois(
    plan: BoxPlan, rois: Float32, deltas: Float32, stage: int, extent_hw: Float32, conventions: Conventions
) -> Float32:
    offset = float(conventions.plus_one)
    boxes = decode_boxes(
        rois[:, 1:],
        deltas[:, -4:],
        weights=plan.stages[stage - 2],
        size_offset=offset,
        corner_offset=offset,
        delta_clip=conventions.delta_clip,
    )
    if plan.clipped:
        boxes = clip_boxes(boxes, float(extent_hw[0]), float(extent_hw[1]), plus_one=offset)
    return np.concatenate([rois[:, :1], boxes], axis=1)


# --- maps ------------------------------------------------------------------------------------------------------------


def compute_masks(
    c: Computation, plan: MaskPlan, features: Features, rois: Float32, classes: Int64, conventions: Conventions
) -> Float32:
    """Returns the probabilities (M, size, size) of each RoI's class."""
    x = c.roi_trunk(_pool_rois(c, plan.pooling, features, rois, conventions, plan.pooled), plan.trunk)
    x = c.deconv(x, "conv5_mask", relu=True)
    name = "mask_fcn_logits"
    x = c.dense(x, name) if plan.dense else c.conv(x, name)
    if plan.enlarged > 1:
        x = c.deconv(x, f"{name}_up", stride=plan.enlarged, pad=plan.enlarged // 2)
    every = flatten(c.show("mask_fcn_probs", sigmoid(x)))
    every = every.reshape(len(rois), every.shape[1] // plan.size**2, plan.size, plan.size)
    columns = np.zeros(len(rois), np.int64) if plan.agnostic else classes
    return c.show("masks", every[np.arange(len(rois)), columns])


def compute_keypoints(
    c: Computation, plan: KeypointPlan, features: Features, rois: Float32, conventions: Conventions
) -> Float32:
    """Returns the heatmaps (M, J, size, size), logits."""
    x = c.roi_trunk(_pool_rois(c, plan.pooling, features, rois, conventions, plan.pooled), plan.trunk)
    if plan.doubled:
        x = c.deconv(x, "kps_deconv", relu=True)
    name = "kps_score_lowres" if plan.enlarged > 1 else "kps_score"
    x = c.deconv(x, name) if plan.transposed else c.conv(x, name)
    if plan.enlarged == 1:
        return x
    if plan.weightless:
        return c.show("kps_score", enlarge_bilinear(x, plan.enlarged))
    return c.deconv(x, "kps_score", stride=plan.enlarged, pad=plan.enlarged // 2)
