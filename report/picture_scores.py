"""How well a run does on each single picture: what it found, what it missed, and what it made up; and where two runs differ most."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from roiline.core.boxes import box_ious
from roiline.core.errors import DataError
from roiline.core.structures import Float32, ImageId, Int64, RoidbEntry
from roiline.infer.proposal_files import select_proposals
from roiline.report.proposal_recall import LIMITS, pair_greedily
from roiline.report.result_columns import DetectionResults, ProposalResults

OVERLAP = 0.5
SCORE_THRESH = 0.5
"""The score from which a detection counts as the run's word on a picture."""

MOST_PICTURES = 10


@dataclass(frozen=True, slots=True)
class PictureScore:
    """Is a run's answer to one picture: `found` of its objects (no crowds), and `false` boxes; proposals are never false."""

    image_id: ImageId
    objects: int
    found: int
    false: int


@dataclass(frozen=True, slots=True)
class PictureDifference:
    """Is one picture in two runs."""

    a: PictureScore
    b: PictureScore

    @property
    def size(self) -> int:
        """Is by how many objects and false boxes the runs differ."""
        return abs(self.a.found - self.b.found) + abs(self.a.false - self.b.false)


def score_pictures(results: DetectionResults | ProposalResults) -> list[PictureScore]:
    """Scores every picture at an IoU of 0.5: detections from a score of 0.5 on, class by class, or the first 1000 proposals."""
    if isinstance(results, ProposalResults):
        return [
            _score_proposals(select_proposals(found.boxes, entry, limit=0)[: max(LIMITS)], entry)
            for entry, found in zip(results.entries, results.proposals, strict=True)
        ]
    return [
        _score_detections(boxes, classes, entry)
        for entry, (boxes, classes) in zip(results.entries, _split(results), strict=True)
    ]


def find_differences(a: Sequence[PictureScore], b: Sequence[PictureScore]) -> list[PictureDifference]:
    """Returns the pictures in which two runs differ, most first, in dataset order among equals.

    Raises:
        DataError: the runs are over different pictures.
    """
    if [one.image_id for one in a] != [one.image_id for one in b]:
        raise DataError(f"the runs are over different pictures ({len(a)} and {len(b)}); compare runs over the same")
    pairs = [PictureDifference(*pair) for pair in zip(a, b, strict=True)]
    return sorted((pair for pair in pairs if pair.size), key=lambda pair: -pair.size)


def _split(results: DetectionResults) -> Iterator[tuple[Float32, Int64]]:
    """Returns the corners and classes of each picture's counted detections, best first."""
    rows = np.flatnonzero(results.scores >= SCORE_THRESH)
    rows = rows[np.lexsort((-results.scores[rows], results.images[rows]))]
    bounds = np.searchsorted(results.images[rows], np.arange(len(results.entries) + 1)).tolist()
    for start, end in pairwise(bounds):
        corners = results.boxes_xywh[rows[start:end]]
        corners[:, 2:] += corners[:, :2] - 1
        yield corners.astype(np.float32), results.classes[rows[start:end]]


def _score_detections(boxes: Float32, classes: Int64, entry: RoidbEntry) -> PictureScore:
    """Pairs each detection, best first, with the free object of its class that it overlaps most; crowds and difficult objects excuse."""
    counted = ~entry.crowd
    ious = np.where(classes[:, None] == entry.classes[None], box_ious(boxes, entry.boxes), 0.0)
    free = counted.copy()
    found = false = 0
    for overlaps in ious:
        best = int(np.where(free, overlaps, 0.0).argmax()) if len(overlaps) else -1
        if best >= 0 and free[best] and overlaps[best] >= OVERLAP:
            free[best] = False
            found += 1
        elif not (overlaps[entry.crowd] > 0).any():
            false += 1
    return PictureScore(entry.image_id, int(counted.sum()), found, false)


def _score_proposals(boxes: Float32, entry: RoidbEntry) -> PictureScore:
    counted = ~entry.crowd
    overlaps = pair_greedily(box_ious(boxes, entry.boxes[counted]))
    return PictureScore(entry.image_id, int(counted.sum()), int((overlaps >= OVERLAP).sum()), 0)
