"""One picture with its results painted into it: detections as named boxes with masks and keypoints, proposals as boxes or as heat.

Lines and letters grow with the picture, and very small pictures are enlarged by a whole factor first, so that labels can be read on a
thumbnail and on a scan alike. A label never leaves the picture, and never covers another. Where a picture has masks, every object has a
colour of its own; else every class has.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from roiline.core.structures import Float32, Proposals, RoidbEntry, UInt8
from roiline.infer.picture_headers import ExifPolicy
from roiline.infer.pictures import decode_picture, read_bytes
from roiline.infer.result_rows import Rows
from roiline.report.heat import measure_heat, paint_heat
from roiline.report.labels import Color, Pen, choose_class_color, choose_instance_color, draw_label
from roiline.report.overlays import paint_keypoints, paint_masks
from roiline.report.panels import set_side_by_side

DETECTION_THRESH = 0.7
"""The lowest score of detections that are drawn when no threshold is given: what the original programs take."""

_LEAST_LONG_SIDE = 320
_HALO: Color = (24, 24, 24)


@dataclass(frozen=True, slots=True)
class DrawingRules:
    """Is what is drawn.

    Of detections those with a score of at least `thresh` (None: 0.7), of proposals the `top` best (that reach `thresh`, where
    it is given), with `heat` not as boxes but as a heat of their scores. `class_names` are in class order, `exif` says
    whether pictures are turned upright, as the run read them.
    """

    thresh: float | None = None
    top: int = 100
    heat: bool = False
    exif: ExifPolicy = "apply"
    class_names: tuple[str, ...] = ()

    def name_class(self, label: int) -> str:
        """Returns the name of a class, from 1."""
        return self.class_names[label - 1] if label <= len(self.class_names) else f"class_{label}"


def draw_picture(picture: UInt8, found: Rows | Proposals, rules: DrawingRules) -> UInt8:
    """Returns the BGR picture (H, W, 3), enlarged if it is very small, with its results on it; the given one is left as it is."""
    factor = max(1, math.ceil(_LEAST_LONG_SIDE / max(picture.shape[:2])))
    canvas = _enlarge(picture, factor)
    pen = Pen.for_size(*canvas.shape[:2])
    shown = choose_shown(found, rules)
    if isinstance(shown, Rows):
        _paint_rows(canvas, shown, rules, pen, factor, scored=True)
    elif len(shown.boxes):
        paint = _paint_heat if rules.heat else _draw_proposals
        paint(canvas, shown, pen, factor, total=len(found.boxes))
    return canvas


def draw_beside_truth(picture: UInt8, found: Rows | Proposals, truth: Rows, rules: DrawingRules) -> UInt8:
    """Returns two pictures under headings: the ground truth, and the results."""
    factor = max(1, math.ceil(_LEAST_LONG_SIDE / max(picture.shape[:2])))
    canvas = _enlarge(picture, factor)
    _paint_rows(canvas, truth, rules, Pen.for_size(*canvas.shape[:2]), factor, scored=False)
    what = "proposals" if isinstance(found, Proposals) else "found"
    headings = (f"ground truth: {len(truth.boxes)}", f"{what}: {len(choose_shown(found, rules).boxes)}")
    return set_side_by_side([(headings[0], canvas), (headings[1], draw_picture(picture, found, rules))])


def read_entry(entry: RoidbEntry, exif: ExifPolicy) -> UInt8:
    """Reads the picture the way round that the dataset's size means, which is the frame of its boxes.

    Raises:
        DataError: it cannot be read or decoded, or is of another size.
    """
    size_hw = (entry.height, entry.width) if entry.height > 0 and entry.width > 0 else None
    return decode_picture(read_bytes(entry.path), where=entry.path, exif=exif, size_hw=size_hw)


def choose_shown(found: Rows | Proposals, rules: DrawingRules) -> Rows | Proposals:
    """Returns what is to be drawn: of detections in their order, of proposals by descending score."""
    if isinstance(found, Proposals):
        best = np.argsort(-found.scores, kind="stable")[: rules.top]
        if rules.thresh is not None:
            best = best[found.scores[best] >= rules.thresh]
        return Proposals(found.image_id, found.boxes[best], found.scores[best])
    least = DETECTION_THRESH if rules.thresh is None else rules.thresh
    boxes, masks, keypoints = (np.flatnonzero(part.scores >= least) for part in (found, found.masks, found.keypoints))
    return found.take(boxes, masks, keypoints)


def has_rows(shown: Rows | Proposals) -> bool:
    """Says whether there is anything to draw."""
    if isinstance(shown, Proposals):
        return len(shown.boxes) > 0
    return len(shown.boxes) + len(shown.masks) + len(shown.keypoints) > 0


def _paint_rows(canvas: UInt8, shown: Rows, rules: DrawingRules, pen: Pen, factor: int, *, scored: bool) -> None:
    colors = _choose_colors(shown)
    mask_colors = [choose_instance_color(row) for row in range(len(shown.masks))]
    paint_masks(canvas, shown.masks, mask_colors, factor=factor, pen=pen)
    _draw_boxes(canvas, shown, colors, pen, factor)
    paint_keypoints(canvas, shown.keypoints, factor=factor, pen=pen)
    _draw_labels(canvas, shown, colors, rules, pen, factor, scored=scored)


def _choose_colors(shown: Rows) -> list[Color]:
    """Returns the colour of each box: that of its mask where boxes and masks are of the same objects, else that of its class."""
    masks = shown.masks
    same = len(masks) == len(shown.boxes) and np.array_equal(masks.classes, shown.classes)
    if len(masks) and same and np.array_equal(masks.scores, shown.scores):
        return [choose_instance_color(row) for row in range(len(masks))]
    return [choose_class_color(int(label)) for label in shown.classes]


def _draw_boxes(canvas: UInt8, shown: Rows, colors: Sequence[Color], pen: Pen, factor: int) -> None:
    """Draws the boxes, the largest first, each on a dark line that sets it off from any ground."""
    import cv2

    sides = shown.boxes[:, 2:] - shown.boxes[:, :2]
    for row in np.argsort(-sides.prod(axis=1), kind="stable"):
        left, top, right, bottom = _to_canvas(shown.boxes[row], canvas, factor)
        cv2.rectangle(canvas, (left, top), (right, bottom), _HALO, pen.line + 2 * pen.halo)
        cv2.rectangle(canvas, (left, top), (right, bottom), colors[row], pen.line)


def _draw_labels(
    canvas: UInt8, shown: Rows, colors: Sequence[Color], rules: DrawingRules, pen: Pen, factor: int, *, scored: bool
) -> None:
    """Writes names and scores, those of the best detections first, so that they have the best places."""
    placed: list[tuple[int, int, int, int]] = []
    for row in np.argsort(-shown.scores, kind="stable"):
        box = _to_canvas(shown.boxes[row], canvas, factor)
        value = f"{shown.scores[row]:.2f}" if scored else ""
        place = draw_label(canvas, box, rules.name_class(int(shown.classes[row])), value, colors[row], pen, placed)
        if place is not None:
            placed.append(place)


def _draw_proposals(canvas: UInt8, shown: Proposals, pen: Pen, factor: int, total: int) -> None:
    import cv2

    low, high = float(shown.scores.min()), float(shown.scores.max())
    shades = np.round(255 * (shown.scores - low) / max(high - low, 1e-12)).astype(np.uint8)
    colors = cv2.applyColorMap(shades[:, None], cv2.COLORMAP_TURBO)[:, 0].tolist()
    for row in reversed(range(len(shown.boxes))):
        left, top, right, bottom = _to_canvas(shown.boxes[row], canvas, factor)
        cv2.rectangle(canvas, (left, top), (right, bottom), colors[row], pen.thin)
    caption = f"{len(shown.boxes)} of {total} proposals, score {low:.2f} (blue) to {high:.2f} (red)"
    draw_label(canvas, (0, 0, 0, 0), caption, "", (32, 32, 32), pen, [])


def _paint_heat(canvas: UInt8, shown: Proposals, pen: Pen, factor: int, total: int) -> None:
    boxes = shown.boxes * np.float32(factor)
    boxes[:, 2:] += factor - 1
    caption = f"{len(shown.boxes)} of {total} proposals, score / size"
    paint_heat(canvas, measure_heat(boxes, shown.scores, *canvas.shape[:2]), pen, caption)


def _to_canvas(box: Float32, canvas: UInt8, factor: int) -> tuple[int, int, int, int]:
    """Returns a box of the picture as whole pixels of its enlarged form, moved into it; corners are the boxes' outer pixels."""
    height, width = canvas.shape[:2]
    corners = box.astype(np.float64) * factor
    corners[2:] += factor - 1
    left, top, right, bottom = (
        np.clip(np.round(corners), 0, (width - 1, height - 1, width - 1, height - 1)).astype(int).tolist()
    )
    return left, top, right, bottom


def _enlarge(picture: UInt8, factor: int) -> UInt8:
    import cv2

    if factor == 1:
        return picture.copy()
    enlarged: UInt8 = cv2.resize(picture, None, fx=factor, fy=factor, interpolation=cv2.INTER_CUBIC)
    return enlarged
