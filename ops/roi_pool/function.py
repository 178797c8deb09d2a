"""MultiLevelRoIPool in standard ONNX operators: MaxRoiPool is this operator on one map."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx

from roiline.ops.multilevel_roi_align import write_by_level
from roiline.ops.nodes import FunctionWriter


def write_multilevel_roi_pool(inputs: int, attributes: Mapping[str, Any]) -> onnx.FunctionProto:
    """Returns the function body for `inputs` - 1 feature maps."""
    w = FunctionWriter()
    bins = attributes["resolution"], attributes["resolution_across"] or attributes["resolution"]

    def pool(rois: str, feature: str, scale: float) -> str:
        return w.op("MaxRoiPool", feature, rois, pooled_shape=bins, spatial_scale=float(scale))

    w.rename(write_by_level(w, inputs - 1, attributes, pool), "pooled")
    return w.finish("MultiLevelRoIPool", ("rois", *(f"features_{i}" for i in range(inputs - 1))), ("pooled",))
