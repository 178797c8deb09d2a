"""Feature pyramids (Lin et al. 2017): the top-down path over a residual body's stages, and coarser levels."""

from __future__ import annotations

from roiline.export.architecture import Pyramid
from roiline.export.graph import GraphWriter
from roiline.export.layers import (
    Feature,
    Kernel,
    write_conv,
    write_max_pool,
    write_normed_conv,
    write_relu,
    write_sum,
    write_upsample,
)

_TOP = 5  # the coarsest stage of a body
_KEY = "FPN.DIM"
_PURPOSE = "pyramid"


def write_pyramid(g: GraphWriter, pyramid: Pyramid, stages: dict[int, Feature]) -> dict[int, Feature]:
    """Writes the top-down path and the output convolutions; returns the maps by level. Layers are named after the stages' blobs."""
    inner = _write_layer(g, pyramid, stages[_TOP], f"fpn_inner_{stages[_TOP].name}", Kernel(1), pyramid.channels)
    inners = {_TOP: inner}
    for level in range(_TOP - 1, pyramid.min_level - 1, -1):
        blob = f"fpn_inner_{stages[level].name}"
        lateral = _write_layer(g, pyramid, stages[level], f"{blob}_lateral", Kernel(1), inner.channels)
        coarser = write_upsample(g, inner, f"{blob}_topdown") if pyramid.upsampled else inner
        inner = write_sum(g, lateral, coarser, None if pyramid.averaged else blob)
        if pyramid.averaged:
            inner = Feature(g.op("Mul", inner.name, g.scalar(0.5), name=blob), inner.channels)
        inners[level] = inner
    levels = {
        level: _write_layer(g, pyramid, inners[level], f"fpn_{stages[level].name}", Kernel(3, pad=1), inner.channels)
        for level in range(pyramid.min_level, min(pyramid.max_level, _TOP) + 1)
    }
    return levels | _write_coarser_levels(g, pyramid, stages[_TOP], levels)


def _write_layer(g: GraphWriter, pyramid: Pyramid, x: Feature, layer: str, kernel: Kernel, out: int | None) -> Feature:
    return write_normed_conv(g, x, layer, kernel, pyramid.norm, purpose=_PURPOSE, out=out, config_key=_KEY)


def _write_coarser_levels(
    g: GraphWriter, pyramid: Pyramid, top: Feature, levels: dict[int, Feature]
) -> dict[int, Feature]:
    """Writes level 6 as every second cell of level 5, or levels 6, 7, .. as strided convolutions."""
    coarser: dict[int, Feature] = {}
    if pyramid.max_level > _TOP and not pyramid.extra_convs:
        last = levels[_TOP]
        return {_TOP + 1: write_max_pool(g, last, Kernel(1, stride=2), f"{last.name}_subsampled_2x")}
    x = levels[_TOP] if pyramid.extra_of_pyramid else top
    for level in range(_TOP + 1, pyramid.max_level + 1):
        if coarser:
            x = write_relu(g, x, f"{x.name}_relu")
        x = write_conv(
            g,
            x,
            f"fpn_{level}",
            Kernel(3, stride=2, pad=1),
            purpose=_PURPOSE,
            out=pyramid.channels,
            name=f"fpn_{level}",
            config_key=_KEY,
        )
        coarser[level] = x
    return coarser
