"""Anchors of one cell around its corner, as detectron2 makes them. They are constants of a model, so there is a numpy form only.

Source: detectron2's `DefaultAnchorGenerator`: nothing is rounded.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from roiline.core.structures import Float64


def generate_plain_anchors(sizes: Sequence[float], aspect_ratios: Sequence[float]) -> Float64:
    """Returns (A, 4) anchors around the first cell's corner, in network-input pixels; size-major, A = sizes x ratios.

    A ratio is height / width, a size the square root of the area.
    """
    areas = np.asarray(sizes, np.float64)[:, None] ** 2
    ratios = np.asarray(aspect_ratios, np.float64)
    widths = np.sqrt(areas / ratios)
    sides = np.stack([widths, ratios * widths], axis=-1).reshape(-1, 2)
    return np.concatenate([-sides, sides], axis=1) / 2
