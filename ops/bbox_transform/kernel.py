"""BBoxTransform as kernels. `rois` must have five columns here, or four of one picture, as in the operator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from roiline.ops.extents import Size
from roiline.ops.kernels import Kernel, KernelInput, KernelNode, KernelOutput, write_kernel
from roiline.ops.nodes import NodeWriter

_MATRIX = KernelInput(("float32",), 2)


def _boxes(node: KernelNode) -> Size:
    return node.dim("deltas", 0) * (node.dim("deltas", 1) // 4)


TRANSFORM_BOXES = Kernel(
    name="TransformBoxes",
    source="bbox_transform/bbox_transform.cuh",
    function="transform_box",
    inputs={"rois": _MATRIX, "deltas": _MATRIX, "im_info": _MATRIX},
    outputs={"box_out": KernelOutput("float32", lambda node: (node.dim("deltas", 0), node.dim("deltas", 1)))},
    attributes={
        "weights": (1.0, 1.0, 1.0, 1.0),
        "apply_scale": 1,
        "size_offset": None,
        "corner_offset": None,
        "delta_clip": None,
    },
    items=_boxes,
    arguments=lambda node: {
        "blocks": node.dim("deltas", 1) // 4,
        "columns": node.dim("rois", 1),
        "images": node.dim("im_info", 0),
        "weights": tuple(float(weight) for weight in node["weights"]),
        "size_offset": float(node["size_offset"]),
        "corner_offset": float(node["corner_offset"]),
        "delta_clip": float(node["delta_clip"]),
        "apply_scale": node["apply_scale"],
    },
)

COUNT_ROIS = Kernel(
    name="CountRoIs",
    source="bbox_transform/count_rois.cuh",
    function="count_rois",
    inputs={"rois": _MATRIX, "im_info": _MATRIX},
    outputs={"roi_batch_splits": KernelOutput("float32", lambda node: (node.dim("im_info", 0),))},
    items=lambda node: node.dim("im_info", 0),
    arguments=lambda node: {"rows": node.dim("rois", 0), "columns": node.dim("rois", 1)},
    cooperative=True,
    shared_bytes=lambda _node: 4,
)


def lower_bbox_transform(w: NodeWriter, inputs: Sequence[str], attributes: Mapping[str, Any]) -> tuple[str, ...]:
    """Writes the operator as two kernels."""
    rois, _, im_info = inputs
    boxes = write_kernel(w, TRANSFORM_BOXES, *inputs, attributes=attributes)
    return (*boxes, *write_kernel(w, COUNT_ROIS, rois, im_info, attributes={}))
