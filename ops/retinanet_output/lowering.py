"""RetinaNetOutput as kernels: label, visit, suppress within labels, rank and limit, gather."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from roiline.ops.detection_lists import (
    CLIP_FINALLY,
    GATHER_DETECTIONS,
    LIST_KERNELS,
    CandidateLists,
    write_detections,
    write_found,
    write_list_suppression,
    write_visit,
)
from roiline.ops.extents import Size
from roiline.ops.kernels import Kernel, KernelInput, KernelNode, KernelOutput, write_kernel
from roiline.ops.nodes import NodeWriter


def _lists(node: KernelNode) -> tuple[Size, Size, Size]:
    return node.dim("scores", 0), 1, node.dim("scores", 1)


LABEL_CANDIDATES = Kernel(
    name="LabelCandidates",
    source="retinanet_output/label.cuh",
    function="label_candidates",
    inputs={
        "scores": KernelInput(("float32",), 2),
        "classes": KernelInput(("int64",), 2),
        "levels": KernelInput(("int64",), 2),
    },
    outputs={"counted_scores": KernelOutput("float32", _lists), "labels": KernelOutput("int32", _lists)},
    items=lambda node: node.dim("scores", 0),
    arguments=lambda node: {
        "entries": node.dim("scores", 1),
        "first_class": node["first_class"],
        "labels_in_use": node["num_classes"] - node["first_class"],
        "score_thresh": float(node["score_thresh"]),
        "coarsest_score_thresh": float(node["coarsest_score_thresh"]),
    },
    attributes={"num_classes": None, "first_class": 1, "score_thresh": None, "coarsest_score_thresh": 0.0},
    cooperative=True,
    shared_bytes=lambda _node: 4 * 256,
)

OUTPUT_KERNELS = (LABEL_CANDIDATES, *LIST_KERNELS, GATHER_DETECTIONS, CLIP_FINALLY)


def lower_retinanet_output(w: NodeWriter, inputs: Sequence[str], attributes: Mapping[str, Any]) -> tuple[str, ...]:
    """Writes the chain: one list a picture, as candidates have one class each. Its outputs have min(M, `max_dets`) rows."""
    boxes, scores, classes, levels, *im_size = inputs
    counted, labels = write_kernel(w, LABEL_CANDIDATES, scores, classes, levels, attributes=attributes)
    visited = write_visit(w, CandidateLists(w.unsqueeze(boxes, 1), counted, labels))
    kept = write_list_suppression(
        w,
        visited,
        threshold=attributes["nms_thresh"],
        inclusive=attributes["nms_inclusive"],
        plus_one=attributes["size_offset"],
    )
    within = None if attributes["ranked"] else visited.labels
    found = write_found(w, visited, kept, max_dets=attributes["max_dets"], ties=visited.labels, within=within)
    size = im_size[0] if im_size else None
    return write_detections(w, found, visited, first_class=attributes["first_class"], im_size=size)
