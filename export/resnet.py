"""Residual bodies (He et al. 2016; Xie et al. 2017 for groups): the stem, and stages, which heads use too."""

from __future__ import annotations

from dataclasses import dataclass

from roiline.export.architecture import ResNet
from roiline.export.graph import GraphWriter
from roiline.export.layers import (
    Feature,
    GroupNorm,
    Kernel,
    write_conv,
    write_group_norm,
    write_max_pool,
    write_relu,
    write_sum,
)

_BODY_KEY = "MODEL.CONV_BODY"


@dataclass(frozen=True, slots=True)
class StageShape:
    """Is one stage: its blocks, the stride of its first one, and its dilation, which takes the stride away where it is not 1.

    The first block's shortcut is `projected`, as a rule.
    """

    blocks: int
    stride: int = 2
    dilation: int = 1
    projected: bool = True


def write_resnet(g: GraphWriter, body: ResNet, picture: Feature) -> dict[int, Feature]:
    """Writes the stem and the stages from res2 on; returns the last feature of each stage by its number."""
    stem = _write_unit(
        g, picture, "conv1", Kernel(7, stride=2, pad=3), body.stem_norm, "body stem", affine="res_conv1_bn"
    )
    stem = write_relu(g, stem, _blob_of_unit("conv1", body.stem_norm))
    x = write_max_pool(g, stem, Kernel(3, stride=2, pad=1), "pool1")
    stages: dict[int, Feature] = {}
    for stage in range(2, body.last_stage + 1):
        dilation = body.res5_dilation if stage == 5 else 1
        projected = stage != 2 or body.res2_projected
        shape = StageShape(body.blocks[stage - 2], 1 if stage == 2 else 2, dilation, projected)
        x = stages[stage] = write_res_stage(g, body, x, f"res{stage}", shape)
    return stages


def write_res_stage(g: GraphWriter, body: ResNet, x: Feature, prefix: str, shape: StageShape) -> Feature:
    """Writes one stage of residual blocks `{prefix}_0`, `{prefix}_1`, ..; T rows in, T rows out, and T may be 0."""
    for index in range(shape.blocks):
        stride = shape.stride if index == 0 and shape.dilation == 1 else 1
        write = _write_basic if body.basic else _write_bottleneck
        last, projected = index == shape.blocks - 1, index == 0 and shape.projected
        x = write(g, body, x, f"{prefix}_{index}", stride, shape.dilation, projected=projected, last=last)
    return x


def _write_bottleneck(
    g: GraphWriter,
    body: ResNet,
    x: Feature,
    prefix: str,
    stride: int,
    dilation: int,
    *,
    projected: bool,
    last: bool,
) -> Feature:
    """Writes 1x1, 3x3 and 1x1 convolutions around a shortcut. Caffe2 sums into branch2c's blob, except in a stage's last block."""
    purpose, norm = f"block {prefix}", body.block_norm
    strides = (stride, 1) if body.stride_in_1x1 else (1, stride)
    branch = f"{prefix}_branch2"
    y = _write_unit(g, x, f"{branch}a", Kernel(1, stride=strides[0]), norm, purpose)
    y = write_relu(g, y, _blob_of_unit(f"{branch}a", norm))
    middle = Kernel(3, stride=strides[1], pad=dilation, dilation=dilation, groups=body.groups)
    y = _write_unit(g, y, f"{branch}b", middle, norm, purpose, config_key="RESNETS.NUM_GROUPS")
    y = write_relu(g, y, _blob_of_unit(f"{branch}b", norm))
    y = _write_unit(g, y, f"{branch}c", Kernel(1), norm, purpose, config_key=_BODY_KEY)
    shortcut = _write_projection(g, body, x, prefix, stride, y.channels) if projected else x
    summed = f"{prefix}_sum" if last else _blob_of_sum(f"{branch}c", norm)
    return write_relu(g, write_sum(g, y, shortcut), summed)


def _write_basic(
    g: GraphWriter,
    body: ResNet,
    x: Feature,
    prefix: str,
    stride: int,
    dilation: int,
    *,
    projected: bool,
    last: bool,
) -> Feature:
    """Writes two 3x3 convolutions around a shortcut, named as the first two of a bottleneck."""
    purpose, norm, branch = f"block {prefix}", body.block_norm, f"{prefix}_branch2"
    y = _write_unit(g, x, f"{branch}a", Kernel(3, stride, dilation, dilation), norm, purpose)
    y = write_relu(g, y, _blob_of_unit(f"{branch}a", norm))
    y = _write_unit(g, y, f"{branch}b", Kernel(3, 1, dilation, dilation), norm, purpose, config_key=_BODY_KEY)
    shortcut = _write_projection(g, body, x, prefix, stride, y.channels) if projected else x
    return write_relu(g, write_sum(g, y, shortcut), f"{prefix}_sum" if last else _blob_of_sum(f"{branch}b", norm))


def _write_projection(
    g: GraphWriter, body: ResNet, x: Feature, prefix: str, stride: int, channels: int | None
) -> Feature:
    """Writes the 1x1 convolution that gives a block's input the shape of its output."""
    kernel, purpose = Kernel(1, stride=stride), f"block {prefix}"
    return _write_unit(g, x, f"{prefix}_branch1", kernel, body.shortcut_norm, purpose, out=channels, name=True)


def _write_unit(
    g: GraphWriter,
    x: Feature,
    blob: str,
    kernel: Kernel,
    norm: GroupNorm | None,
    purpose: str,
    *,
    affine: str | None = None,
    out: int | None = None,
    name: bool = False,
    config_key: str | None = None,
) -> Feature:
    """Writes a convolution without bias and what normalises it: an affine channel, folded in, or group normalisation."""
    if norm is None:
        result = affine or f"{blob}_bn"
        return write_conv(
            g,
            x,
            blob,
            kernel,
            purpose=purpose,
            out=out,
            affine=result,
            name=result if name else None,
            config_key=config_key,
        )
    y = write_conv(g, x, blob, kernel, purpose=purpose, out=out, bias=False, name=blob, config_key=config_key)
    return write_group_norm(g, y, f"{blob}_gn", norm, purpose=purpose, name=f"{blob}_gn" if name else None)


def _blob_of_sum(blob: str, norm: GroupNorm | None) -> str:
    """Returns the blob of the last layer before a sum, which Caffe2 sums into."""
    return f"{blob}_{'bn' if norm is None else 'gn'}"


def _blob_of_unit(blob: str, norm: GroupNorm | None) -> str:
    """Returns the blob that Caffe2 computes a unit in: an affine channel works in place, group normalisation does not."""
    return blob if norm is None else f"{blob}_gn"
