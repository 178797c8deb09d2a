"""GenerateProposals as kernels: rank, decode, suppress, gather."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from roiline.ops.extents import Size, maximum
from roiline.ops.kernels import Argument, Kernel, KernelInput, KernelNode, KernelOutput, write_kernel
from roiline.ops.mask_suppression import SCAN_MASK, SUPPRESSION_MASK, write_mask_suppression
from roiline.ops.nodes import NodeWriter
from roiline.ops.ranking import RANK_CHUNKS, SORT_CHUNKS, write_ranking


def _decode_arguments(node: KernelNode) -> dict[str, Argument]:
    least = node["min_size"] if node["min_size_in_network"] else max(node["min_size"], 1.0)
    numbers = ("min_side", "score_thresh", "size_offset", "corner_offset", "delta_clip")
    return {
        "per_cell": node.dim("scores", 1),
        "height": node.dim("scores", 2),
        "width": node.dim("scores", 3),
        "best": node.dim("index", 2),
        "min_size": float(least),
        **{name: float(node[name]) for name in numbers},
        "min_size_in_network": node["min_size_in_network"],
        "logits": node["logits"],
    }


def _chosen(node: KernelNode) -> tuple[Size, Size, Size]:
    return node.dim("index", 0), node.dim("index", 1), node.dim("index", 2)


DECODE_PROPOSALS = Kernel(
    name="DecodeProposals",
    source="generate_proposals/decode.cuh",
    function="decode_proposal",
    inputs={
        "scores": KernelInput(("float32",), 4),
        "deltas": KernelInput(("float32",), 4),
        "im_info": KernelInput(("float32",), 2),
        "anchors": KernelInput(("float32",), 2),
        "stride": KernelInput(("float32",), 1),
        "index": KernelInput(("int32",), 3),
    },
    outputs={
        "boxes": KernelOutput("float32", lambda node: (*_chosen(node), 4)),
        "best_scores": KernelOutput("float32", _chosen),
        "labels": KernelOutput("int32", _chosen),
    },
    items=lambda node: node.dim("index", 0) * node.dim("index", 2),
    arguments=_decode_arguments,
    attributes={
        "min_size": 0.0,
        "min_size_in_network": 0,
        "min_side": 0.0,
        "score_thresh": 0.0,
        "logits": 0,
        "size_offset": 1.0,
        "corner_offset": 1.0,
        "delta_clip": None,
    },
)

GATHER_PROPOSALS = Kernel(
    name="GatherProposals",
    source="generate_proposals/gather.cuh",
    function="gather_proposal",
    inputs={
        "kept": KernelInput(("int32",), 3),
        "kept_count": KernelInput(("int32",), 2),
        "candidates": KernelInput(("float32",), 4),
        "scores": KernelInput(("float32",), 3),
    },
    outputs={
        "boxes": KernelOutput("float32", lambda node: (node.dim("kept", 0), node.dim("kept", 2), 4)),
        "kept_scores": KernelOutput("float32", lambda node: (node.dim("kept", 0), node.dim("kept", 2))),
        "count": KernelOutput("int64", lambda node: (node.dim("kept", 0),)),
    },
    items=lambda node: node.dim("kept", 0) * maximum(node.dim("kept", 2), 1),
    arguments=lambda node: {
        "images": node.dim("kept", 0),
        "limit": node.dim("kept", 2),
        "entries": node.dim("scores", 2),
    },
)

GENERATE_KERNELS = (SORT_CHUNKS, RANK_CHUNKS, DECODE_PROPOSALS, SUPPRESSION_MASK, SCAN_MASK, GATHER_PROPOSALS)


def lower_generate_proposals(w: NodeWriter, inputs: Sequence[str], attributes: Mapping[str, Any]) -> tuple[str, ...]:
    """Writes the chain; its outputs have min(H W A, both limits) rows. Memory grows with the square of `pre_nms_top_n`."""
    in_order = w.op("Transpose", inputs[0], perm=(0, 2, 3, 1))
    lists = w.op("Reshape", in_order, w.ints(0, 1, -1))
    index = write_ranking(w, lists, limit=attributes["pre_nms_top_n"])
    boxes, scores, labels = write_kernel(w, DECODE_PROPOSALS, *inputs, index, attributes=attributes)
    kept = write_mask_suppression(
        w,
        boxes,
        labels,
        threshold=attributes["nms_thresh"],
        inclusive=attributes["nms_inclusive"],
        plus_one=attributes["size_offset"],
        one_empty_box=attributes["one_empty_box"],
        limit=attributes["post_nms_top_n"],
    )
    return write_kernel(w, GATHER_PROPOSALS, *kept, boxes, scores, attributes={})
