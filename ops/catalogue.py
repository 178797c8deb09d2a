"""All operators by name: what a model file of ours may contain beside standard ONNX."""

from __future__ import annotations

from roiline.ops.collect_proposals import COLLECT_PROPOSALS
from roiline.ops.detection_output import DETECTION_OUTPUT
from roiline.ops.generate_proposals import GENERATE_PROPOSALS
from roiline.ops.multilevel_roi_align import MULTILEVEL_ROI_ALIGN
from roiline.ops.operator import Operator
from roiline.ops.trim import TRIM

OPERATORS: dict[str, Operator] = {
    operator.name: operator
    for operator in (COLLECT_PROPOSALS, DETECTION_OUTPUT, GENERATE_PROPOSALS, MULTILEVEL_ROI_ALIGN, TRIM)
}
