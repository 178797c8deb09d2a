"""Which tensors of a lowered graph have rows to spare, and which count says how many of them are real.

A portable graph drops padding as soon as it can; a lowered one keeps every shape fixed. So a tensor that has T rows, or as many columns
as the fullest picture needs, in the one has padding in the other. What is followed here, node by node from the operators that make
rows, is all that `trimming` needs to take the padding away again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import onnx

from roiline.core.errors import EngineError
from roiline.ops.operator import Operator

RowKind: TypeAlias = Literal["batch", "padded", "rows", "front", "given"]


@dataclass(frozen=True, slots=True)
class Rows:
    """Is how the first axes of a tensor are to be read.

    `batch`: one row a picture. `padded`: (N, capacity, ...), of which the first `count` of each picture are real. `rows`:
    (N * capacity, ...), picture by picture, likewise. `front`: rows of all pictures, the real ones, the sum of `count`, in front.
    `given`: as many rows as were fed. `count` names the tensor (N,) that says how many are real.
    """

    kind: RowKind
    count: str = ""


BATCH = Rows("batch")
GIVEN = Rows("given")

_SHAPE_ONLY = {"Shape", "Size"}
_GIVEN_INPUTS = ("rois", "roi_index")
_ROWS_COUNTED_BY = {"BoxWithNMSLimit": ("kept_splits", ("kept_scores", "kept_boxes", "classes", "keeps"))}
"""Operators whose outputs are rows of all pictures: the output that counts them, and the outputs that are such rows."""

_PER_PICTURE = ("roi_batch_splits",)
"""Outputs with a row a picture, whatever the inputs are."""


def input_rows(inputs: Iterable[str]) -> dict[str, Rows]:
    """Returns how the inputs of a model are read: RoIs that are fed are as many as are fed."""
    return {name: GIVEN if name in _GIVEN_INPUTS else BATCH for name in inputs}


def rows_of_operator(
    operator: Operator, node: onnx.NodeProto, known: Mapping[str, Rows], *, where: str
) -> dict[str, Rows]:
    """Returns how the outputs of a node of one of our operators are read.

    Raises:
        EngineError: the node mixes rows that different counts are kept of.
    """
    named = dict(zip(operator.outputs, node.output, strict=False))
    if operator.name == "Trim":
        return {named["rois"]: Rows("rows", node.input[operator.inputs.index("count")])}
    if operator.name in _ROWS_COUNTED_BY:
        count, counted = _ROWS_COUNTED_BY[operator.name]
        return {name: Rows("front", named[count]) if part in counted else BATCH for part, name in named.items()}
    if "count" in named:
        many = {part for part, (_, rank) in operator.outputs.items() if rank > 1}
        return {name: Rows("padded", named["count"]) if part in many else BATCH for part, name in named.items()}
    rows = rows_of_node(node, known, where=where)
    return {name: BATCH if part in _PER_PICTURE else rows for part, name in named.items()}


def rows_of_node(node: onnx.NodeProto, known: Mapping[str, Rows], *, where: str) -> Rows:
    """Returns how the outputs of a standard node are read: as the most particular of its inputs.

    Raises:
        EngineError: the node mixes rows that different counts are kept of.
    """
    if node.op_type in _SHAPE_ONLY:
        return BATCH
    found = {known[name] for name in node.input if name in known}
    for kind in ("front", "rows", "padded", "given"):
        of_kind = [rows for rows in found if rows.kind == kind]
        if len(of_kind) > 1:
            counts = ", ".join(sorted(rows.count for rows in of_kind))
            raise EngineError(
                f"{where}: node `{node.name}` ({node.op_type}) mixes rows counted by {counts}; such a graph has no form of fixed sizes"
            )
        if of_kind:
            return of_kind[0]
    return BATCH
