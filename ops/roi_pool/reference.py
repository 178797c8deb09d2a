"""The numpy reference of MultiLevelRoIPool."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from roiline.core.structures import Float32, Int64
from roiline.ops.multilevel_roi_align import pool_by_level


def multilevel_roi_pool(
    rois: Float32,
    *features: Float32,
    spatial_scales: Sequence[float],
    resolution: int,
    resolution_across: int,
    min_level: int,
    canonical_level: int,
    canonical_scale: float,
    size_offset: float,
    level_epsilon: float,
) -> tuple[Float32]:
    """Returns pooled (T, C, down, across); see the operator's description."""
    bins = resolution, resolution_across or resolution
    pooled = pool_by_level(
        rois,
        features,
        lambda feature, rows, scale: _pool_rois(feature, rows, scale, bins),
        spatial_scales=spatial_scales,
        min_level=min_level,
        canonical_level=canonical_level,
        canonical_scale=canonical_scale,
        size_offset=size_offset,
        level_epsilon=level_epsilon,
    )
    return (pooled,)


def round_half_away(values: Float32) -> Float32:
    """Returns values rounded to whole numbers, halves away from zero, as C does."""
    whole = np.trunc(values)
    rounded: Float32 = np.where(np.abs(values - whole) >= 0.5, whole + np.sign(values), whole).astype(np.float32)
    return rounded


def _pool_rois(feature: Float32, rois: Float32, scale: float, bins: tuple[int, int]) -> Float32:
    _, channels, height, width = feature.shape
    pooled = np.zeros((len(rois), channels, *bins), np.float32)
    for target, roi in zip(pooled, rois, strict=True):
        x1, y1, x2, y2 = round_half_away(roi[1:] * np.float32(scale)).astype(np.int64)
        for row, (top, bottom) in enumerate(_bin_edges(y1, y2, bins[0], height)):
            for column, (left, right) in enumerate(_bin_edges(x1, x2, bins[1], width)):
                cells = feature[int(roi[0]), :, top:bottom, left:right]
                if cells.size:
                    target[:, row, column] = cells.max(axis=(1, 2))
    return pooled


def _bin_edges(start: np.int64, end: np.int64, bins: int, size: int) -> Int64:
    """Returns (bins, 2) half-open ranges of cells along an axis, within the map."""
    length = np.float32(max(int(end - start) + 1, 1)) / np.float32(bins)
    index = np.arange(bins, dtype=np.float32)
    low, high = np.floor(index * length), np.ceil((index + np.float32(1)) * length)
    edges: Int64 = np.clip(np.stack([low, high], axis=1).astype(np.int64) + start, 0, size)
    return edges
