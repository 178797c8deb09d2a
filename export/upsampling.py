"""Layers that enlarge maps of RoIs: transposed convolutions, learned ones and the fixed bilinear ones that Detectron stores as weights."""

from __future__ import annotations

import numpy as np

from roiline.export.graph import GraphWriter
from roiline.export.layers import Feature, Kernel


def write_conv_transpose(
    g: GraphWriter,
    x: Feature,
    blob: str,
    kernel: Kernel,
    *,
    purpose: str,
    out: int | None = None,
    name: str | None = None,
    config_key: str | None = None,
) -> Feature:
    """Writes a transposed convolution with its bias; weights are (in, out, size, size). `out` None: the weights decide."""
    channels = out if out is not None else g.dim(f"{blob}_w", 1)
    weight = g.require(f"{blob}_w", (x.channels, channels, kernel.size, kernel.size), purpose, config_key)
    bias = g.require(f"{blob}_b", (channels,), purpose, config_key)
    result = g.op(
        "ConvTranspose",
        x.name,
        g.parameter(weight, lambda blobs: blobs[weight]),
        g.parameter(bias, lambda blobs: blobs[bias]),
        name=name,
        kernel_shape=(kernel.size, kernel.size),
        strides=(kernel.stride, kernel.stride),
        pads=(kernel.pad,) * 4,
    )
    return Feature(result, channels)


def write_bilinear(
    g: GraphWriter, x: Feature, blob: str, factor: int, *, purpose: str, config_key: str | None = None
) -> Feature:
    """Writes bilinear enlargement by an even `factor`, as the transposed convolution that the weights file has for it."""
    return write_conv_transpose(
        g, x, blob, bilinear_kernel(factor), purpose=purpose, out=x.channels, name=blob, config_key=config_key
    )


def write_resize(g: GraphWriter, x: Feature, factor: int, name: str) -> Feature:
    """Writes bilinear enlargement without weights: samples at pixel centres, border values go on beyond the border."""
    factors = g.constant(np.array([1, 1, factor, factor], np.float32))
    return Feature(g.op("Resize", x.name, "", factors, name=name, mode="linear"), x.channels)


def bilinear_kernel(factor: int) -> Kernel:
    """Returns the geometry of bilinear enlargement by an even factor."""
    return Kernel(2 * factor, stride=factor, pad=factor // 2)


def doubling_kernel(size: int) -> Kernel:
    """Returns the geometry that doubles a map (one cell more or less where `size` is odd)."""
    return Kernel(size, stride=2, pad=max(size // 2 - 1, 0))


def enlarged_size(size: int, kernel: Kernel) -> int:
    """Returns how many cells a side has after a transposed convolution."""
    return (size - 1) * kernel.stride + kernel.size - 2 * kernel.pad
