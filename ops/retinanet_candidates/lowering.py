"""RetinaNetCandidates as kernels: rank and decode each level, join them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from roiline.ops.extents import Size
from roiline.ops.kernels import Argument, Kernel, KernelInput, KernelNode, KernelOutput, write_kernel
from roiline.ops.nodes import NodeWriter
from roiline.ops.ranking import RANK_CHUNKS, SORT_CHUNKS, write_ranking


def _chosen(node: KernelNode) -> tuple[Size, Size]:
    return node.dim("index", 0), node.dim("index", 2)


def _arguments(node: KernelNode) -> dict[str, Argument]:
    return {
        "channels": node.dim("cls_prob", 1),
        "height": node.dim("cls_prob", 2),
        "width": node.dim("cls_prob", 3),
        "per_cell": node.dim("anchors", 1),
        "best": node.dim("index", 2),
        **{name: node[name] for name in ("level", "regress", "network_frame", "clip", "first_class")},
        **{name: float(node[name]) for name in ("size_offset", "corner_offset", "delta_clip")},
    }


DECODE_RETINANET = Kernel(
    name="DecodeRetinaNet",
    source="retinanet_candidates/decode.cuh",
    function="decode_retinanet",
    inputs={
        "cls_prob": KernelInput(("float32",), 4),
        "bbox_pred": KernelInput(("float32",), 4),
        "anchors": KernelInput(("float32",), 3),
        "im_info": KernelInput(("float32",), 2),
        "im_size": KernelInput(("float32",), 2),
        "strides": KernelInput(("float32",), 2),
        "index": KernelInput(("int32",), 3),
    },
    outputs={
        "boxes": KernelOutput("float32", lambda node: (*_chosen(node), 4)),
        "scores": KernelOutput("float32", _chosen),
        "classes": KernelOutput("int64", _chosen),
        "levels": KernelOutput("int64", _chosen),
    },
    items=lambda node: node.dim("index", 0) * node.dim("index", 2),
    arguments=_arguments,
    attributes={
        "level": None,
        "regress": 1,
        "network_frame": 0,
        "clip": 1,
        "first_class": 1,
        "size_offset": 1.0,
        "corner_offset": 1.0,
        "delta_clip": None,
    },
)

CANDIDATE_KERNELS = (SORT_CHUNKS, RANK_CHUNKS, DECODE_RETINANET)


def lower_retinanet_candidates(w: NodeWriter, inputs: Sequence[str], attributes: Mapping[str, Any]) -> tuple[str, ...]:
    """Writes the chain, level by level; its outputs have the operator's own shapes."""
    levels = len(attributes["strides"])
    anchors, im_info, im_size, *given = inputs[2 * levels :]
    steps = np.repeat(np.asarray(attributes["strides"], np.float32)[:, None], 2, axis=1)
    strides = given[0] if given else w.constant(steps)
    parts = []
    for level in range(levels):
        cls_prob, bbox_pred = inputs[level], inputs[levels + level]
        lists = w.op("Reshape", cls_prob, w.ints(0, 1, -1))
        index = write_ranking(w, lists, limit=attributes["pre_nms_top_n"])
        tensors = (cls_prob, bbox_pred, anchors, im_info, im_size, strides, index)
        parts.append(write_kernel(w, DECODE_RETINANET, *tensors, attributes={**attributes, "level": level}))
    return tuple(w.concat(*tensors, axis=1) for tensors in zip(*parts, strict=True))
