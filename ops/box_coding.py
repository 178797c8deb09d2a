"""Box regression: deltas and boxes into boxes, as numpy and as ONNX nodes.

Source: the parametrisation of Girshick et al. (R-CNN, 2014) with Detectron's conventions: widths are x2 - x1 + size_offset, and the
far corner is centre + half the width - corner_offset. Both offsets are 1 for Detectron, 0 for detectron2 and torchvision.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from roiline.core.structures import Float32
from roiline.ops.nodes import NodeWriter


def decode_boxes(
    boxes: Float32,
    deltas: Float32,
    *,
    weights: Sequence[float] = (1.0, 1.0, 1.0, 1.0),
    size_offset: float,
    corner_offset: float,
    delta_clip: float,
) -> Float32:
    """Applies deltas (..., m, 4) = (dx, dy, dw, dh) to boxes (..., 4) or (..., 1, 4); float32 in the original's order of operations."""
    f = np.float32
    sizes = boxes[..., 2:] - boxes[..., :2] + f(size_offset)
    centres = boxes[..., :2] + f(0.5) * sizes
    shift = deltas[..., :2] / np.asarray(weights[:2], f)
    growth = np.minimum(deltas[..., 2:] / np.asarray(weights[2:], f), f(delta_clip))
    new_centres = shift * sizes + centres
    half = f(0.5) * (np.exp(growth) * sizes)
    decoded: Float32 = np.concatenate([new_centres - half, new_centres + half - f(corner_offset)], axis=-1)
    return decoded.astype(f, copy=False)


def write_decode(
    w: NodeWriter,
    boxes: str,
    deltas: str,
    *,
    weights: Sequence[float] = (1.0, 1.0, 1.0, 1.0),
    size_offset: float,
    corner_offset: float,
    delta_clip: float,
) -> str:
    """Writes `decode_boxes` for tensors whose last axis is 4 and whose other axes broadcast; returns the decoded boxes."""
    low, high = w.columns(boxes, 0, 2), w.columns(boxes, 2, 4)
    sizes = w.op("Sub", high, low)
    if size_offset:
        sizes = w.op("Add", sizes, w.scalar(size_offset))
    centres = w.op("Add", low, w.op("Mul", w.scalar(0.5), sizes))
    shift, growth = w.columns(deltas, 0, 2), w.columns(deltas, 2, 4)
    if tuple(weights) != (1.0, 1.0, 1.0, 1.0):
        shift = w.op("Div", shift, w.constant(np.asarray(weights[:2], np.float32)))
        growth = w.op("Div", growth, w.constant(np.asarray(weights[2:], np.float32)))
    growth = w.op("Min", growth, w.scalar(delta_clip))
    new_centres = w.op("Add", w.op("Mul", shift, sizes), centres)
    half = w.op("Mul", w.scalar(0.5), w.op("Mul", w.op("Exp", growth), sizes))
    far = w.op("Add", new_centres, half)
    if corner_offset:
        far = w.op("Sub", far, w.scalar(corner_offset))
    return w.concat(w.op("Sub", new_centres, half), far, axis=-1)


def write_clip(w: NodeWriter, boxes: str, size_hw: str, *, size_offset: float) -> str:
    """Moves boxes (..., 4) into [0, width - size_offset] x [0, height - size_offset]; `size_hw` (..., 2) broadcasts against them."""
    height, width = w.columns(size_hw, 0, 1), w.columns(size_hw, 1, 2)
    limit = w.concat(width, height, width, height, axis=-1)
    if size_offset:
        limit = w.op("Sub", limit, w.scalar(size_offset))
    return w.op("Max", w.op("Min", boxes, limit), w.scalar(0.0))
