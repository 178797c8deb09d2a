"""All operators by name: what a model file of ours may contain beside standard ONNX."""

from __future__ import annotations

from roiline.ops.bbox_transform import BBOX_TRANSFORM
from roiline.ops.box_with_nms_limit import BOX_WITH_NMS_LIMIT
from roiline.ops.collect_proposals import COLLECT_PROPOSALS
from roiline.ops.detection_output import DETECTION_OUTPUT
from roiline.ops.generate_proposals import GENERATE_PROPOSALS
from roiline.ops.multilevel_roi_align import MULTILEVEL_ROI_ALIGN
from roiline.ops.operator import Operator
from roiline.ops.ps_roi_pool import MULTILEVEL_PS_ROI_POOL
from roiline.ops.retinanet_candidates import RETINANET_CANDIDATES
from roiline.ops.retinanet_output import RETINANET_OUTPUT
from roiline.ops.roi_pool import MULTILEVEL_ROI_POOL
from roiline.ops.trim import TRIM

OPERATORS: dict[str, Operator] = {
    operator.name: operator
    for operator in (
        BBOX_TRANSFORM,
        BOX_WITH_NMS_LIMIT,
        COLLECT_PROPOSALS,
        DETECTION_OUTPUT,
        GENERATE_PROPOSALS,
        MULTILEVEL_PS_ROI_POOL,
        MULTILEVEL_ROI_ALIGN,
        MULTILEVEL_ROI_POOL,
        RETINANET_CANDIDATES,
        RETINANET_OUTPUT,
        TRIM,
    )
}
