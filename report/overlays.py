"""Masks and keypoints painted into a picture: masks as tinted areas with an edge, persons' keypoints as skeletons."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from roiline.core.errors import DataError
from roiline.core.rle import decode_rle, measure_area
from roiline.core.structures import Bool, Float32, UInt8
from roiline.infer.result_rows import KeypointRows, MaskRows
from roiline.report.labels import Color, Pen

MASK_ALPHA = 0.5
MASK_WHITE = 0.4
KEYPOINT_ALPHA = 0.7
KEYPOINT_THRESH = 2.0
"""The logit above which a keypoint is drawn: what the original programs take."""

SKELETON = (
    (1, 2),  # eyes
    (1, 0),  # left eye, nose
    (2, 0),
    (2, 4),  # right eye, right ear
    (1, 3),
    (6, 8),  # right shoulder, elbow, wrist
    (8, 10),
    (5, 7),
    (7, 9),
    (12, 14),  # right hip, knee, ankle
    (14, 16),
    (11, 13),
    (13, 15),
    (6, 5),  # shoulders
    (12, 11),  # hips
)
"""Pairs of COCO's 17 keypoints of a person that are joined."""

_PERSON_JOINTS = 17
_NOSE, _SHOULDERS, _HIPS = 0, (5, 6), (11, 12)
_LOGIT = 2


def paint_masks(canvas: UInt8, masks: MaskRows, colors: Sequence[Color], *, factor: int, pen: Pen) -> None:
    """Tints the pixels of each mask with its colour, whitened, and draws a white edge, the largest mask first.

    `factor` is how many times the canvas is larger than the picture that the masks are of.

    Raises:
        DataError: masks and picture are of different sizes.
    """
    import cv2

    height, width = masks.size_hw
    if len(masks) and (height * factor, width * factor) != canvas.shape[:2]:
        got = f"{canvas.shape[0] // factor} x {canvas.shape[1] // factor}"
        raise DataError(f"masks are of a picture of {height} x {width} pixels, the picture has {got} (height x width)")
    areas = [measure_area(counts) for counts in masks.counts]
    for row in np.argsort(-np.array(areas, np.int64), kind="stable").tolist():
        mask = decode_rle(masks.counts[row], height, width)
        if factor > 1:
            mask = mask.repeat(factor, axis=0).repeat(factor, axis=1)
        _tint(canvas, mask, _whiten(colors[row]))
        edges, _ = cv2.findContours(mask.astype(np.uint8), cv2.RETR_CCOMP, cv2.CHAIN_APPROX_NONE)
        cv2.drawContours(canvas, edges, -1, (255, 255, 255), pen.thin, cv2.LINE_AA)


def _whiten(color: Color) -> Color:
    """Returns a colour mixed with white, as the original whitens those of masks."""
    blue, green, red = (round((1 - MASK_WHITE) * part + MASK_WHITE * 255) for part in color)
    return blue, green, red


def _tint(canvas: UInt8, mask: Bool, color: Color) -> None:
    """Blends a colour into the pixels of a mask."""
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    if not len(rows):
        return
    box = np.s_[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    inside = mask[box]
    part = canvas[box]
    part[inside] = np.round((1 - MASK_ALPHA) * part[inside] + MASK_ALPHA * np.array(color)).astype(np.uint8)


def paint_keypoints(canvas: UInt8, keypoints: KeypointRows, *, factor: int, pen: Pen) -> None:
    """Draws the keypoints whose logit is above the threshold, and the skeleton where there are 17: COCO's of a person."""
    import cv2

    overlay = canvas.copy()
    for points in keypoints.points:
        places = _to_canvas(points[:2], canvas, factor)
        shown = points[_LOGIT] > KEYPOINT_THRESH
        colors = _rainbow(len(shown))
        if len(shown) == _PERSON_JOINTS:
            _draw_skeleton(overlay, places, shown, pen)
        for joint in np.flatnonzero(shown).tolist():
            cv2.circle(overlay, places(joint), pen.line + 1, colors[joint], cv2.FILLED, cv2.LINE_AA)
    cv2.addWeighted(overlay, KEYPOINT_ALPHA, canvas, 1 - KEYPOINT_ALPHA, 0, dst=canvas)


def _draw_skeleton(overlay: UInt8, places: Callable[..., tuple[int, int]], shown: Bool, pen: Pen) -> None:
    """Draws the lines between keypoints, and those from the middle of the shoulders to the nose and to the middle of the hips."""
    import cv2

    lines: list[tuple[tuple[int, ...], tuple[int, ...]]] = [((first,), (second,)) for first, second in SKELETON]
    lines += [(_SHOULDERS, (_NOSE,)), (_SHOULDERS, _HIPS)]
    colors = _rainbow(len(lines))
    for (first, second), color in zip(lines, colors, strict=True):
        if shown[[*first, *second]].all():
            cv2.line(overlay, places(*first), places(*second), color, pen.line, cv2.LINE_AA)


def _to_canvas(points: Float32, canvas: UInt8, factor: int) -> Callable[..., tuple[int, int]]:
    """Returns the function from joints to the pixel of the canvas in their middle; `points` (2, J) are x, y of the picture."""
    limit = np.array([[canvas.shape[1] - 1], [canvas.shape[0] - 1]])
    inside = np.clip(points.astype(np.float64) * factor, 0, limit)

    def place(*joints: int) -> tuple[int, int]:
        x, y = np.round(inside[:, joints].mean(axis=1)).astype(int).tolist()
        return x, y

    return place


def _rainbow(count: int) -> list[Color]:
    import cv2

    shades = np.linspace(0, 255, max(count, 1)).astype(np.uint8)
    colors: list[Color] = [
        tuple(color) for color in cv2.applyColorMap(shades[:, None], cv2.COLORMAP_RAINBOW)[:, 0].tolist()
    ]
    return colors
