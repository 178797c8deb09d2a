"""The numpy reference of MultiLevelRoIAlign, and its two halves: level assignment and RoIAlign on one map."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from roiline.core.boxes import box_areas
from roiline.core.structures import Float32, Int64


def multilevel_roi_align(
    rois: Float32,
    *features: Float32,
    spatial_scales: Sequence[float],
    resolution: int,
    resolution_across: int,
    sampling_ratio: int,
    half_pixel: int,
    min_level: int,
    canonical_level: int,
    canonical_scale: float,
    size_offset: float,
    epsilon_on_level: int,
    level_epsilon: float,
) -> tuple[Float32]:
    """Returns pooled (T, C, down, across); see the operator's description."""

    def align(feature: Float32, rois: Float32, scale: float) -> Float32:
        return align_rois(
            feature,
            rois,
            spatial_scale=scale,
            pooled_size=(resolution, resolution_across or resolution),
            sampling_ratio=sampling_ratio,
            half_pixel=bool(half_pixel),
        )

    pooled = pool_by_level(
        rois,
        features,
        align,
        spatial_scales=spatial_scales,
        min_level=min_level,
        canonical_level=canonical_level,
        canonical_scale=canonical_scale,
        size_offset=size_offset,
        epsilon_on_level=bool(epsilon_on_level),
        level_epsilon=level_epsilon,
    )
    return (pooled,)


def pool_by_level(
    rois: Float32,
    features: Sequence[Float32],
    pool: Callable[[Float32, Float32, float], Float32],
    *,
    spatial_scales: Sequence[float],
    min_level: int,
    canonical_level: int,
    canonical_scale: float,
    size_offset: float,
    epsilon_on_level: bool = False,
    level_epsilon: float = 1e-6,
) -> Float32:
    """Returns what `pool(feature, rois, scale)` makes of each RoI on the map of its level, in the order of the rows."""
    levels = assign_levels(
        rois[:, 1:],
        min_level=min_level,
        max_level=min_level + len(features) - 1,
        canonical_level=canonical_level,
        canonical_scale=canonical_scale,
        size_offset=size_offset,
        epsilon_on_level=epsilon_on_level,
        level_epsilon=level_epsilon,
    )
    parts = [
        pool(feature, rois[levels == level], scale)
        for level, (feature, scale) in enumerate(zip(features, spatial_scales, strict=True), start=min_level)
    ]
    pooled = np.zeros((len(rois), *parts[0].shape[1:]), np.float32)
    for level, part in enumerate(parts, start=min_level):
        pooled[levels == level] = part
    return pooled


def assign_levels(
    boxes: Float32,
    *,
    min_level: int,
    max_level: int,
    canonical_level: int,
    canonical_scale: float,
    size_offset: float,
    epsilon_on_level: bool = False,
    level_epsilon: float = 1e-6,
) -> Int64:
    """Returns the (n,) pyramid level of boxes (n, 4) in network-input pixels."""
    side = np.sqrt(np.maximum(box_areas(boxes, plus_one=size_offset), np.float32(0)))
    ratio = (side / np.float32(canonical_scale)).astype(np.float32)
    if not epsilon_on_level:
        ratio = ratio + np.float32(level_epsilon)
    level = level_of_ratio(ratio, canonical_level, epsilon=level_epsilon if epsilon_on_level else 0.0)
    return np.clip(level, min_level, max_level).astype(np.int64)


def level_of_ratio(ratio: Float32 | np.float32, canonical_level: int, *, epsilon: float = 0.0) -> Float32:
    """Returns floor(canonical_level + log2(ratio) + epsilon) in float32; the sum may round up to a level that the ratio just misses."""
    with np.errstate(divide="ignore"):  # no area: the level is -infinity, and the finest one is taken
        level: Float32 = np.floor(np.float32(canonical_level) + np.log2(ratio) + np.float32(epsilon))
    return level


def align_rois(
    feature: Float32,
    rois: Float32,
    *,
    spatial_scale: float,
    pooled_size: tuple[int, int],
    sampling_ratio: int,
    half_pixel: bool,
) -> Float32:
    """Returns (T, C, pooled height, pooled width) features of rois (T, 5) on one map (N, C, H, W)."""
    pooled = np.zeros((len(rois), feature.shape[1], *pooled_size), np.float32)
    shift = np.float32(0.5 if half_pixel else 0.0)
    for target, (image, *box) in zip(pooled, rois, strict=True):
        x1, y1, x2, y2 = np.asarray(box, np.float32) * np.float32(spatial_scale) - shift
        across = _sample_axis(x1, x2, pooled_size[1], sampling_ratio, feature.shape[3], half_pixel)
        down = _sample_axis(y1, y2, pooled_size[0], sampling_ratio, feature.shape[2], half_pixel)
        target[:] = _average_samples(feature[int(image)], down, across, pooled_size)
    return pooled


@dataclass(frozen=True, slots=True)
class _Samples:
    """Is the samples of one axis: `grid` of them a bin, and the two cells and weights of each."""

    grid: int
    low: Int64
    high: Int64
    low_weight: Float32
    high_weight: Float32


def _average_samples(feature: Float32, down: _Samples, across: _Samples, pooled_size: tuple[int, int]) -> Float32:
    """Returns the mean (C, pooled height, pooled width) of the samples of each bin, 0 where a bin has none."""
    rows = feature[:, down.low] * down.low_weight[:, None] + feature[:, down.high] * down.high_weight[:, None]
    samples = rows[:, :, across.low] * across.low_weight + rows[:, :, across.high] * across.high_weight
    height, width = pooled_size
    binned = samples.reshape(len(samples), height, down.grid, width, across.grid)
    mean: Float32 = binned.sum(axis=(2, 4)) / np.float32(max(down.grid * across.grid, 1))
    return mean


def _sample_axis(
    start: np.float32, end: np.float32, bins: int, sampling_ratio: int, size: int, half_pixel: bool
) -> _Samples:
    """Returns the samples of all bins along one axis of `size` cells; a sample off the map has weights 0."""
    length = np.float32(end - start) if half_pixel else np.maximum(np.float32(end - start), np.float32(1))
    bin_size = length / np.float32(bins)
    grid = sampling_ratio if sampling_ratio > 0 else max(int(np.ceil(bin_size)), 0)
    offsets = (np.arange(grid, dtype=np.float32) + np.float32(0.5)) * bin_size / np.float32(grid or 1)
    position = (start + np.arange(bins, dtype=np.float32)[:, None] * bin_size + offsets[None]).reshape(-1)
    outside = (position < -1) | (position > size)
    position = np.where(outside, np.float32(0), np.maximum(position, np.float32(0)))
    low = np.minimum(position.astype(np.int64), size - 1)
    high = np.minimum(low + 1, size - 1)
    fraction = np.where(low >= size - 1, np.float32(0), position - low).astype(np.float32)
    inside = (~outside).astype(np.float32)
    return _Samples(grid, low, high, (1 - fraction) * inside, fraction * inside)
