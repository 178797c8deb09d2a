"""CollectProposals as kernels: join the levels, rank, gather."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from roiline.ops.extents import maximum
from roiline.ops.kernels import Kernel, KernelInput, KernelOutput, write_kernel
from roiline.ops.nodes import NodeWriter
from roiline.ops.ranking import RANK_CHUNKS, SORT_CHUNKS, write_ranking

GATHER_COLLECTED = Kernel(
    name="GatherCollected",
    source="collect_proposals/gather.cuh",
    function="gather_collected",
    inputs={
        "index": KernelInput(("int32",), 3),
        "candidates": KernelInput(("float32",), 3),
        "scores": KernelInput(("float32",), 2),
    },
    outputs={
        "boxes": KernelOutput("float32", lambda node: (node.dim("index", 0), node.dim("index", 2), 4)),
        "kept_scores": KernelOutput("float32", lambda node: (node.dim("index", 0), node.dim("index", 2))),
        "count": KernelOutput("int64", lambda node: (node.dim("index", 0),)),
    },
    items=lambda node: node.dim("index", 0) * maximum(node.dim("index", 2), 1),
    arguments=lambda node: {"best": node.dim("index", 2), "entries": node.dim("scores", 1)},
)

COLLECT_KERNELS = (SORT_CHUNKS, RANK_CHUNKS, GATHER_COLLECTED)


def lower_collect_proposals(w: NodeWriter, inputs: Sequence[str], attributes: Mapping[str, Any]) -> tuple[str, ...]:
    """Writes the chain; its outputs have min(what there is, `post_nms_top_n`) rows."""
    half = len(inputs) // 2
    boxes, scores = w.concat(*inputs[:half], axis=1), w.concat(*inputs[half:], axis=1)
    index = write_ranking(w, w.unsqueeze(scores, 1), limit=attributes["post_nms_top_n"])
    return write_kernel(w, GATHER_COLLECTED, index, boxes, scores, attributes={})
