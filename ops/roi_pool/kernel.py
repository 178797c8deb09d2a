"""MultiLevelRoIPool as a kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from roiline.ops.kernels import Kernel, KernelOutput, write_kernel
from roiline.ops.multilevel_roi_align.kernel import (
    POOL_INPUTS,
    bin_arguments,
    level_arguments,
    pooled_items,
    pooled_shape,
)
from roiline.ops.nodes import NodeWriter

POOL_ROIS = Kernel(
    name="PoolRoIs",
    source="roi_pool/roi_pool.cuh",
    function="pool_roi",
    inputs=POOL_INPUTS,
    outputs={"pooled": KernelOutput("as features", pooled_shape)},
    attributes={
        "spatial_scales": None,
        "resolution": None,
        "resolution_across": 0,
        "min_level": 2,
        "canonical_level": 4,
        "canonical_scale": 224.0,
        "size_offset": 1.0,
        "level_epsilon": 1e-6,
    },
    items=pooled_items,
    arguments=lambda node: {**level_arguments(node), **bin_arguments(node)},
)


def lower_multilevel_roi_pool(w: NodeWriter, inputs: Sequence[str], attributes: Mapping[str, Any]) -> tuple[str, ...]:
    """Writes the operator as one kernel."""
    return write_kernel(w, POOL_ROIS, *inputs, attributes=attributes)
