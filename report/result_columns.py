"""Results as columns: every detection of a result file in the file's order, whatever its format is.

`images` are positions in `entries`, `classes` are contiguous from 1; all numbers are as precise as the file has them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np

from roiline.core.errors import DataError
from roiline.core.rle import decompress_runs
from roiline.core.structures import Float64, Int64, Proposals, RoidbEntry
from roiline.infer.roidb import MAX_SIDE


@dataclass(frozen=True, slots=True)
class DetectionResults:
    """Is all boxes of a result file.

    `images` (D,), `classes` (D,), `scores` (D,); `boxes_xywh` (D, 4) are COCO's x, y, width, height in original pixels (inclusive
    corners: width = x2 - x1 + 1).
    """

    path: Path
    entries: tuple[RoidbEntry, ...]
    images: Int64
    classes: Int64
    boxes_xywh: Float64
    scores: Float64


@dataclass(frozen=True, slots=True)
class MaskResults:
    """Is all masks of a result file.

    `images` (D,), `classes` (D,), `scores` (D,); `counts` are D of COCO's compressed run lengths, `sizes_hw` (D, 2) the sizes of their
    pictures, `areas` (D,) their pixels.
    """

    path: Path
    entries: tuple[RoidbEntry, ...]
    images: Int64
    classes: Int64
    scores: Float64
    counts: tuple[bytes, ...]
    sizes_hw: Int64
    areas: Int64


@dataclass(frozen=True, slots=True)
class KeypointResults:
    """Is all keypoints of a result file.

    `images` (D,), `classes` (D,), `scores` (D,) as the model's confidence rule has them; `points` (D, 2, J) are x, y in original pixels,
    `logits` (D, J) and `box_scores` (D,) are None where the file does not say them.
    """

    path: Path
    entries: tuple[RoidbEntry, ...]
    images: Int64
    classes: Int64
    scores: Float64
    points: Float64
    logits: Float64 | None = None
    box_scores: Float64 | None = None


@dataclass(frozen=True, slots=True)
class ProposalResults:
    """Is a proposal file's content, one `Proposals` for each of `entries`, as the file has it (neither clipped nor thinned)."""

    path: Path
    entries: tuple[RoidbEntry, ...]
    proposals: tuple[Proposals, ...]


ScoredResults: TypeAlias = DetectionResults | MaskResults | KeypointResults
Results: TypeAlias = ScoredResults | ProposalResults


@dataclass(frozen=True, slots=True)
class MaskColumns:
    """Is what masks look like in every format, once read."""

    counts: tuple[bytes, ...]
    sizes_hw: Int64
    areas: Int64


def read_masks(
    masks: Sequence[object], images: Sequence[int], entries: Sequence[RoidbEntry], places: Sequence[str]
) -> MaskColumns:
    """Reads masks {size: [h, w], counts: compressed run lengths}; `images` are their positions, `places` name them in messages.

    Raises:
        DataError: one is of another form or size, or its run lengths are damaged.
    """
    counts: list[bytes] = []
    sizes = np.zeros((len(masks), 2), np.int64)
    areas = np.zeros(len(masks), np.int64)
    for row, (mask, image, where) in enumerate(zip(masks, images, places, strict=True)):
        text, size = _split_mask(mask, where)
        entry = entries[image]
        if entry.height > 0 and entry.width > 0 and size != (entry.height, entry.width):
            raise DataError(
                f"{where}: the mask is of a picture of {size[0]} x {size[1]} pixels, image {entry.image_id!r} has "
                f"{entry.height} x {entry.width} (height x width)"
            )
        try:
            runs = decompress_runs(text)
        except DataError as failure:
            raise DataError(f"{where}: {failure}") from failure
        if runs.sum() != size[0] * size[1]:
            raise DataError(f"{where}: the mask's run lengths add up to {runs.sum()}, expected {size[0]} x {size[1]}")
        counts.append(text)
        sizes[row], areas[row] = size, runs[1::2].sum()
    return MaskColumns(tuple(counts), sizes, areas)


def _split_mask(mask: object, where: str) -> tuple[bytes, tuple[int, int]]:
    if isinstance(mask, dict):
        size, counts = mask.get("size"), mask.get("counts")
        sized = isinstance(size, (list, tuple)) and len(size) == 2 and all(_is_size(side) for side in size)
        if sized and isinstance(counts, str):
            counts = counts.encode("latin1", "replace")
        if sized and isinstance(counts, bytes):
            return counts, (int(size[0]), int(size[1]))  # type: ignore[index]
    raise DataError(f"{where}: expected a mask of the form {{size: [height, width], counts: compressed run lengths}}")


def _is_size(side: object) -> bool:
    return isinstance(side, (int, np.integer)) and not isinstance(side, bool) and 0 < int(side) <= MAX_SIDE
