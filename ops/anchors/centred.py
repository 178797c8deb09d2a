"""Anchors of one cell around its corner, as torchvision makes them. They are constants of a model, so there is a numpy form only.

Source: torchvision's `AnchorGenerator`: sides in single precision around zero, corners rounded half to even. A cell's own place is added
by whoever lays the anchors out, so the first cell's anchors are centred on the picture's corner.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from roiline.core.structures import Float64


def generate_centred_anchors(sizes: Sequence[float], aspect_ratios: Sequence[float]) -> Float64:
    """Returns (A, 4) anchors around the first cell's corner, in network-input pixels; ratio-major, A = ratios x sizes.

    A ratio is height / width, a size the square root of the area before rounding.
    """
    heights = np.sqrt(np.asarray(aspect_ratios, np.float32))
    widths = np.float32(1) / heights
    scales = np.asarray(sizes, np.float32)
    sides = np.stack([widths[:, None] * scales, heights[:, None] * scales], axis=-1).reshape(-1, 2)
    corners = np.concatenate([-sides, sides], axis=1) / np.float32(2)
    return np.round(corners).astype(np.float64)
