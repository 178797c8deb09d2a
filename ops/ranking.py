"""The best of long lists, as kernels: chunks are ranked by counting, then each entry finds its rank among all chunks.

Lists are (N, C, n): C of N pictures, n entries each. There is no limit to n or to how many are wanted, and no memory beyond two
numbers an entry. Order: descending score, what is not a number last; of equal scores the earlier entry first, or the later one. Each
output has one writer, so results do not depend on timing.
"""

from __future__ import annotations

from roiline.ops.extents import Size, ceil_div, minimum
from roiline.ops.kernels import Kernel, KernelInput, KernelNode, KernelOutput, write_kernel
from roiline.ops.nodes import NodeWriter

CHUNK = 1024
"""Entries that a block ranks at once; the sources have the same number."""


def _shape(node: KernelNode) -> tuple[Size, Size, Size]:
    name = next(iter(node.kernel.inputs))
    return node.dim(name, 0), node.dim(name, 1), node.dim(name, 2)


def _lists(node: KernelNode) -> Size:
    images, lists, _ = _shape(node)
    return images * lists


def _best(node: KernelNode) -> Size:
    entries = _shape(node)[2]
    return minimum(entries, node["limit"]) if node["limit"] > 0 else entries


SORT_CHUNKS = Kernel(
    name="SortChunks",
    source="kernel_sources/sort_chunks.cuh",
    function="sort_chunk",
    inputs={"scores": KernelInput(("float32",), 3)},
    outputs={"keys": KernelOutput("int32", _shape), "order": KernelOutput("int32", _shape)},
    items=lambda node: _lists(node) * ceil_div(_shape(node)[2], CHUNK),
    arguments=lambda node: {"entries": _shape(node)[2], "later_first": node["later_first"]},
    attributes={"later_first": 0},
    cooperative=True,
    shared_bytes=lambda _node: 4 * CHUNK,
)

RANK_CHUNKS = Kernel(
    name="RankChunks",
    source="kernel_sources/rank_chunks.cuh",
    function="rank_entry",
    inputs={"keys": KernelInput(("int32",), 3), "order": KernelInput(("int32",), 3)},
    outputs={"index": KernelOutput("int32", lambda node: (*_shape(node)[:2], _best(node)))},
    items=lambda node: _lists(node) * _shape(node)[2],
    arguments=lambda node: {"entries": _shape(node)[2], "best": _best(node)},
    attributes={"limit": None},
)


def write_ranking(w: NodeWriter, scores: str, *, limit: int, later_first: int = 0) -> str:
    """Writes the ranking of lists of scores (N, C, n): the places int32 (N, C, K) of the `limit` best (<= 0: all), best first."""
    keys, order = write_kernel(w, SORT_CHUNKS, scores, attributes={"later_first": later_first})
    (index,) = write_kernel(w, RANK_CHUNKS, keys, order, attributes={"limit": limit})
    return index
