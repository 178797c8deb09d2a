"""Soft-NMS: scores of overlapping boxes decay instead of the boxes being dropped. It runs on the host, so there is a numpy form only.

Source: Bodla et al., Soft-NMS (2017). Detectron's form drops a decayed box only where it overlaps the chosen one; Caffe2's drops every
box whose score is too small.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np

from roiline.core.boxes import box_areas
from roiline.core.errors import ConfigError
from roiline.core.structures import Bool, Float32, Int64

SoftNmsMethod: TypeAlias = Literal["linear", "gaussian", "hard"]
SOFT_NMS_METHODS: tuple[SoftNmsMethod, ...] = get_args(SoftNmsMethod)


@dataclass(frozen=True, slots=True)
class SoftNms:
    """Is how soft-NMS decays scores.

    `linear`: by 1 - IoU above the overlap threshold; `gaussian`: by exp(-IoU^2 / sigma) always; `hard`: to 0 above the threshold. A box
    is dropped when its score falls below `score_thresh`.

    Raises:
        ConfigError: the method is not one of these.
    """

    method: SoftNmsMethod
    sigma: float = 0.5
    score_thresh: float = 0.0001

    def __post_init__(self) -> None:
        if self.method not in SOFT_NMS_METHODS:
            raise ConfigError(
                f"soft-NMS: the method is one of {', '.join(SOFT_NMS_METHODS)}, not {self.method!r}; set TEST.SOFT_NMS.METHOD"
            )


def soft_nms(
    boxes: Float32,
    scores: Float32,
    rule: SoftNms,
    *,
    overlap_thresh: float,
    plus_one: float = 1.0,
    drop_distant: bool = False,
) -> tuple[Float32, Int64]:
    """Returns decayed scores (D,) and rows (D,) of boxes (n, 4), in the order of choice.

    A box whose score is too small is dropped where it overlaps the chosen one (Detectron), or with `drop_distant` wherever it is
    (Caffe2). Of equal scores the first in the working order is chosen. That order changes as the originals' does: the chosen box and
    the first remaining one swap places, and Detectron fills the place of a dropped box with the last one.
    """
    decayed, rows = scores.astype(np.float32), np.arange(len(scores))
    kept: list[int] = []
    while rows.size:
        best = int(np.argmax(decayed[rows]))
        kept.append(int(rows[best]))
        rows[best] = rows[0]
        rest = rows[1:]
        overlaps = _overlaps(boxes[kept[-1]], boxes[rest], plus_one=plus_one)
        decayed[rest] *= _weights(overlaps, rule, overlap_thresh)
        small = ~(decayed[rest] >= np.float32(rule.score_thresh))
        rows = rest[~small] if drop_distant else _fill_from_end(rest, small & (overlaps > 0))
    index = np.asarray(kept, np.int64)
    return decayed[index], index


def _overlaps(box: Float32, others: Float32, *, plus_one: float) -> Float32:
    """Returns the IoU of a box (4,) with others (n, 4); NaN, as in the originals, where both have no area."""
    low = np.maximum(box[:2], others[:, :2])
    sides = np.maximum(np.minimum(box[2:], others[:, 2:]) - low + np.float32(plus_one), np.float32(0))
    shared = sides[:, 0] * sides[:, 1]
    areas = box_areas(box[None], plus_one=plus_one) + box_areas(others, plus_one=plus_one)
    with np.errstate(invalid="ignore"):
        overlaps: Float32 = shared / (areas - shared)
    return overlaps


def _weights(overlaps: Float32, rule: SoftNms, overlap_thresh: float) -> Float32:
    """Returns what the scores are multiplied by."""
    if rule.method == "gaussian":
        gaussian: Float32 = np.exp(-(overlaps * overlaps) / np.float32(rule.sigma))
        return gaussian
    decayed = 1 - overlaps if rule.method == "linear" else np.zeros_like(overlaps)
    return np.where(overlaps > np.float32(overlap_thresh), decayed, np.float32(1))


def _fill_from_end(rows: Int64, dropped: Bool) -> Int64:
    """Returns the rows that stay, with each dropped one's place taken by the last row that stays."""
    stays = np.flatnonzero(~dropped)
    holes = np.flatnonzero(dropped[: len(stays)])
    filled: Int64 = rows[: len(stays)].copy()
    filled[holes] = rows[stays[stays >= len(stays)][::-1]]
    return filled
