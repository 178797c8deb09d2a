"""MultiLevelPSRoIPool: the mean of each RoI's cells, every cell of a G x G grid from channels of its own, on the fitting level.

Inputs: `rois` (T, 5) rows (image index, box in network-input pixels), then L maps `features...` (N, D * G * G, H_l, W_l), finest first.
Output: `pooled` (T, D, G, G) in the order of the RoIs, G = `grid`; output d takes grid cell (row, column) from channel
(d * G + row) * G + column.

Corners are rounded to pixels, half away from zero, before they are scaled: start = round(x1) * scale, end = (round(x2) + 1) * scale; a
side is at least 0.1 map cells. A bin covers the map cells that it touches, within the map; a bin without any is 0. Levels are chosen as
by MultiLevelRoIAlign.
Source: Dai et al., R-FCN (2016), in the form of Detectron's PSRoIPool.
"""

from __future__ import annotations

from roiline.ops.operator import Operator
from roiline.ops.ps_roi_pool.function import write_multilevel_ps_roi_pool
from roiline.ops.ps_roi_pool.kernel import POOL_GRIDS, lower_multilevel_ps_roi_pool
from roiline.ops.ps_roi_pool.reference import multilevel_ps_roi_pool

MULTILEVEL_PS_ROI_POOL = Operator(
    name="MultiLevelPSRoIPool",
    inputs=("rois", "features..."),
    outputs={"pooled": ("float32", 4)},
    attributes=POOL_GRIDS.attributes,
    reference=multilevel_ps_roi_pool,
    function=write_multilevel_ps_roi_pool,
    kernels=(POOL_GRIDS,),
    lower=lower_multilevel_ps_roi_pool,
)

__all__ = ["MULTILEVEL_PS_ROI_POOL"]
