"""Anchors of one cell, as Detectron makes them. They are constants of a model, so there is a numpy form only.

Source: Detectron's `generate_anchors` (Ren et al., Faster R-CNN): a stride-sized window, its ratios rounded, then its sizes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from roiline.core.structures import Float64


def generate_anchors(stride: float, sizes: Sequence[float], aspect_ratios: Sequence[float]) -> Float64:
    """Returns (A, 4) anchors around the first cell, in network-input pixels, inclusive corners; ratio-major, A = ratios x sizes.

    A ratio is height / width. Widths and heights are rounded half to even at stride size and then scaled, which decides the shape of
    every anchor (stride 32, ratio 0.5: 45 x 22).
    """
    ratios = np.asarray(aspect_ratios, np.float64)
    widths = np.round(np.sqrt(stride * stride / ratios))
    heights = np.round(widths * ratios)
    scales = np.asarray(sizes, np.float64) / stride
    sides = (np.stack([widths, heights], axis=1)[:, None] * scales[None, :, None]).reshape(-1, 2)
    centre = 0.5 * (stride - 1)
    half = 0.5 * (sides - 1)
    return np.concatenate([centre - half, centre + half], axis=1)
