"""Given proposals as network input: scaled to network pixels, and those that round to the same place run once.

This is for models without proposals of their own. What a proposal file's rows become before that is the business of
`proposal_files`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from roiline.core.boxes import clip_boxes
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


def stack_clipped_rois(
    proposals: Sequence[Float32], sizes_hw: Float32, network_hw: Float32, rule: GivenProposals
) -> GivenRois:
    """Returns the RoIs of N images as detectron2 makes them of proposals (R, 4) in original pixels, each of them a row of its own.

    `sizes_hw` (N, 2) are the original pictures' (height, width), `network_hw` (N, 2) those of the resized pictures, to which boxes are
    clipped; those without area are dropped, and the first `rule.limit` of the others are taken (<= 0: all).
    """
    rois = [np.zeros((0, 5), np.float32)]
    for image, (boxes, size_hw, extent_hw) in enumerate(zip(proposals, sizes_hw, network_hw, strict=True)):
        down, across = (extent_hw.astype(np.float64) / size_hw).astype(np.float32)
        scaled = boxes.astype(np.float32) * np.array([across, down, across, down], np.float32)
        clipped = clip_boxes(scaled, float(extent_hw[0]), float(extent_hw[1]), plus_one=0.0)
        clipped = clipped[(clipped[:, 2:] > clipped[:, :2]).all(axis=1)]
        clipped = clipped[: rule.limit] if rule.limit > 0 else clipped
        rois.append(np.concatenate([np.full((len(clipped), 1), image, np.float32), clipped], axis=1))
    counts = np.array([len(rows) for rows in rois[1:]], np.int64)
    return GivenRois(np.concatenate(rois), np.arange(counts.sum(), dtype=np.int64), counts)


def _find_unique(rois: Float32, factor: float) -> tuple[Int64, Int64]:
    """Returns which rows (U,) stand for all, and of every row the place there."""
    if factor <= 0:
        every = np.arange(len(rois), dtype=np.int64)
        return every, every
    keys = np.round(rois * np.float32(factor)) @ _HASH_WEIGHTS
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    return first.astype(np.int64), inverse.reshape(-1).astype(np.int64)
