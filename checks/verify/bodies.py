"""Bodies and pyramids of the reference network."""

from __future__ import annotations

import numpy as np

from roiline.checks.verify.arithmetic import enlarge_nearest, normalise_response, rectify
from roiline.checks.verify.computation import Computation
from roiline.checks.verify.plan import Chain, LastStage, PyramidPlan, Residual
from roiline.core.structures import Float32

_TOP = 5


def compute_features(
    c: Computation, body: Residual | Chain, pyramid: PyramidPlan | None, data: Float32
) -> dict[int, Float32]:
    """Returns the feature maps (N, C, h, w) by level; a body alone gives its last one."""
    if isinstance(body, Chain):
        return {body.level: _compute_chain(c, body, data)}
    stages = _compute_residual(c, body, data)
    if pyramid is None:
        return {body.last: stages[body.last]}
    return _compute_pyramid(c, body, pyramid, stages)


def _compute_chain(c: Computation, body: Chain, x: Float32) -> Float32:
    for step in body.steps:
        if step.kind == "conv":
            c.stage = f"body {step.name.partition('_')[0]}"
            x = c.conv(x, step.name, stride=step.stride, pad=step.pad, relu=True)
        elif step.kind == "pool":
            x = c.pool(x, step.name, step.size, stride=step.stride)
        else:
            x = c.show(step.name, normalise_response(x, size=5, alpha=0.0005, beta=0.75, bias=2.0))
    return x


def _compute_residual(c: Computation, body: Residual, x: Float32) -> dict[int, Float32]:
    c.stage = "body stem"
    x = c.unit(x, "conv1", body.stem, relu=True, affine="res_conv1_bn", stride=2, pad=3)
    x = c.pool(x, "pool1", 3, stride=2, pad=1)
    stages = {}
    for number, blocks in enumerate(body.blocks, start=2):
        c.stage = f"body res{number}"
        dilation = body.dilation if number == _TOP else 1
        x = c.residual_stage(x, body, LastStage(f"res{number}", body, blocks, 1 if number == 2 else 2, dilation))
        stages[number] = x
    return stages


def _compute_pyramid(
    c: Computation, body: Residual, plan: PyramidPlan, stages: dict[int, Float32]
) -> dict[int, Float32]:
    c.stage = "FPN"
    names = {number: f"res{number}_{blocks - 1}_sum" for number, blocks in enumerate(body.blocks, start=2)}
    inner = c.conv(stages[_TOP], f"fpn_inner_{names[_TOP]}", norm=plan.norm)
    inners = {_TOP: inner}
    for level in range(_TOP - 1, plan.low - 1, -1):
        name = f"fpn_inner_{names[level]}"
        lateral = c.conv(stages[level], f"{name}_lateral", norm=plan.norm)
        merged = lateral + c.show(f"{name}_topdown", enlarge_nearest(inner))
        inner = inners[level] = c.show(name, merged * np.float32(0.5) if plan.averaged else merged)
    levels = {
        level: c.conv(inners[level], f"fpn_{names[level]}", pad=1, norm=plan.norm)
        for level in range(plan.low, min(plan.high, _TOP) + 1)
    }
    if plan.coarser == "pooled" and plan.high > _TOP:
        name = f"fpn_{names[_TOP]}{'_gn' if plan.norm else ''}_subsampled_2x"
        levels[_TOP + 1] = c.show(name, levels[_TOP][:, :, ::2, ::2])
    elif plan.high > _TOP:
        x = stages[_TOP]
        for level in range(_TOP + 1, plan.high + 1):
            if level > _TOP + 1:
                x = c.show(f"fpn_{level - 1}_relu", rectify(x))
            x = levels[level] = c.conv(x, f"fpn_{level}", stride=2, pad=1)
    return levels
