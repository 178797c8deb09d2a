"""Compares what a network needs with what a checkpoint has, in detectron2's names, before anything is built.

detectron2 leaves a parameter that the file lacks at its random start and goes on; here every missing, misshapen or non-finite one stops
the export, all in one table, with what the file most likely is. A deeper body than the configuration's is a fault too. Values that are not
finite are only noted in heads that make masks or keypoints, since detections do not depend on them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from roiline.core.errors import WeightError
from roiline.core.structures import Float32
from roiline.export.detectron2.layers import Layer
from roiline.export.graph import BlobRequirement, Shape

Fault: TypeAlias = tuple[str, str, str, str]
"""Is a parameter, what the file has, what was expected, and what for."""

_MOST_ROWS = 40
_AFTER_DETECTIONS = ("mask head", "keypoint head")
_BOOKKEEPING = re.compile(r"(.+\.)?(num_batches_tracked|pixel_mean|pixel_std|(anchor_generator\.)?cell_anchors\.\d+)")
_BLOCK = re.compile(r"(?:^|\.)(res\d)\.(\d+)\.")
_BODY = re.compile(r"backbone\.(?:bottom_up\.)?(res\d)\.(\d+)\.conv1\.weight")
_PARTS: tuple[tuple[str, str], ...] = (
    (r"\bfpn_lateral", "a feature pyramid"),
    (r"\brpn_head\.", "an RPN"),
    (r"roi_heads\.res5\.", "a res5 among its heads (C4)"),
    (r"\bbox_head\.\d", "cascaded box heads"),
    (r"\bcls_score\.", "a box head"),
    (r"\bmask_head\.", "a mask head"),
    (r"\bkeypoint_head\.", "a keypoint head"),
    (r"\bcls_subnet\.|^retnet_", "a RetinaNet head"),
    (r"\bsem_seg_head\.", "a semantic segmentation head"),
)


def check_fit(
    source: str,
    layers: Sequence[Layer],
    requirements: Sequence[BlobRequirement],
    blobs: Mapping[str, Float32],
    tensors: Mapping[str, NDArray[Any]],
    resolve: Callable[[str], str],
) -> tuple[str, ...]:
    """Returns notes about parameters that the model does without.

    Raises:
        WeightError: the checkpoint does not fit; all faults are listed.
    """
    origins = {blob: (layer, names) for layer in layers for blob, names in layer.parameters.items()}
    rows: list[Fault] = []
    notes: list[str] = []
    for need in requirements:
        name = resolve(need.name)
        layer, names = origins[name]
        blob = blobs.get(name)
        faults = _list_faults(need, layer, names, blob, tensors)
        if not faults and blob is not None and not np.isfinite(blob).all():
            wrong = _list_non_finite(names, tensors)
            if need.purpose in _AFTER_DETECTIONS:
                notes += [
                    f"{one} holds NaN or infinite values: the {need.purpose} makes nothing of use" for one in wrong
                ]
            else:
                faults = [(one, "NaN or infinite", "finite values", need.purpose) for one in wrong]
        rows += faults
    used = {name for _, names in origins.values() for name in names}
    unused = sorted(name for name in set(tensors) - used if not _BOOKKEEPING.fullmatch(name))
    rows += [(name, "there", "no such block", "a deeper body") for name in unused if _is_deeper(name, used)]
    if rows:
        raise WeightError(_describe_faults(source, sorted(set(rows)), tensors))
    return (*notes, *(f"not used: {name}" for name in unused))


def _list_faults(
    need: BlobRequirement,
    layer: Layer,
    names: Sequence[str],
    blob: Float32 | None,
    tensors: Mapping[str, NDArray[Any]],
) -> list[Fault]:
    expected = _shape_in_file(need, layer)
    missing = [name for name in names if name not in tensors]
    if missing or blob is None:
        return [(name, "missing", _show(expected) if name == names[0] else "", need.purpose) for name in missing]
    if not _fits(blob.shape, need.shape):
        return [(names[0], _show(tensors[names[0]].shape), _show(expected), need.purpose)]
    return []


def _list_non_finite(names: Sequence[str], tensors: Mapping[str, NDArray[Any]]) -> list[str]:
    """Returns which parameters of a blob are not finite; where all are, the first, of which it became so."""
    return [name for name in names if not np.isfinite(tensors[name]).all()] or [names[0]]


def _shape_in_file(need: BlobRequirement, layer: Layer) -> Shape:
    """Returns the shape that a parameter should have there, where the background has no rows."""
    absent = {"deltas": 4, "masks": 1}.get(layer.rows, 0)
    first = need.shape[0]
    return (None if first is None else first - absent, *need.shape[1:])


def _is_deeper(name: str, used: set[str]) -> bool:
    """Answers whether an unused parameter is of a block that the network has no counterpart of, in a stage that it has."""
    found = _BLOCK.search(name)
    if found is None:
        return False
    here, first = (f".{found[1]}.{block}.conv1.weight" for block in (found[2], 0))
    stage = [one for one in used if one.startswith("backbone.") and one.endswith(first)]
    return bool(stage) and not any(one.endswith(here) for one in used)


def _describe_faults(source: str, rows: list[Fault], tensors: Mapping[str, NDArray[Any]]) -> str:
    header = ("parameter", "in the file", "expected", "for")
    shown = rows[:_MOST_ROWS]
    widths = [max(len(row[column]) for row in [header, *shown]) for column in range(len(header))]
    lines = [f"{source}: these weights do not fit the configuration ({len(rows)} faults)", _describe_file(tensors)]
    lines += [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in [header, *shown]
    ]
    if len(rows) > _MOST_ROWS:
        lines.append(f".. and {len(rows) - _MOST_ROWS} more")
    return "\n  ".join(lines)


def _describe_file(tensors: Mapping[str, NDArray[Any]]) -> str:
    """Says what a checkpoint is of, as far as its names and shapes tell."""
    blocks: dict[str, int] = {}
    for name in tensors:
        found = _BODY.match(name)
        if found:
            blocks[found[1]] = max(blocks.get(found[1], 0), int(found[2]) + 1)
    body = ", ".join(f"{stage} x {count}" for stage, count in sorted(blocks.items()))
    parts = [title for pattern, title in _PARTS if any(re.search(pattern, name) for name in tensors)]
    scores = next((tensor for name, tensor in tensors.items() if name.endswith("cls_score.weight")), None)
    if scores is not None and scores.ndim == 2:
        parts.append(f"{len(scores) - 1} classes")
    told = [f"a body of {body}"] if body else []
    return "The file has " + (", ".join([*told, *parts]) or "no parameters with detectron2's names")


def _fits(shape: tuple[int, ...], wanted: Shape) -> bool:
    return len(shape) == len(wanted) and all(b is None or a == b for a, b in zip(shape, wanted, strict=True))


def _show(shape: Shape) -> str:
    return "x".join("any" if side is None else str(side) for side in shape) or "one number"
