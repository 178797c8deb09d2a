"""Anchors of one cell as RetinaNet has them: every octave step of a size in every ratio. They are constants of a model.

Source: Lin et al., Focal Loss for Dense Object Detection (2017), as Detectron makes them: each anchor is Detectron's own anchor of one
size and one ratio.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from roiline.core.structures import Float64
from roiline.ops.anchors import generate_anchors


def generate_retinanet_anchors(
    level: int, aspect_ratios: Sequence[float], scales_per_octave: int, anchor_scale: float
) -> Float64:
    """Returns (A, 4) anchors around the first cell of a level, in network-input pixels, inclusive corners.

    Octave-major, A = scales_per_octave x ratios: sizes are 2^level x anchor_scale x 2^(octave / scales_per_octave), and a ratio is
    height / width.
    """
    stride = 2.0**level
    sizes = [stride * 2 ** (octave / scales_per_octave) * anchor_scale for octave in range(scales_per_octave)]
    return np.concatenate([generate_anchors(stride, (size,), aspect_ratios) for size in sizes])
