"""The numpy reference of MultiLevelPSRoIPool."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from roiline.core.structures import Float32, Int64
from roiline.ops.multilevel_roi_align import pool_by_level
from roiline.ops.roi_pool import round_half_away

SHORTEST_SIDE = 0.1
"""The least side of a RoI, in cells."""


def multilevel_ps_roi_pool(
    rois: Float32,
    *features: Float32,
    spatial_scales: Sequence[float],
    grid: int,
    min_level: int,
    canonical_level: int,
    canonical_scale: float,
    size_offset: float,
) -> tuple[Float32]:
    """Returns pooled (T, D, G, G); see the operator's description."""
    pooled = pool_by_level(
        rois,
        features,
        lambda feature, rows, scale: _pool_rois(feature, rows, scale, grid),
        spatial_scales=spatial_scales,
        min_level=min_level,
        canonical_level=canonical_level,
        canonical_scale=canonical_scale,
        size_offset=size_offset,
    )
    return (pooled,)


def _pool_rois(feature: Float32, rois: Float32, scale: float, grid: int) -> Float32:
    images, channels, height, width = feature.shape
    maps = feature.reshape(images, channels // grid**2, grid, grid, height, width)
    pooled = np.zeros((len(rois), maps.shape[1], grid, grid), np.float32)
    for target, roi in zip(pooled, rois, strict=True):
        corners = round_half_away(roi[1:]) + np.array([0, 0, 1, 1], np.float32)
        x1, y1, x2, y2 = corners * np.float32(scale)
        for row, (top, bottom) in enumerate(_bin_edges(y1, y2, grid, height)):
            for column, (left, right) in enumerate(_bin_edges(x1, x2, grid, width)):
                cells = maps[int(roi[0]), :, row, column, top:bottom, left:right]
                if cells.size:
                    target[:, row, column] = cells.mean(axis=(1, 2), dtype=np.float64)
    return pooled


def _bin_edges(start: np.float32, end: np.float32, bins: int, size: int) -> Int64:
    """Returns (bins, 2) half-open ranges of cells along an axis, within the map."""
    length = np.maximum(end - start, np.float32(SHORTEST_SIDE)) / np.float32(bins)
    index = np.arange(bins, dtype=np.float32)
    low, high = np.floor(index * length + start), np.ceil((index + np.float32(1)) * length + start)
    edges: Int64 = np.clip(np.stack([low, high], axis=1).astype(np.int64), 0, size)
    return edges
