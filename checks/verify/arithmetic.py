"""The layers of the numpy reference network: plain float32 arithmetic on (N, C, H, W) maps and (T, C) rows.

Written from the definitions of the layers alone, so that it shares nothing with what writes or runs graphs. Convolutions are matrix
products over patches, a strip of rows at a time, so that the patches of a large map never lie in memory together.
"""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from roiline.core.structures import Float32

_STRIP_CELLS = 1 << 24
"""How many values the patches of a strip may have: 64 MB."""


def convolve(
    x: Float32,
    weight: Float32,
    bias: Float32 | None = None,
    *,
    stride: int = 1,
    pad: int = 0,
    dilation: int = 1,
    groups: int = 1,
) -> Float32:
    """Returns the cross-correlation of maps (N, C, H, W) with `weight` (out, C / groups, k, k); sizes are rounded down."""
    padded = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad))) if pad else x
    out, inner, size = weight.shape[0], weight.shape[1], weight.shape[2]
    reach = dilation * (size - 1) + 1
    height, width = ((side - reach) // stride + 1 for side in padded.shape[2:])
    result = np.empty((len(x), out, max(height, 0), max(width, 0)), np.float32)
    if not result.size:
        return result
    rows = weight.reshape(groups, out // groups, -1)
    strip = max(1, _STRIP_CELLS // (inner * size * size * width))
    together = max(1, strip // height)
    for group in range(groups):
        taken = slice(group * inner, (group + 1) * inner)
        made = slice(group * (out // groups), (group + 1) * (out // groups))
        for first in range(0, len(x), together):
            for top in range(0, height, strip):
                count = min(strip, height - top)
                span = padded[first : first + together, taken, top * stride : (top + count - 1) * stride + reach]
                columns = _stack_patches(span, size, stride, dilation, width)
                product = rows[group] @ columns
                into = result[first : first + together, made, top : top + count]
                into[:] = product.reshape(into.shape)
    return result if bias is None else result + bias[:, None, None]


def _stack_patches(x: Float32, size: int, stride: int, dilation: int, width: int) -> Float32:
    """Returns (N, C * k * k, cells): what the kernel sees of maps (N, C, h, w) at every cell of the result, `width` of them a row."""
    reach = dilation * (size - 1) + 1
    windows = sliding_window_view(x, (reach, reach), axis=(2, 3))[:, :, ::stride, ::stride, ::dilation, ::dilation]
    patches = np.moveaxis(windows[:, :, :, :width], (4, 5), (2, 3))
    return patches.reshape(len(x), x.shape[1] * size * size, -1)


def transpose_convolve(x: Float32, weight: Float32, bias: Float32, *, stride: int, pad: int) -> Float32:
    """Returns the transposed convolution of (N, C, H, W) with `weight` (C, out, k, k): every cell adds its kernel to the result."""
    images, _, height, width = x.shape
    _, out, size, _ = weight.shape
    full = np.zeros((images, out, (height - 1) * stride + size, (width - 1) * stride + size), np.float32)
    for row, column in np.ndindex(size, size):
        part = np.einsum("nchw,co->nohw", x, weight[:, :, row, column], optimize=True)
        full[:, :, row : row + height * stride : stride, column : column + width * stride : stride] += part
    inside = full[:, :, pad : full.shape[2] - pad, pad : full.shape[3] - pad]
    return inside + bias[:, None, None]


def scale_channels(x: Float32, scale: Float32, shift: Float32) -> Float32:
    """Returns x * scale + shift by channel: a batch normalisation that is frozen."""
    result: Float32 = x * scale[:, None, None] + shift[:, None, None]
    return result


def normalise_groups(x: Float32, scale: Float32, shift: Float32, *, groups: int, epsilon: float) -> Float32:
    """Returns group normalisation: the mean and the biased variance of every group of channels of a picture (Wu and He 2018)."""
    if not x.size:
        return x
    grouped = x.reshape(len(x), groups, -1).astype(np.float64)
    mean = grouped.mean(axis=2, keepdims=True)
    variance = grouped.var(axis=2, keepdims=True)
    normal = ((grouped - mean) / np.sqrt(variance + epsilon)).astype(np.float32).reshape(x.shape)
    return scale_channels(normal, scale, shift)


def rectify(x: Float32) -> Float32:
    """Returns max(x, 0)."""
    return np.maximum(x, np.float32(0))


def pool_maximum(x: Float32, size: int, *, stride: int, pad: int = 0) -> Float32:
    """Returns max pooling; sizes are rounded down."""
    padded = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)), constant_values=-np.inf) if pad else x
    result: Float32 = sliding_window_view(padded, (size, size), axis=(2, 3))[:, :, ::stride, ::stride].max(axis=(4, 5))
    return result


def normalise_response(x: Float32, *, size: int, alpha: float, beta: float, bias: float) -> Float32:
    """Returns x * (bias + alpha / size * the sum of squares of `size` channels around)^-beta."""
    half = size // 2
    squares = np.pad(x.astype(np.float64) ** 2, ((0, 0), (half, half), (0, 0), (0, 0)))
    around = np.sum([squares[:, shift : shift + x.shape[1]] for shift in range(size)], axis=0)
    return np.asarray(x * (bias + alpha / size * around) ** -beta, np.float32)


def enlarge_nearest(x: Float32) -> Float32:
    """Returns every cell twice down and twice across."""
    return x.repeat(2, axis=2).repeat(2, axis=3)


def enlarge_bilinear(x: Float32, factor: int) -> Float32:
    """Returns the map `factor` times as large, sampled between the centres of its cells; the border goes on beyond itself."""

    def samples(cells: int) -> Float32:
        places = (np.arange(cells * factor) + 0.5) / factor - 0.5
        low = np.floor(places).astype(np.int64)
        part = places - low
        weights = np.zeros((cells * factor, cells))
        index = np.arange(cells * factor)
        np.add.at(weights, (index, np.clip(low, 0, cells - 1)), 1 - part)
        np.add.at(weights, (index, np.clip(low + 1, 0, cells - 1)), part)
        return weights.astype(np.float32)

    return np.asarray(samples(x.shape[2]) @ x @ samples(x.shape[3]).T, np.float32)


def flatten(x: Float32) -> Float32:
    """Returns what each row of (T, C, h, w) holds as one row (T, C * h * w); T may be 0."""
    return x.reshape(len(x), int(np.prod(x.shape[1:])))


def connect(x: Float32, weight: Float32, bias: Float32) -> Float32:
    """Returns x W^T + b of rows (T, C)."""
    result: Float32 = x @ weight.T + bias
    return result


def sigmoid(x: Float32) -> Float32:
    """Returns 1 / (1 + e^-x)."""
    with np.errstate(over="ignore"):
        return np.asarray(1 / (1 + np.exp(-x.astype(np.float64))), np.float32)


def softmax(x: Float32, axis: int) -> Float32:
    """Returns e^x over its sum along an axis."""
    powers = np.exp(x.astype(np.float64) - x.max(axis=axis, keepdims=True, initial=-np.inf))
    return np.asarray(powers / powers.sum(axis=axis, keepdims=True), np.float32)
