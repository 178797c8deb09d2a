"""MultiLevelRoIAlign as a kernel, and what the kernels of all RoI pools have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from roiline.ops.extents import Size
from roiline.ops.kernels import Argument, Kernel, KernelInput, KernelNode, KernelOutput, write_kernel
from roiline.ops.multilevel_roi_align.levels import least_ratios
from roiline.ops.nodes import NodeWriter

POOL_INPUTS: Mapping[str, KernelInput] = {
    "rois": KernelInput(("float32",), 2),
    "features...": KernelInput(("float32", "float16"), 4),
}


def level_arguments(node: KernelNode) -> dict[str, Argument]:
    """Returns what a pool gets to choose the map of a RoI."""
    levels = range(node.count("features"))
    on_level = node.attributes.get("epsilon_on_level", 0)
    return {
        "images": node.dim("features", 0),
        "channels": node.dim("features", 1),
        "heights": tuple(node.dim("features", 2, level) for level in levels),
        "widths": tuple(node.dim("features", 3, level) for level in levels),
        "scales": tuple(float(scale) for scale in node["spatial_scales"]),
        "least_ratios": least_ratios(len(levels), node.attributes),
        "canonical_scale": float(node["canonical_scale"]),
        "size_offset": float(node["size_offset"]),
        "ratio_epsilon": 0.0 if on_level else float(node.attributes.get("level_epsilon", 1e-6)),
    }


def pool_bins(node: KernelNode) -> tuple[int, int]:
    """Returns the bins down and across of a pool with a `resolution`."""
    return node["resolution"], node["resolution_across"] or node["resolution"]


def pooled_shape(node: KernelNode) -> tuple[Size, ...]:
    """Returns the shape of what such a pool makes of all channels."""
    return (node.dim("rois", 0), node.dim("features", 1), *pool_bins(node))


def pooled_items(node: KernelNode) -> Size:
    """Returns the number of elements of that."""
    down, across = pool_bins(node)
    return node.dim("rois", 0) * node.dim("features", 1) * (down * across)


def bin_arguments(node: KernelNode) -> dict[str, Argument]:
    """Returns the numbers of bins as arguments."""
    down, across = pool_bins(node)
    return {"bins_down": down, "bins_across": across}


ALIGN_ROIS = Kernel(
    name="AlignRoIs",
    source="multilevel_roi_align/roi_align.cuh",
    function="align_roi",
    inputs=POOL_INPUTS,
    outputs={"pooled": KernelOutput("as features", pooled_shape)},
    attributes={
        "spatial_scales": None,
        "resolution": None,
        "resolution_across": 0,
        "sampling_ratio": None,
        "half_pixel": 0,
        "min_level": 2,
        "canonical_level": 4,
        "canonical_scale": 224.0,
        "size_offset": 1.0,
        "epsilon_on_level": 0,
        "level_epsilon": 1e-6,
    },
    items=pooled_items,
    arguments=lambda node: {
        **level_arguments(node),
        **bin_arguments(node),
        "sampling_ratio": node["sampling_ratio"],
        "half_pixel": node["half_pixel"],
    },
)


def lower_multilevel_roi_align(w: NodeWriter, inputs: Sequence[str], attributes: Mapping[str, Any]) -> tuple[str, ...]:
    """Writes the operator as one kernel."""
    return write_kernel(w, ALIGN_ROIS, *inputs, attributes=attributes)
