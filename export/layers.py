"""Layers as R-CNNs use them, written over Caffe2's blob names.

A tensor here is its ONNX name and its number of channels (None where the weights file does not say). Affine channels are folded into
the convolution before them. A result is named as Caffe2 names the blob that ends up holding it, in-place operators included.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from roiline.export.graph import Blobs, GraphWriter


class Feature(NamedTuple):
    """Is a feature map (N, channels, H, W), or rows (T, channels)."""

    name: str
    channels: int | None


@dataclass(frozen=True, slots=True)
class Kernel:
    """Is the geometry of a square convolution."""

    size: int = 1
    stride: int = 1
    pad: int = 0
    dilation: int = 1
    groups: int = 1


def write_conv(
    g: GraphWriter,
    x: Feature,
    blob: str,
    kernel: Kernel,
    *,
    purpose: str,
    out: int | None = None,
    affine: str | None = None,
    name: str | None = None,
    weights_of: str | None = None,
    config_key: str | None = None,
) -> Feature:
    """Writes a convolution with its bias, or (with `affine`) without one and with that affine channel folded in.

    `out` is the number of output channels where something beside the weights fixes it. `weights_of` names the blobs that a layer
    shares, where they differ from its own name (heads that run on every level).
    """
    source = weights_of or blob
    channels = out if out is not None else g.dim(f"{source}_w", 0)
    per_group = x.channels // kernel.groups if x.channels is not None else None
    weight = g.require(f"{source}_w", (channels, per_group, kernel.size, kernel.size), purpose, config_key)
    if affine is None:
        bias = g.require(f"{source}_b", (channels,), purpose, config_key)
        inputs = (g.parameter(weight, lambda b: b[weight]), g.parameter(bias, lambda b: b[bias]))
    else:
        inputs = _fold_affine(g, weight, affine, channels, purpose)
    result = g.op(
        "Conv",
        x.name,
        *inputs,
        name=name,
        kernel_shape=(kernel.size, kernel.size),
        strides=(kernel.stride, kernel.stride),
        pads=(kernel.pad,) * 4,
        dilations=(kernel.dilation, kernel.dilation),
        group=kernel.groups,
    )
    return Feature(result, channels)


def _fold_affine(g: GraphWriter, weight: str, affine: str, channels: int | None, purpose: str) -> tuple[str, str]:
    """Returns W' = W * s and b' of a convolution without bias followed by y = x * s + b."""
    scale = g.require(f"{affine}_s", (channels,), purpose)
    shift = g.require(f"{affine}_b", (channels,), purpose)

    def scale_weight(blobs: Blobs) -> NDArray[np.float32]:
        return blobs[weight] * blobs[scale][:, None, None, None]

    return g.parameter(weight, scale_weight), g.parameter(shift, lambda b: b[shift])


def write_fc(
    g: GraphWriter,
    x: Feature,
    blob: str,
    *,
    purpose: str,
    out: int | None = None,
    name: str | None = None,
    config_key: str | None = None,
) -> Feature:
    """Writes y = x W^T + b on rows (T, channels)."""
    channels = out if out is not None else g.dim(f"{blob}_w", 0)
    weight = g.require(f"{blob}_w", (channels, x.channels), purpose, config_key)
    bias = g.require(f"{blob}_b", (channels,), purpose, config_key)
    inputs = (g.parameter(weight, lambda b: b[weight]), g.parameter(bias, lambda b: b[bias]))
    return Feature(g.op("Gemm", x.name, *inputs, name=name, transB=1), channels)


def write_relu(g: GraphWriter, x: Feature, name: str | None = None) -> Feature:
    """Writes max(x, 0)."""
    return Feature(g.op("Relu", x.name, name=name), x.channels)


def write_sum(g: GraphWriter, first: Feature, second: Feature, name: str | None = None) -> Feature:
    """Writes the element-wise sum of two maps of one shape."""
    return Feature(g.op("Add", first.name, second.name, name=name), first.channels)


def write_max_pool(g: GraphWriter, x: Feature, kernel: Kernel, name: str | None = None) -> Feature:
    """Writes max pooling with Caffe2's floor rule for output sizes."""
    result = g.op(
        "MaxPool",
        x.name,
        name=name,
        kernel_shape=(kernel.size, kernel.size),
        strides=(kernel.stride, kernel.stride),
        pads=(kernel.pad,) * 4,
    )
    return Feature(result, x.channels)


def write_upsample(g: GraphWriter, x: Feature, name: str | None = None) -> Feature:
    """Writes nearest-neighbour upsampling by 2."""
    factors = g.constant(np.array([1, 1, 2, 2], np.float32))
    result = g.op(
        "Resize",
        x.name,
        "",
        factors,
        name=name,
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )
    return Feature(result, x.channels)


def write_flatten(g: GraphWriter, x: Feature, cells: int) -> Feature:
    """Flattens (T, channels, h, w) with h * w = `cells` to rows (T, channels * cells); T may be 0."""
    rows = g.op("Shape", x.name, start=0, end=1)
    width = g.op("Shape", x.name, start=1)
    flat = g.reshape(x.name, rows, g.op("ReduceProd", width, g.ints(0), keepdims=1))
    return Feature(flat, x.channels * cells if x.channels is not None else None)
