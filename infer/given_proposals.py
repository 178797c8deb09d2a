"""Given proposals as network input: scaled to network pixels, and those that round to the same place run once.

This is for models without proposals of their own. What a proposal file's rows become before that is the business of
`proposal_files`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from roiline.core.spec import GivenProposals
from roiline.core.structures import Float32, Int64

_HASH_WEIGHTS = np.array([1.0, 1e3, 1e6, 1e9, 1e12])


@dataclass(frozen=True, slots=True)
class GivenRois:
    """Is the RoIs of a batch: `rois` (U, 5) float32 rows (image index, box in network pixels), those of each image without repetitions.

    `roi_index` (T,) int64 is the row there of every proposal of the batch, `roi_count` (N,) int64 how many proposals each image has.
    """

    rois: Float32
    roi_index: Int64
    roi_count: Int64


def stack_given_rois(proposals: Sequence[Float32], scales: Sequence[float], rule: GivenProposals) -> GivenRois:
    """Returns the RoIs of N images from their proposals (R, 4) in original pixels and their scales (network pixels per original one).

    RoIs whose five columns agree after multiplication by `rule.dedup` and rounding half to even are one RoI, the first of them; they come
    in the order of one number that the rounded columns make, as Detectron's `im_detect_bbox` has it.
    """
    rois = [np.zeros((0, 5), np.float32)]
    index = [np.zeros(0, np.int64)]
    start = 0
    for image, (boxes, scale) in enumerate(zip(proposals, scales, strict=True)):
        scaled = np.zeros((len(boxes), 5), np.float32)
        scaled[:, 1:] = boxes.astype(np.float64) * scale
        first, inverse = _find_unique(scaled, rule.dedup)
        scaled[:, 0] = image
        rois.append(scaled[first])
        index.append(start + inverse)
        start += len(first)
    counts = np.array([len(boxes) for boxes in proposals], np.int64)
    return GivenRois(np.concatenate(rois), np.concatenate(index), counts)


def _find_unique(rois: Float32, factor: float) -> tuple[Int64, Int64]:
    """Returns which rows (U,) stand for all, and of every row the place there."""
    if factor <= 0:
        every = np.arange(len(rois), dtype=np.int64)
        return every, every
    keys = np.round(rois * np.float32(factor)) @ _HASH_WEIGHTS
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    return first.astype(np.int64), inverse.reshape(-1).astype(np.int64)
