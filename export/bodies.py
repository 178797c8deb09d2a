"""Bodies: a picture into feature maps. Residual networks (He et al. 2016; Xie et al. 2017 for groups) and the pyramid on top (FPN)."""

from __future__ import annotations

from roiline.export.architecture import Pyramid, ResNet
from roiline.export.graph import GraphWriter
from roiline.export.layers import (
    Feature,
    Kernel,
    write_conv,
    write_max_pool,
    write_relu,
    write_sum,
    write_upsample,
)

_BODY_KEY = "MODEL.CONV_BODY"


def write_resnet(g: GraphWriter, body: ResNet, picture: Feature) -> dict[int, Feature]:
    """Writes the stem and res2..res5; returns the last feature of each stage by its number."""
    stem = write_conv(g, picture, "conv1", Kernel(7, stride=2, pad=3), purpose="body stem", affine="res_conv1_bn")
    x = write_max_pool(g, write_relu(g, stem, "conv1"), Kernel(3, stride=2, pad=1), "pool1")
    stages: dict[int, Feature] = {}
    for stage, count in enumerate(body.blocks, start=2):
        for index in range(count):
            stride = 2 if stage > 2 and index == 0 else 1
            x = _write_bottleneck(g, body, x, f"res{stage}_{index}", stride, last=index == count - 1)
        stages[stage] = x
    return stages


def _write_bottleneck(
    g: GraphWriter, body: ResNet, x: Feature, prefix: str, stride: int, *, last: bool
) -> Feature:
    """Writes 1x1, 3x3 and 1x1 convolutions around a shortcut. Caffe2 sums into branch2c's blob, except in a stage's last block."""
    purpose = f"body block {prefix}"
    first, second = (stride, 1) if body.stride_in_1x1 else (1, stride)
    branch = f"{prefix}_branch2"
    y = write_conv(g, x, f"{branch}a", Kernel(1, stride=first), purpose=purpose, affine=f"{branch}a_bn")
    y = write_relu(g, y, f"{branch}a")
    middle = Kernel(3, stride=second, pad=1, groups=body.groups)
    y = write_conv(
        g, y, f"{branch}b", middle, purpose=purpose, affine=f"{branch}b_bn", config_key="RESNETS.NUM_GROUPS"
    )
    y = write_relu(g, y, f"{branch}b")
    y = write_conv(g, y, f"{branch}c", Kernel(1), purpose=purpose, affine=f"{branch}c_bn", config_key=_BODY_KEY)
    shortcut = x
    if prefix.endswith("_0"):
        side = f"{prefix}_branch1"
        shortcut = write_conv(
            g, x, side, Kernel(1, stride=stride), purpose=purpose, out=y.channels, affine=f"{side}_bn", name=f"{side}_bn"
        )
    return write_relu(g, write_sum(g, y, shortcut), f"{prefix}_sum" if last else f"{branch}c_bn")


def write_pyramid(g: GraphWriter, pyramid: Pyramid, body: ResNet, stages: dict[int, Feature]) -> dict[int, Feature]:
    """Writes the top-down path; returns the maps by level (Lin et al. 2017)."""
    blobs = {stage: f"res{stage}_{body.blocks[stage - 2] - 1}_sum" for stage in stages}
    top = min(pyramid.max_level, 5)
    key = "FPN.DIM"
    purpose = "pyramid"
    inner = write_conv(
        g,
        stages[5],
        f"fpn_inner_{blobs[5]}",
        Kernel(1),
        purpose=purpose,
        out=pyramid.channels,
        name=f"fpn_inner_{blobs[5]}",
        config_key=key,
    )
    inners = {5: inner}
    for level in range(4, pyramid.min_level - 1, -1):
        blob = f"fpn_inner_{blobs[level]}"
        lateral = write_conv(
            g,
            stages[level],
            f"{blob}_lateral",
            Kernel(1),
            purpose=purpose,
            out=inner.channels,
            name=f"{blob}_lateral",
            config_key=key,
        )
        inner = write_sum(g, lateral, write_upsample(g, inner, f"{blob}_topdown"), blob)
        inners[level] = inner
    levels = {
        level: write_conv(
            g,
            inners[level],
            f"fpn_{blobs[level]}",
            Kernel(3, pad=1),
            purpose=purpose,
            out=inner.channels,
            name=f"fpn_{blobs[level]}",
            config_key=key,
        )
        for level in range(pyramid.min_level, top + 1)
    }
    if pyramid.max_level >= 6:
        levels[6] = write_max_pool(g, levels[5], Kernel(1, stride=2), f"fpn_{blobs[5]}_subsampled_2x")
    return levels
