"""BoxWithNMSLimit as kernels: split into classes, visit, suppress, rank and limit, gather."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from roiline.core.errors import ExportError
from roiline.ops.detection_lists import (
    LIST_KERNELS,
    CandidateLists,
    write_found,
    write_list_suppression,
    write_visit,
)
from roiline.ops.extents import Size, combine, maximum
from roiline.ops.kernels import Kernel, KernelInput, KernelNode, KernelOutput, write_kernel
from roiline.ops.nodes import NodeWriter


def _lists(node: KernelNode) -> tuple[Size, Size, Size]:
    """Returns (pictures, classes without background, rows of a picture)."""
    images = node.dim("batch_splits", 0)
    return images, node.dim("scores", 1) - 1, combine("//", node.dim("scores", 0), images)


def _split_items(node: KernelNode) -> Size:
    images, columns, entries = _lists(node)
    return images * columns * entries


def _all_rows(node: KernelNode) -> Size:
    return node.dim("slots", 0) * node.dim("slots", 1)


SPLIT_CANDIDATES = Kernel(
    name="SplitCandidates",
    source="box_with_nms_limit/split.cuh",
    function="split_candidate",
    inputs={
        "scores": KernelInput(("float32",), 2),
        "boxes": KernelInput(("float32",), 2),
        "batch_splits": KernelInput(("float32",), 1),
    },
    outputs={
        "candidates": KernelOutput("float32", lambda node: (*_lists(node), 4)),
        "candidate_scores": KernelOutput("float32", _lists),
        "labels": KernelOutput("int32", _lists),
    },
    items=_split_items,
    arguments=lambda node: {
        "columns": _lists(node)[1],
        "entries": _lists(node)[2],
        "box_columns": node.dim("boxes", 1),
        "score_thresh": float(node["score_thresh"]),
        "class_agnostic": node["class_agnostic"],
        "boxes_have_background": node["boxes_have_background"],
    },
    attributes={"score_thresh": 0.05, "class_agnostic": 0, "boxes_have_background": 1},
)

GATHER_LIMITED = Kernel(
    name="GatherLimited",
    source="box_with_nms_limit/gather.cuh",
    function="gather_limited",
    inputs={
        "slots": KernelInput(("int32",), 2),
        "found": KernelInput(("int32",), 1),
        "boxes": KernelInput(("float32",), 4),
        "scores": KernelInput(("float32",), 3),
        "order": KernelInput(("int32",), 3),
    },
    outputs={
        "kept_scores": KernelOutput("float32", lambda node: (_all_rows(node),)),
        "kept_boxes": KernelOutput("float32", lambda node: (_all_rows(node), 4)),
        "classes": KernelOutput("float32", lambda node: (_all_rows(node),)),
        "kept_splits": KernelOutput("float32", lambda node: (node.dim("slots", 0),)),
        "keeps": KernelOutput("int32", lambda node: (_all_rows(node),)),
        "keeps_size": KernelOutput("int32", lambda node: (node.dim("slots", 0), node.dim("scores", 1) + 1)),
    },
    items=lambda node: node.dim("slots", 0) * maximum(node.dim("slots", 1), node.dim("scores", 1) + 1),
    arguments=lambda node: {
        "images": node.dim("slots", 0),
        "rows": node.dim("slots", 1),
        "columns": node.dim("scores", 1),
        "entries": node.dim("scores", 2),
        "first_class": node["classes_have_background"],
    },
    attributes={"classes_have_background": 1},
)

LIMIT_KERNELS = (SPLIT_CANDIDATES, *LIST_KERNELS, GATHER_LIMITED)


def lower_box_with_nms_limit(w: NodeWriter, inputs: Sequence[str], attributes: Mapping[str, Any]) -> tuple[str, ...]:
    """Writes the chain.

    Rows come in N equal parts, those of picture i in part i, and `batch_splits` says how many of each count. Outputs of a row each have
    room for N x limit of them; sum(kept_splits) of them are real and stand in front.

    Raises:
        ExportError: soft-NMS is asked for, which has no kernel.
    """
    if attributes["soft_nms"]:
        raise ExportError(f"BoxWithNMSLimit: soft-NMS ({attributes['soft_nms']}) has no kernel; run it on the host")
    # One picture has all rows, however many there are.
    splits = inputs[2] if len(inputs) > 2 else w.constant(np.array([np.inf], np.float32))
    lists = CandidateLists(*write_kernel(w, SPLIT_CANDIDATES, *inputs[:2], splits, attributes=attributes))
    visited = write_visit(w, lists)
    kept = write_list_suppression(
        w,
        visited,
        threshold=attributes["nms_thresh"],
        inclusive=0,
        plus_one=attributes["size_offset"],
        one_empty_box=int(attributes["size_offset"] == 0),
    )
    labels = visited.labels
    found = write_found(w, visited, kept, max_dets=attributes["max_dets"], ties=labels, within=labels)
    return write_kernel(w, GATHER_LIMITED, *found, visited.boxes, visited.scores, visited.order, attributes=attributes)
