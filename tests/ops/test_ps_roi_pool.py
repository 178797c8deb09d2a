from __future__ import annotations

import math

import numpy as np
import pytest
from operator_forms import FORMS

from roiline.ops.ps_roi_pool import MULTILEVEL_PS_ROI_POOL


def _round(value: float) -> float:
    return math.copysign(math.floor(abs(value) + 0.5), value)


def _pool_one(feature: np.ndarray, roi: np.ndarray, scale: float, grid: int) -> np.ndarray:
    """Pools one RoI cell by cell, written from the definition: corners are rounded first, then scaled."""
    _, channels, height, width = feature.shape
    x1, y1 = (_round(float(v)) * scale for v in roi[1:3])
    x2, y2 = ((_round(float(v)) + 1) * scale for v in roi[3:5])
    bin_h, bin_w = max(y2 - y1, 0.1) / grid, max(x2 - x1, 0.1) / grid
    outputs = channels // grid**2
    pooled = np.zeros((outputs, grid, grid))
    for out in range(outputs):
        for row in range(grid):
            for column in range(grid):
                rows = range(max(math.floor(row * bin_h + y1), 0), min(math.ceil((row + 1) * bin_h + y1), height))
                columns = range(
                    max(math.floor(column * bin_w + x1), 0), min(math.ceil((column + 1) * bin_w + x1), width)
                )
                channel = (out * grid + row) * grid + column
                cells = [float(feature[int(roi[0]), channel, y, x]) for y in rows for x in columns]
                pooled[out, row, column] = sum(cells) / len(cells) if cells else 0.0
    return pooled


ROIS = {
    "inside": [0, 12.0, 20.0, 90.0, 75.0],
    "half_pixels": [1, 8.5, 9.5, 40.5, 71.5],
    "whole_picture": [0, 0.0, 0.0, 159.0, 127.0],
    "one_pixel": [1, 33.0, 33.0, 33.0, 33.0],
    "inverted": [0, 60.0, 60.0, 30.0, 20.0],
    "partly_outside": [1, -40.0, -21.5, 30.0, 400.0],
    "outside": [0, 500.0, 500.0, 600.0, 620.0],
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("grid", [3, 7])
def test_pools_as_defined(form, grid):
    rng = np.random.default_rng(5)
    feature = (rng.normal(0, 1, (2, 4 * grid**2, 8, 10)) * 10).astype(np.float32)
    rois = np.array(list(ROIS.values()), np.float32)
    (got,) = FORMS[form](MULTILEVEL_PS_ROI_POOL, (rois, feature), spatial_scales=[1 / 16], grid=grid)
    expected = np.stack([_pool_one(feature, roi, 1 / 16, grid) for roi in rois])
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("form", FORMS)
def test_nothing_is_lost_in_sums_over_a_large_map(form):
    rng = np.random.default_rng(6)
    feature = rng.normal(1000, 1, (1, 9, 100, 152)).astype(np.float32)
    roi = np.array([[0, 2390, 1580, 2420, 1590]], np.float32)
    (got,) = FORMS[form](MULTILEVEL_PS_ROI_POOL, (roi, feature), spatial_scales=[1 / 16], grid=3)
    np.testing.assert_allclose(got[0], _pool_one(feature, roi[0], 1 / 16, 3), rtol=2e-7)


@pytest.mark.parametrize("form", FORMS)
def test_every_roi_is_pooled_from_its_own_level(form):
    rois = np.array([[0, 10, 10, 10 + side, 10 + side] for side in (600.0, 60.0, 300.0, 150.0)], np.float32)
    maps = [np.full((1, 9, 64, 64), level, np.float32) for level in (2, 3, 4, 5)]
    (got,) = FORMS[form](
        MULTILEVEL_PS_ROI_POOL, (rois, *maps), spatial_scales=[2.0**-level for level in (2, 3, 4, 5)], grid=3
    )
    np.testing.assert_allclose(got[:, 0, 1, 1], [5, 2, 4, 3])
