"""From candidates to detections, as kernels: what every operator that ends in detections has in common.

Candidates are lists (N, C, n): C of N pictures, one a class or one for all classes, n entries each, with boxes, scores, and labels of
which 0 means no candidate. They are put into visiting order and suppressed; what is kept is ranked over all lists of its picture, limited,
and gathered. Places among all lists of a picture are slots: list x n + place.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from roiline.ops.extents import Size, maximum, minimum
from roiline.ops.kernels import Argument, Kernel, KernelInput, KernelNode, KernelOutput, write_kernel
from roiline.ops.mask_suppression import SCAN_MASK, SUPPRESSION_MASK, KeptRows, write_mask_suppression
from roiline.ops.nodes import NodeWriter
from roiline.ops.ranking import RANK_CHUNKS, SORT_CHUNKS, write_ranking

_LIST_F32 = KernelInput(("float32",), 3)
_LIST_I32 = KernelInput(("int32",), 3)
_ROWS_I32 = KernelInput(("int32",), 2)
_COUNT_I32 = KernelInput(("int32",), 1)

SPARE_ROWS = 32
"""Room for detections beyond the limit, where equal scores at the limit stay, comes in multiples of this."""


class CandidateLists(NamedTuple):
    """Names boxes (N, C, n, 4), scores (N, C, n) and labels (N, C, n) int32."""

    boxes: str
    scores: str
    labels: str


class VisitedLists(NamedTuple):
    """Names candidates in visiting order, and the `order` (N, C, n) int32 of the places that they had."""

    boxes: str
    scores: str
    labels: str
    order: str


class FoundSlots(NamedTuple):
    """Names `slots` (N, D) int32, -1 for padding, and `counts` (N,) int32 of those that are found; a count may be beyond D."""

    slots: str
    counts: str


def _shape(node: KernelNode, name: str) -> tuple[Size, Size, Size]:
    return node.dim(name, 0), node.dim(name, 1), node.dim(name, 2)


def _list_arguments(node: KernelNode, name: str) -> dict[str, Argument]:
    return {"lists": node.dim(name, 1), "entries": node.dim(name, 2)}


def _all_places(node: KernelNode, name: str) -> Size:
    return node.dim(name, 1) * node.dim(name, 2)


def _rows(node: KernelNode) -> Size:
    places = _all_places(node, "kept")
    return minimum(places, node["capacity"]) if node["capacity"] > 0 else places


def _slots_shape(node: KernelNode) -> tuple[Size, Size]:
    return node.dim("slots", 0), node.dim("slots", 1)


ORDER_CANDIDATES = Kernel(
    name="OrderCandidates",
    source="kernel_sources/order_candidates.cuh",
    function="order_candidate",
    inputs={"boxes": KernelInput(("float32",), 4), "scores": _LIST_F32, "labels": _LIST_I32, "order": _LIST_I32},
    outputs={
        "ordered_boxes": KernelOutput("float32", lambda node: (*_shape(node, "order"), 4)),
        "ordered_scores": KernelOutput("float32", lambda node: _shape(node, "order")),
        "ordered_labels": KernelOutput("int32", lambda node: _shape(node, "order")),
    },
    items=lambda node: node.dim("order", 0) * _all_places(node, "order"),
    arguments=lambda node: {"entries": node.dim("order", 2)},
)

RANK_KEPT = Kernel(
    name="RankKept",
    source="kernel_sources/rank_kept.cuh",
    function="rank_kept",
    inputs={"kept": _LIST_I32, "kept_count": _ROWS_I32, "scores": _LIST_F32, "ties": _LIST_I32},
    outputs={
        "slots": KernelOutput("int32", lambda node: (node.dim("kept", 0), _rows(node))),
        "found": KernelOutput("int32", lambda node: (node.dim("kept", 0),)),
    },
    items=lambda node: node.dim("kept", 0) * maximum(_all_places(node, "kept"), 1),
    arguments=lambda node: {
        **_list_arguments(node, "kept"),
        "rows": _rows(node),
        "limit": node["limit"],
        "keep_ties": node["keep_ties"],
    },
    attributes={"limit": None, "capacity": None, "keep_ties": 0},
)

ORDER_BY_LIST = Kernel(
    name="OrderByList",
    source="kernel_sources/order_by_list.cuh",
    function="order_slot",
    inputs={"slots": _ROWS_I32, "found": _COUNT_I32, "within": _LIST_I32},
    outputs={"ordered": KernelOutput("int32", _slots_shape)},
    items=lambda node: node.dim("slots", 0) * node.dim("slots", 1),
    arguments=lambda node: {**_list_arguments(node, "within"), "rows": node.dim("slots", 1)},
)

GATHER_DETECTIONS = Kernel(
    name="GatherDetections",
    source="kernel_sources/gather_detections.cuh",
    function="gather_detection",
    inputs={
        "slots": _ROWS_I32,
        "found": _COUNT_I32,
        "boxes": KernelInput(("float32",), 4),
        "scores": _LIST_F32,
        "labels": _LIST_I32,
    },
    outputs={
        "kept_boxes": KernelOutput("float32", lambda node: (*_slots_shape(node), 4)),
        "kept_scores": KernelOutput("float32", _slots_shape),
        "classes": KernelOutput("int64", _slots_shape),
        "count": KernelOutput("int64", lambda node: (node.dim("slots", 0),)),
    },
    items=lambda node: node.dim("slots", 0) * maximum(node.dim("slots", 1), 1),
    arguments=lambda node: {
        "images": node.dim("slots", 0),
        "rows": node.dim("slots", 1),
        **_list_arguments(node, "scores"),
        "first_class": node["first_class"],
    },
    attributes={"first_class": None},
)

CLIP_FINALLY = Kernel(
    name="ClipFinally",
    source="kernel_sources/clip_finally.cuh",
    function="clip_finally",
    inputs={
        "boxes": KernelInput(("float32",), 3),
        "scores": KernelInput(("float32",), 2),
        "classes": KernelInput(("int64",), 2),
        "count": KernelInput(("int64",), 1),
        "im_size": KernelInput(("float32",), 2),
    },
    outputs={
        "clipped_boxes": KernelOutput("float32", lambda node: (node.dim("boxes", 0), node.dim("boxes", 1), 4)),
        "clipped_scores": KernelOutput("float32", lambda node: (node.dim("boxes", 0), node.dim("boxes", 1))),
        "clipped_classes": KernelOutput("int64", lambda node: (node.dim("boxes", 0), node.dim("boxes", 1))),
        "clipped_count": KernelOutput("int64", lambda node: (node.dim("boxes", 0),)),
    },
    items=lambda node: node.dim("boxes", 0) * maximum(node.dim("boxes", 1), 1),
    arguments=lambda node: {"rows": node.dim("boxes", 1)},
)

LIST_KERNELS = (
    SORT_CHUNKS,
    RANK_CHUNKS,
    ORDER_CANDIDATES,
    SUPPRESSION_MASK,
    SCAN_MASK,
    RANK_KEPT,
    ORDER_BY_LIST,
)
"""What `write_visit`, `write_list_suppression` and `write_found` are made of."""


def write_visit(w: NodeWriter, candidates: CandidateLists, *, later_first: int = 0) -> VisitedLists:
    """Puts candidates into visiting order: by descending score, of equal ones the earlier first, or the later."""
    order = write_ranking(w, candidates.scores, limit=0, later_first=later_first)
    boxes, scores, labels = write_kernel(w, ORDER_CANDIDATES, *candidates, order, attributes={})
    return VisitedLists(boxes, scores, labels, order)


def write_list_suppression(w: NodeWriter, visited: VisitedLists, **rule: Any) -> KeptRows:
    """Writes NMS in every list; the rule is as `write_mask_suppression` takes it."""
    return write_mask_suppression(w, visited.boxes, visited.labels, **rule)


def write_found(
    w: NodeWriter,
    visited: VisitedLists,
    kept: KeptRows,
    *,
    max_dets: int,
    ties: str,
    within: str | None,
    keep_ties: bool = False,
) -> FoundSlots:
    """Ranks what is kept over the lists of a picture and applies the limit (<= 0: none).

    Of equal scores the lower value of `ties` (N, C, n) comes first, then the lower list. With `keep_ties` all that score as much as the
    last one within the limit stay, and the slots have room for more than the limit. Slots come by rank, or list by list and there
    by ascending value of `within` (N, C, n).
    """
    capacity = (max_dets // SPARE_ROWS + 1) * SPARE_ROWS if keep_ties and max_dets > 0 else max_dets
    limits = {"limit": max_dets, "capacity": capacity, "keep_ties": int(keep_ties)}
    slots, counts = write_kernel(w, RANK_KEPT, *kept, visited.scores, ties, attributes=limits)
    if within is not None:
        (slots,) = write_kernel(w, ORDER_BY_LIST, slots, counts, within, attributes={})
    return FoundSlots(slots, counts)


def write_detections(
    w: NodeWriter, found: FoundSlots, visited: VisitedLists, *, first_class: int, im_size: str | None
) -> tuple[str, ...]:
    """Gathers boxes (N, D, 4), scores (N, D), classes (N, D) and count (N,), clipped finally where `im_size` (N, 2) is given."""
    results = write_kernel(w, GATHER_DETECTIONS, *found, *visited[:3], attributes={"first_class": first_class})
    return results if im_size is None else write_kernel(w, CLIP_FINALLY, *results, im_size, attributes={})
