"""Greedy non-maximum suppression as two kernels: the pairwise mask, in words of 64 boxes, and the scan that visits the boxes.

Lists are (N, C, n): C of N pictures, n boxes each in visiting order. A label of 0 marks what is no candidate; boxes of different
labels do not suppress each other. The mask has room for every pair, so there is no limit that could cut candidates; its memory is
N C n n / 8 bytes. The rule of overlap is that of `ops/suppression.py`.
"""

from __future__ import annotations

from typing import NamedTuple

from roiline.ops.extents import Size, ceil_div, minimum
from roiline.ops.kernels import Kernel, KernelInput, KernelNode, KernelOutput, write_kernel
from roiline.ops.nodes import NodeWriter

WORD = 64
_SCAN_STATE_BYTES = 1024


class KeptRows(NamedTuple):
    """Names what stays: `rows` (N, C, P) int32 in visiting order, -1 after the `counts` (N, C) int32."""

    rows: str
    counts: str


def _shape(node: KernelNode) -> tuple[Size, Size, Size]:
    return node.dim("labels", 0), node.dim("labels", 1), node.dim("labels", 2)


def _words(node: KernelNode) -> Size:
    return ceil_div(_shape(node)[2], WORD)


def _limit(node: KernelNode) -> Size:
    entries = _shape(node)[2]
    return minimum(entries, node["limit"]) if node["limit"] > 0 else entries


def _mask_shape(node: KernelNode) -> tuple[Size, ...]:
    return (*_shape(node), _words(node))


def _mask_items(node: KernelNode) -> Size:
    images, lists, entries = _shape(node)
    return images * lists * entries * _words(node)


SUPPRESSION_MASK = Kernel(
    name="SuppressionMask",
    source="kernel_sources/suppression_mask.cuh",
    function="mask_word",
    inputs={"boxes": KernelInput(("float32",), 4), "labels": KernelInput(("int32",), 3)},
    outputs={"mask": KernelOutput("int64", _mask_shape)},
    items=_mask_items,
    arguments=lambda node: {
        "entries": _shape(node)[2],
        "threshold": float(node["threshold"]),
        "plus_one": float(node["plus_one"]),
        "inclusive": node["inclusive"],
        "one_empty_box": node["one_empty_box"],
    },
    attributes={"threshold": None, "plus_one": None, "inclusive": None, "one_empty_box": 0},
)

SCAN_MASK = Kernel(
    name="ScanMask",
    source="kernel_sources/scan_mask.cuh",
    function="scan_list",
    inputs={"mask": KernelInput(("int64",), 4), "labels": KernelInput(("int32",), 3)},
    outputs={
        "kept": KernelOutput("int32", lambda node: (*_shape(node)[:2], _limit(node))),
        "kept_count": KernelOutput("int32", lambda node: _shape(node)[:2]),
        "removed": KernelOutput("int64", lambda node: (*_shape(node)[:2], _words(node))),
    },
    items=lambda node: _shape(node)[0] * _shape(node)[1],
    arguments=lambda node: {"entries": _shape(node)[2], "limit": _limit(node)},
    attributes={"limit": None},
    cooperative=True,
    shared_bytes=lambda _node: _SCAN_STATE_BYTES,
)


def write_mask_suppression(
    w: NodeWriter,
    boxes: str,
    labels: str,
    *,
    threshold: float,
    inclusive: int,
    plus_one: float,
    one_empty_box: int = 0,
    limit: int = 0,
) -> KeptRows:
    """Writes NMS over lists of boxes (N, C, n, 4) with labels (N, C, n); at most `limit` a list (<= 0: all)."""
    rule = {
        "threshold": float(threshold),
        "plus_one": float(plus_one),
        "inclusive": inclusive,
        "one_empty_box": one_empty_box,
    }
    (mask,) = write_kernel(w, SUPPRESSION_MASK, boxes, labels, attributes=rule)
    rows, counts, _ = write_kernel(w, SCAN_MASK, mask, labels, attributes={"limit": limit})
    return KeptRows(rows, counts)
