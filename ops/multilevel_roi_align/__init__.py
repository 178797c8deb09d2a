"""MultiLevelRoIAlign: features of each RoI, taken from the pyramid level that fits its size.

Inputs: `rois` (T, 5) rows (image index, box in network-input pixels), then L feature maps `features...` (N, C, H_l, W_l), finest first.
Output: `pooled` (T, C, resolution, resolution_across), in the order of the RoIs; `resolution_across` 0 is as many bins as `resolution`.

With more than one map the level of an RoI is floor(canonical_level + log2(sqrt(area) / canonical_scale + 1e-6)), kept within
[min_level, min_level + L - 1] (Lin et al., Feature Pyramid Networks, 2017, with Detectron's epsilon); areas use `size_offset`.
With `epsilon_on_level` it is floor(canonical_level + log2(sqrt(area) / canonical_scale) + 1e-6), torchvision's. `level_epsilon` is the
number in place of 1e-6 (detectron2: 1e-8).
RoIAlign averages sampling_ratio^2 bilinear samples a bin (0: as many as the bin has pixels) (He et al., Mask R-CNN, 2017); coordinates
are not shifted, or by half a pixel with `half_pixel`. Only then can a bin be empty (an RoI without width, sampling_ratio 0): it is 0.
"""

from __future__ import annotations

from roiline.ops.multilevel_roi_align.function import write_by_level, write_multilevel_roi_align
from roiline.ops.multilevel_roi_align.kernel import ALIGN_ROIS, lower_multilevel_roi_align
from roiline.ops.multilevel_roi_align.reference import (
    align_rois,
    assign_levels,
    multilevel_roi_align,
    pool_by_level,
)
from roiline.ops.operator import Operator

MULTILEVEL_ROI_ALIGN = Operator(
    name="MultiLevelRoIAlign",
    inputs=("rois", "features..."),
    outputs={"pooled": ("float32", 4)},
    attributes=ALIGN_ROIS.attributes,
    reference=multilevel_roi_align,
    function=write_multilevel_roi_align,
    kernels=(ALIGN_ROIS,),
    lower=lower_multilevel_roi_align,
)

__all__ = ["MULTILEVEL_ROI_ALIGN", "align_rois", "assign_levels", "pool_by_level", "write_by_level"]
