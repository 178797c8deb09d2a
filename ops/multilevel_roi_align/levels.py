"""From which ratio on a RoI belongs to a level: the assignment as comparisons, for forms that cannot take the reference's logarithm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from roiline.ops.multilevel_roi_align.reference import level_of_ratio


def least_ratios(maps: int, attributes: Mapping[str, Any]) -> tuple[float, ...]:
    """Returns the smallest ratio of side to canonical scale that reaches each level, 0 for the finest; they ascend.

    Where `level_epsilon` is added to the ratio (not `epsilon_on_level`), the ratio is meant with it.
    """
    epsilon = attributes.get("level_epsilon", 1e-6) if attributes.get("epsilon_on_level", 0) else 0.0
    first, canonical = attributes["min_level"], attributes["canonical_level"]
    return (0.0, *(float(_least_ratio(first + index, canonical, epsilon)) for index in range(1, maps)))


def _least_ratio(level: int, canonical_level: int, epsilon: float) -> np.float32:
    """Returns the smallest ratio that has at least this level: 2^n, or a few floats less where the reference's sum rounds up to it."""
    ratio = np.float32(2.0 ** (level - canonical_level))
    while level_of_ratio(np.nextafter(ratio, np.float32(0)), canonical_level, epsilon=epsilon) >= level:
        ratio = np.nextafter(ratio, np.float32(0))
    return ratio
