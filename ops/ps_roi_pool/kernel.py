"""MultiLevelPSRoIPool as a kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from roiline.ops.extents import Size
from roiline.ops.kernels import Kernel, KernelNode, KernelOutput, write_kernel
from roiline.ops.multilevel_roi_align.kernel import POOL_INPUTS, level_arguments
from roiline.ops.nodes import NodeWriter


def _outputs(node: KernelNode) -> Size:
    """Returns D, the number of outputs of a RoI in each grid cell."""
    grid: int = node["grid"]
    return node.dim("features", 1) // grid**2


POOL_GRIDS = Kernel(
    name="PoolGrids",
    source="ps_roi_pool/ps_roi_pool.cuh",
    function="pool_grid",
    inputs=POOL_INPUTS,
    outputs={
        "pooled": KernelOutput(
            "as features", lambda node: (node.dim("rois", 0), _outputs(node), node["grid"], node["grid"])
        )
    },
    attributes={
        "spatial_scales": None,
        "grid": None,
        "min_level": 2,
        "canonical_level": 4,
        "canonical_scale": 224.0,
        "size_offset": 1.0,
    },
    items=lambda node: node.dim("rois", 0) * _outputs(node) * node["grid"] * node["grid"],
    arguments=lambda node: {**level_arguments(node), "grid": node["grid"], "outputs": _outputs(node)},
)


def lower_multilevel_ps_roi_pool(
    w: NodeWriter, inputs: Sequence[str], attributes: Mapping[str, Any]
) -> tuple[str, ...]:
    """Writes the operator as one kernel."""
    return write_kernel(w, POOL_GRIDS, *inputs, attributes=attributes)
