"""Trunks of mask and keypoint heads: what features of RoIs go through before the layers that make maps of them."""

from __future__ import annotations

from roiline.export.graph import GraphWriter
from roiline.export.layers import Feature, write_normed_conv
from roiline.export.map_heads import RoiStage, Trunk
from roiline.export.resnet import StageShape, write_res_stage

_BLOCKS = 3  # of every res5 in this family, however deep the body


def write_trunk(g: GraphWriter, trunk: Trunk, x: Feature, *, purpose: str, config_key: str) -> Feature:
    """Writes a trunk on RoI features (T, channels, h, w)."""
    if isinstance(trunk, RoiStage):
        x = write_res_stage(g, trunk.body, x, trunk.prefix, StageShape(_BLOCKS, trunk.stride, trunk.dilation))
        return x if trunk.then is None else write_trunk(g, trunk.then, x, purpose=purpose, config_key=config_key)
    for index in range(1, trunk.count + 1):
        x = write_normed_conv(
            g,
            x,
            f"{trunk.prefix}{index}",
            trunk.kernel,
            trunk.norm,
            purpose=purpose,
            out=trunk.channels,
            relu=True,
            config_key=config_key,
        )
    return x
