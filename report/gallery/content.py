"""What a gallery shows, as JSON for its page: every picture's boxes, outlines and keypoints of one run or two, and its ground truth.

Coordinates are pixels of the original picture with a tenth's precision, scores have four decimals. A box of one run names its partner in
the other: the box of its class that overlaps it most, from an IoU of 0.5 on, each taken once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from roiline.core.rle import decode_rle
from roiline.core.structures import Float32, Int64, Proposals, RoidbEntry
from roiline.infer.result_rows import MaskRows, Rows
from roiline.report.comparison.boxes import LooseBoxes, match_boxes
from roiline.report.overlays import KEYPOINT_THRESH, SKELETON

Plain: TypeAlias = dict[str, Any]

MOST_BOXES = 300
"""Boxes of a picture and a run at most, those of the highest scores."""

_OUTLINE_PX = 1.0
_NO_PARTNER = -1


def rows_of_gallery(found: Rows | Proposals, *, least: float, top: int) -> Rows:
    """Returns what a gallery keeps of a picture: detections from the score `least` on, of proposals the `top` best; the best first."""
    most = top if isinstance(found, Proposals) else MOST_BOXES
    if isinstance(found, Proposals):
        found = Rows(found.boxes, found.scores, np.zeros(len(found.boxes), np.int64))
    chosen = np.argsort(-found.scores, kind="stable")[:most]
    chosen = chosen[found.scores[chosen] >= least]
    masks, keypoints = (np.flatnonzero(part.scores >= least)[:MOST_BOXES] for part in (found.masks, found.keypoints))
    return found.take(chosen, masks, keypoints)


def describe_picture(
    entry: RoidbEntry, source: str, size_hw: tuple[int, int], sides: Sequence[Rows], truth: Rows | None
) -> Plain:
    """Returns one picture of the page: `source` is the address of its file, `sides` are the rows of one run or two."""
    partners = [np.full(len(rows.boxes), _NO_PARTNER, np.int64) for rows in sides]
    if len(sides) == 2:
        matched = match_boxes(*(LooseBoxes(rows.boxes, rows.scores, rows.classes) for rows in sides))
        partners[0][matched.a], partners[1][matched.b] = matched.b, matched.a
    plain: Plain = {
        "id": str(entry.image_id),
        "src": source,
        "h": size_hw[0],
        "w": size_hw[1],
        "sides": [_describe_rows(rows, found) for rows, found in zip(sides, partners, strict=True)],
    }
    if truth is not None:
        plain["truth"] = _describe_rows(truth, np.full(len(truth.boxes), _NO_PARTNER, np.int64))
    return plain


def _describe_rows(rows: Rows, partners: Int64) -> Plain:
    """Returns boxes as [class, score, x1, y1, x2, y2, partner], masks as [class, score, SVG path], keypoints as [class, score, points]."""
    columns = zip(rows.classes.tolist(), rows.scores.tolist(), rows.boxes.tolist(), partners.tolist(), strict=True)
    plain: Plain = {
        "boxes": [
            [label, round(score, 4), *(round(corner, 1) for corner in box), partner]
            for label, score, box, partner in columns
        ]
    }
    if len(rows.masks):
        plain["masks"] = _describe_masks(rows.masks)
    if len(rows.keypoints):
        plain["keypoints"] = [
            [label, round(score, 4), _describe_points(points)]
            for label, score, points in zip(
                rows.keypoints.classes.tolist(), rows.keypoints.scores.tolist(), rows.keypoints.points, strict=True
            )
        ]
    return plain


def _describe_masks(masks: MaskRows) -> list[list[Any]]:
    return [
        [label, round(score, 4), _outline(counts, masks.size_hw)]
        for label, score, counts in zip(masks.classes.tolist(), masks.scores.tolist(), masks.counts, strict=True)
    ]


def _outline(counts: bytes, size_hw: tuple[int, int]) -> str:
    """Returns the outline of a mask as an SVG path, holes included, within a pixel."""
    import cv2

    pixels = decode_rle(counts, *size_hw).astype(np.uint8)
    found, _ = cv2.findContours(pixels, cv2.RETR_CCOMP, cv2.CHAIN_APPROX_NONE)
    parts = []
    for contour in found:
        corners = cv2.approxPolyDP(contour, _OUTLINE_PX, True)[:, 0].tolist()
        if len(corners) > 2:
            parts.append("M" + "L".join(f"{x} {y}" for x, y in corners) + "Z")
    return "".join(parts)


def _describe_points(points: Float32) -> list[list[float]]:
    """Returns x, y and whether it is shown (1 or 0) of each keypoint of (4, J)."""
    return [
        [round(float(x), 1), round(float(y), 1), int(logit > KEYPOINT_THRESH)]
        for x, y, logit in zip(points[0], points[1], points[2], strict=True)
    ]


def describe_gallery(
    title: str, names: Sequence[str], class_names: Sequence[str], thresh: float, kind: str, pictures: Sequence[Plain]
) -> Plain:
    """Returns everything that the page shows; `names` are those of the runs, `class_names` in class order from 1."""
    return {
        "title": title,
        "kind": kind,
        "names": list(names),
        "classes": list(class_names),
        "thresh": thresh,
        "skeleton": [list(pair) for pair in SKELETON],
        "pictures": list(pictures),
    }
