"""Proposals as heat: where the proposals of a picture lie, each spreading its score over its box, warm where much comes together."""

from __future__ import annotations

import numpy as np

from roiline.core.structures import Float32, Float64, UInt8
from roiline.report.labels import Pen, Rectangle, draw_label

_STRONGEST = 0.8
"""How much of the picture's own colour the hottest place covers."""


def measure_heat(boxes: Float32, scores: Float32, height: int, width: int) -> Float64:
    """Returns the heat (H, W) of proposals in pixels of a picture, 0 to 1.

    A box adds its score over the root of its area to all of its pixels (inclusive corners), so that neither large boxes, which
    cover everything, nor small ones, which are dense, drown the others. The sum is scaled to its largest value.
    """
    edges = np.zeros((height + 1, width + 1))
    limit = np.array([width, height, width, height], np.float64)
    corners = np.round(boxes.astype(np.float64))
    corners[:, 2:] += 1
    corners = np.clip(corners, 0, limit).astype(np.int64)
    sides = np.maximum(corners[:, 2:] - corners[:, :2], 0)
    weights = np.where(sides.all(axis=1), np.maximum(scores, 0) / np.sqrt(np.maximum(sides.prod(axis=1), 1)), 0.0)
    left, top, right, bottom = corners.T
    for rows, columns, sign in ((top, left, 1), (bottom, right, 1), (top, right, -1), (bottom, left, -1)):
        np.add.at(edges, (rows, columns), sign * weights)
    heat: Float64 = np.maximum(edges.cumsum(axis=0).cumsum(axis=1)[:height, :width], 0.0)
    most = heat.max(initial=0.0)
    return heat / most if most > 0 else heat


def paint_heat(canvas: UInt8, heat: Float64, pen: Pen, caption: str) -> None:
    """Lays heat (H, W) over a canvas (H, W, 3), cold places nearly clear, with a scale and a caption at the foot."""
    import cv2

    shades = np.round(255 * heat).astype(np.uint8)
    colors = cv2.applyColorMap(shades, cv2.COLORMAP_TURBO)
    cover = (_STRONGEST * np.sqrt(heat))[:, :, None]
    canvas[:] = np.round((1 - cover) * canvas + cover * colors).astype(np.uint8)
    place = draw_label(canvas, (0, canvas.shape[0], 0, canvas.shape[0]), caption, "", (32, 32, 32), pen, [])
    if place is not None:
        _paint_scale(canvas, place)


def _paint_scale(canvas: UInt8, caption: Rectangle) -> None:
    """Paints the colours from cold to hot right of a caption, where there is room."""
    import cv2

    _, top, right, bottom = caption
    length = min(canvas.shape[1] - right - 2, 6 * (bottom - top))
    if length > 1:
        shades = np.linspace(0, 255, length).astype(np.uint8)[None].repeat(bottom - top + 1, axis=0)
        canvas[top : bottom + 1, right + 1 : right + 1 + length] = cv2.applyColorMap(shades, cv2.COLORMAP_TURBO)
