"""MultiLevelRoIPool: the maximum of each RoI's bins, taken from the pyramid level that fits its size.

Inputs: `rois` (T, 5) rows (image index, box in network-input pixels), then L feature maps `features...` (N, C, H_l, W_l), finest first.
Output: `pooled` (T, C, resolution, resolution_across), in the order of the RoIs; `resolution_across` 0 is as many bins as `resolution`.

Corners are rounded to cells, half away from zero; a side is end - start + 1 cells, at least 1. A bin covers the cells that it touches,
within the map; a bin without cells is 0. Levels are chosen as by MultiLevelRoIAlign.
Source: Girshick, Fast R-CNN (2015), in the form of Caffe2's RoIPool and Detectron's RoIPoolF.
"""

from __future__ import annotations

from roiline.ops.operator import Operator
from roiline.ops.roi_pool.function import write_multilevel_roi_pool
from roiline.ops.roi_pool.kernel import POOL_ROIS, lower_multilevel_roi_pool
from roiline.ops.roi_pool.reference import multilevel_roi_pool, round_half_away

MULTILEVEL_ROI_POOL = Operator(
    name="MultiLevelRoIPool",
    inputs=("rois", "features..."),
    outputs={"pooled": ("float32", 4)},
    attributes=POOL_ROIS.attributes,
    reference=multilevel_roi_pool,
    function=write_multilevel_roi_pool,
    kernels=(POOL_ROIS,),
    lower=lower_multilevel_roi_pool,
)

__all__ = ["MULTILEVEL_ROI_POOL", "round_half_away"]
