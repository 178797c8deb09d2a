"""DetectionOutput as kernels: decode, visit, suppress per class, rank and limit, gather."""

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
from roiline.ops.extents import Size, combine
from roiline.ops.kernels import Argument, Kernel, KernelInput, KernelNode, KernelOutput, write_kernel
from roiline.ops.nodes import NodeWriter


def _lists(node: KernelNode) -> tuple[Size, Size, Size]:
    """Returns (pictures, classes without background, rows of a picture)."""
    images = node.dim("im_info", 0)
    return images, node.dim("cls_prob", 1) - 1, combine("//", node.dim("rois", 0), images)


def _arguments(node: KernelNode) -> dict[str, Argument]:
    _, columns, entries = _lists(node)
    numbers = ("score_thresh", "smallest_side", "size_offset", "corner_offset", "delta_clip")
    return {
        "columns": columns,
        "entries": entries,
        "delta_columns": node.dim("bbox_pred", 1),
        **{name: float(node[name]) for name in numbers},
        "weights": tuple(float(weight) for weight in node["bbox_reg_weights"]),
        **{name: node[name] for name in ("class_agnostic", "regress", "network_frame")},
    }


def _items(node: KernelNode) -> Size:
    images, columns, entries = _lists(node)
    return images * columns * entries


DECODE_DETECTIONS = Kernel(
    name="DecodeDetections",
    source="detection_output/decode.cuh",
    function="decode_detection",
    inputs={name: KernelInput(("float32",), 2) for name in ("rois", "cls_prob", "bbox_pred", "im_info", "im_size")},
    outputs={
        "boxes": KernelOutput("float32", lambda node: (*_lists(node), 4)),
        "scores": KernelOutput("float32", _lists),
        "labels": KernelOutput("int32", _lists),
    },
    items=_items,
    arguments=_arguments,
    attributes={
        "score_thresh": None,
        "bbox_reg_weights": None,
        "class_agnostic": 0,
        "regress": 1,
        "network_frame": 0,
        "smallest_side": 0.0,
        "size_offset": 1.0,
        "corner_offset": 1.0,
        "delta_clip": None,
    },
)

DETECTION_KERNELS = (DECODE_DETECTIONS, *LIST_KERNELS, GATHER_DETECTIONS, CLIP_FINALLY)


def lower_detection_output(w: NodeWriter, inputs: Sequence[str], attributes: Mapping[str, Any]) -> tuple[str, ...]:
    """Writes the chain.

    RoIs come in N equal parts, those of picture i in part i; a row counts where its image index is i, so padding has another (-1). The
    outputs have room for the limit, and where equal scores at the limit stay, for more; a count beyond the rows says that
    more scores are equal than there is room for.
    """
    *tensors, _roi_count = inputs
    lists = CandidateLists(*write_kernel(w, DECODE_DETECTIONS, *tensors, attributes=attributes))
    visited = write_visit(w, lists, later_first=attributes["later_first"])
    kept = write_list_suppression(
        w,
        visited,
        threshold=attributes["nms_thresh"],
        inclusive=attributes["nms_inclusive"],
        plus_one=attributes["size_offset"],
    )
    ranked = bool(attributes["ranked"])
    found = write_found(
        w,
        visited,
        kept,
        max_dets=attributes["max_dets"],
        ties=visited.order,
        within=None if ranked else visited.order,
        keep_ties=not ranked,
    )
    im_size = tensors[4] if attributes["final_clip"] else None
    return write_detections(w, found, visited, first_class=1, im_size=im_size)
