"""Layers as R-CNNs use them, written over Caffe2's blob names.

A tensor here is its ONNX name and its number of channels (None where the weights file does not say). Affine channels are folded into
the convolution before them. A result is named as Caffe2 names the blob that ends up holding it, in-place operators included.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from roiline.core.errors import ExportError
from roiline.export.graph import Blobs, GraphWriter


class Feature(NamedTuple):
    """Is a feature map (N, channels, H, W), or rows (T, channels)."""

    name: str
    channels: int | None


@dataclass(frozen=True, slots=True)
class GroupNorm:
    """Is group normalisation (Wu and He 2018): a number of groups, or (`group_size` > 0) of channels in a group."""

    groups: int
    epsilon: float
    group_size: int = 0

    def count_groups(self, channels: int, blob: str) -> int:
        """Returns the number of groups of a layer with this many channels.

        Raises:
            ExportError: they cannot be divided so.
        """
        part = self.group_size or self.groups
        if channels % part:
            what = "groups of GROUP_NORM.DIM_PER_GP" if self.group_size else "GROUP_NORM.NUM_GROUPS groups,"
            raise ExportError(f"{blob}: {channels} channels cannot be divided into {what} {part}")
        return channels // part if self.group_size else part


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
    bias: bool = True,
    name: str | None = None,
    weights_of: str | None = None,
    config_key: str | None = None,
) -> Feature:
    """Writes a convolution with its bias, or (with `affine`) without one and with that affine channel folded in, or without either.

    `out` is the number of output channels where something beside the weights fixes it. `weights_of` names the blobs that a layer
    shares, where they differ from its own name (heads that run on every level).
    """
    source = weights_of or blob
    channels = out if out is not None else g.dim(f"{source}_w", 0)
    per_group = x.channels // kernel.groups if x.channels is not None else None
    weight = g.require(f"{source}_w", (channels, per_group, kernel.size, kernel.size), purpose, config_key)
    if affine is not None:
        inputs = _fold_affine(g, weight, affine, channels, purpose)
    else:
        inputs = (_write_parameter(g, weight),)
        if bias:
            inputs += (_write_parameter(g, g.require(f"{source}_b", (channels,), purpose, config_key)),)
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


def _write_parameter(g: GraphWriter, blob: str) -> str:
    return g.parameter(blob, lambda blobs: blobs[blob])


def _fold_affine(g: GraphWriter, weight: str, affine: str, channels: int | None, purpose: str) -> tuple[str, ...]:
    """Returns W' = W * s and b' of a convolution without bias followed by y = x * s + b."""
    scale = g.require(f"{affine}_s", (channels,), purpose)
    shift = g.require(f"{affine}_b", (channels,), purpose)

    def scale_weight(blobs: Blobs) -> NDArray[np.float32]:
        return blobs[weight] * blobs[scale][:, None, None, None]

    return g.parameter(weight, scale_weight), _write_parameter(g, shift)


def write_group_norm(
    g: GraphWriter,
    x: Feature,
    blob: str,
    norm: GroupNorm,
    *,
    purpose: str,
    name: str | None = None,
    weights_of: str | None = None,
) -> Feature:
    """Writes group normalisation of (T, channels, h, w); T may be 0.

    The variance is the mean of squares less the square of the mean, as Caffe2 computes it: with `InstanceNormalization`, which is more
    exact, scores of a network full of such layers differ ten times as much from the original's.
    """
    source = weights_of or blob
    scale = g.require(f"{source}_s", (x.channels,), purpose)
    shift = g.require(f"{source}_b", (x.channels,), purpose)
    groups = norm.count_groups(x.channels, blob) if x.channels else 1  # unknown: a blob is missing, which will be said
    shape = g.op("Shape", x.name)
    rows = g.op("Shape", x.name, start=0, end=1)
    cells = g.op("ReduceProd", g.op("Shape", x.name, start=1), g.ints(0), keepdims=1)
    grouped = g.reshape(x.name, rows, groups, g.op("Div", cells, g.ints(groups)))
    mean = g.op("ReduceMean", grouped, g.ints(2), keepdims=1)
    mean_square = g.op("ReduceMean", g.op("Mul", grouped, grouped), g.ints(2), keepdims=1)
    variance = g.op(
        "Max", g.op("Sub", mean_square, g.op("Mul", mean, mean)), g.scalar(0.0)
    )  # rounding can take it below
    inverse = g.op("Reciprocal", g.op("Sqrt", g.op("Add", variance, g.scalar(norm.epsilon))))
    normal = g.op("Mul", g.op("Sub", grouped, mean), inverse)
    y = g.op("Reshape", normal, shape, allowzero=1)
    y = g.op("Mul", y, g.parameter(scale, lambda blobs: blobs[scale].reshape(-1, 1, 1)))
    return Feature(
        g.op("Add", y, g.parameter(shift, lambda blobs: blobs[shift].reshape(-1, 1, 1)), name=name), x.channels
    )


def write_normed_conv(
    g: GraphWriter,
    x: Feature,
    layer: str,
    kernel: Kernel,
    norm: GroupNorm | None,
    *,
    purpose: str,
    out: int | None = None,
    relu: bool = False,
    biased: bool = False,
    weights_of: str | None = None,
    config_key: str | None = None,
) -> Feature:
    """Writes a convolution with its bias, or group normalisation after it (blob `{layer}_gn`); then ReLU if wanted.

    A bias beside the normalisation is there only where the layer is `biased`.
    """
    source, result = weights_of or layer, layer if norm is None else f"{layer}_gn"
    y = write_conv(
        g,
        x,
        layer,
        kernel,
        purpose=purpose,
        out=out,
        bias=norm is None or biased,
        name=None if norm is None and relu else layer,
        weights_of=source,
        config_key=config_key,
    )
    if norm is not None:
        name = None if relu else result
        y = write_group_norm(g, y, result, norm, purpose=purpose, name=name, weights_of=f"{source}_gn")
    return write_relu(g, y, result) if relu else y


def write_fc(
    g: GraphWriter,
    x: Feature,
    blob: str,
    *,
    purpose: str,
    out: int | None = None,
    name: str | None = None,
    weights_of: str | None = None,
    config_key: str | None = None,
) -> Feature:
    """Writes y = x W^T + b on rows (T, channels)."""
    source = weights_of or blob
    channels = out if out is not None else g.dim(f"{source}_w", 0)
    weight = g.require(f"{source}_w", (channels, x.channels), purpose, config_key)
    bias = g.require(f"{source}_b", (channels,), purpose, config_key)
    inputs = (_write_parameter(g, weight), _write_parameter(g, bias))
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


def write_response_norm(
    g: GraphWriter, x: Feature, *, size: int, alpha: float, beta: float, bias: float, name: str | None = None
) -> Feature:
    """Writes normalisation across `size` channels around each one, with Caffe2's meaning of alpha (it is divided by `size`)."""
    return Feature(g.op("LRN", x.name, name=name, size=size, alpha=alpha, beta=beta, bias=bias), x.channels)


def write_mean(g: GraphWriter, x: Feature, name: str | None = None) -> Feature:
    """Writes the mean over all cells of (T, channels, h, w): rows (T, channels); T may be 0."""
    pooled = g.op("GlobalAveragePool", x.name, name=name)
    return Feature(g.squeeze(pooled, 2, 3), x.channels)


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
