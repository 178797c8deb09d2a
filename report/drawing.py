"""Pictures of results: detections as named boxes with masks and keypoints, proposals as thin boxes coloured by score, ground truth dashed.

Lines and letters grow with the picture, and very small pictures are enlarged by a whole factor first, so that labels can be read on a
thumbnail and on a scan alike. A label never leaves the picture and moves aside for labels already there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from roiline.core.errors import DataError, UsageError
from roiline.core.files import make_folder, write_durable
from roiline.core.structures import Float32, ImageId, Proposals, RoidbEntry, UInt8
from roiline.infer.picture_headers import ExifPolicy
from roiline.infer.pictures import decode_picture, read_bytes
from roiline.infer.result_rows import KeypointRows, MaskRows, Rows
from roiline.infer.roidb import Dataset
from roiline.report.image_rows import read_image_rows
from roiline.report.labels import Pen, choose_class_color, draw_label
from roiline.report.overlays import paint_keypoints, paint_masks
from roiline.report.results import dataset_of_run

DETECTION_THRESH = 0.7
"""The lowest score of detections that are drawn when no threshold is given: what the original programs take."""

JPEG_QUALITY = 92
_LEAST_LONG_SIDE = 320


@dataclass(frozen=True, slots=True)
class DrawingRules:
    """Is what is drawn.

    Of detections those with a score of at least `thresh` (None: 0.7), of proposals the `top` best (that reach `thresh`, where
    it is given); with `ground_truth` the dataset's boxes too, dashed. `class_names` are in class order, `exif` says
    whether pictures are turned upright, as the run read them.
    """

    thresh: float | None = None
    top: int = 100
    ground_truth: bool = False
    exif: ExifPolicy = "apply"
    class_names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Drawing:
    """Is what was drawn: the `files`, in dataset order, and the pictures that could not be read or written, with the reason."""

    files: tuple[Path, ...]
    failed: tuple[tuple[ImageId, str], ...]


def draw_results(
    results_path: Path,
    dataset: Dataset,
    out_dir: Path,
    *,
    thresh: float | None = None,
    top: int = 100,
    ground_truth: bool = False,
    exif: ExifPolicy = "apply",
    class_names: tuple[str, ...] = (),
) -> Drawing:
    """Draws the results of a run or a result file, one `<stem>.jpg` in `out_dir` for each picture that has something to show.

    With `ground_truth` that is every picture that has any, results or not.

    Pictures of equal stems get `<stem>_2.jpg` and so on, in dataset order. Where a folder has detections and proposals, its
    detections are drawn. `class_names` serve datasets without categories; see `DrawingRules` for the other options.

    Raises:
        UsageError: `out_dir` is the dataset's own folder of pictures, which would be overwritten.
        DataError: there are no results, they are damaged or of another dataset, or no picture at all could be read and written.
    """
    if out_dir.resolve() in {folder.resolve() for folder in {entry.path.parent for entry in dataset.entries}}:
        raise UsageError(
            f"{out_dir}: is where the dataset's own pictures are; choose another folder for the drawn ones"
        )
    names = tuple(category.name for category in dataset.categories) or class_names
    rules = DrawingRules(thresh, top, ground_truth, exif, names)
    dataset = dataset_of_run(results_path, dataset)
    entries, per_image = read_image_rows(results_path, dataset)
    stems = dict(zip((entry.image_id for entry in dataset.entries), choose_stems(dataset.entries), strict=True))
    make_folder(out_dir)
    files: list[Path] = []
    failed: list[tuple[ImageId, str]] = []
    for entry, found in zip(entries, per_image, strict=True):
        truth = rules.ground_truth and len(entry.boxes) > 0
        if not truth and not _has_rows(_choose_shown(found, rules)):
            continue
        try:
            drawn = draw_picture(_read_entry(entry, rules), found, entry, rules)
            files.append(_write_jpeg(out_dir / f"{stems[entry.image_id]}.jpg", drawn))
        except (DataError, OSError) as failure:
            failed.append((entry.image_id, str(failure)))
    if failed and not files:
        raise DataError(f"none of the {len(failed)} pictures to draw could be drawn; the first: {failed[0][1]}")
    return Drawing(tuple(files), tuple(failed))


def draw_picture(picture: UInt8, found: Rows | Proposals, entry: RoidbEntry, rules: DrawingRules) -> UInt8:
    """Returns the BGR picture (H, W, 3), enlarged if it is very small, with its results on it; the given one is left as it is."""
    factor = max(1, math.ceil(_LEAST_LONG_SIDE / max(picture.shape[:2])))
    canvas = _enlarge(picture, factor)
    pen = Pen.for_size(*canvas.shape[:2])
    if rules.ground_truth:
        for box in entry.boxes:
            _draw_dashed_box(canvas, _to_canvas(box, canvas, factor), pen)
    shown = _choose_shown(found, rules)
    if isinstance(shown, Rows):
        paint_masks(canvas, shown.masks, factor=factor, pen=pen)
        _draw_boxes(canvas, shown, pen, factor)
        paint_keypoints(canvas, shown.keypoints, factor=factor, pen=pen)
        _draw_labels(canvas, shown, rules.class_names, pen, factor)
    elif len(shown.boxes):
        _draw_proposals(canvas, shown, pen, factor, total=len(found.boxes))
    return canvas


def choose_stems(entries: Sequence[RoidbEntry]) -> list[str]:
    """Returns a file stem for each entry, the picture's own where it is the first of that name (upper and lower case alike)."""
    own = {entry.path.stem.lower() for entry in entries}
    taken: set[str] = set()
    following: dict[str, int] = {}
    stems = []
    for entry in entries:
        stem = entry.path.stem
        name, number = stem, following.get(stem.lower(), 2)
        while name.lower() in taken or (name != stem and name.lower() in own):
            name, number = f"{stem}_{number}", number + 1
        following[stem.lower()] = number
        taken.add(name.lower())
        stems.append(name)
    return stems


def _read_entry(entry: RoidbEntry, rules: DrawingRules) -> UInt8:
    """Reads the picture the way round that the dataset's size means, which is the frame of its boxes."""
    size_hw = (entry.height, entry.width) if entry.height > 0 and entry.width > 0 else None
    return decode_picture(read_bytes(entry.path), where=entry.path, exif=rules.exif, size_hw=size_hw)


def _choose_shown(found: Rows | Proposals, rules: DrawingRules) -> Rows | Proposals:
    """Returns what is to be drawn: of detections in their order, of proposals by descending score."""
    if isinstance(found, Proposals):
        best = np.argsort(-found.scores, kind="stable")[: rules.top]
        if rules.thresh is not None:
            best = best[found.scores[best] >= rules.thresh]
        return Proposals(found.image_id, found.boxes[best], found.scores[best])
    least = DETECTION_THRESH if rules.thresh is None else rules.thresh
    boxes, masks, keypoints = (np.flatnonzero(part.scores >= least) for part in (found, found.masks, found.keypoints))
    return Rows(
        found.boxes[boxes],
        found.scores[boxes],
        found.classes[boxes],
        MaskRows(
            found.masks.scores[masks],
            found.masks.classes[masks],
            tuple(found.masks.counts[row] for row in masks),
            found.masks.size_hw,
        ),
        KeypointRows(
            found.keypoints.scores[keypoints], found.keypoints.classes[keypoints], found.keypoints.points[keypoints]
        ),
    )


def _has_rows(shown: Rows | Proposals) -> bool:
    if isinstance(shown, Proposals):
        return len(shown.boxes) > 0
    return len(shown.boxes) + len(shown.masks) + len(shown.keypoints) > 0


def _draw_boxes(canvas: UInt8, shown: Rows, pen: Pen, factor: int) -> None:
    """Draws the boxes, the largest first."""
    import cv2

    sides = shown.boxes[:, 2:] - shown.boxes[:, :2]
    for row in np.argsort(-sides.prod(axis=1), kind="stable"):
        left, top, right, bottom = _to_canvas(shown.boxes[row], canvas, factor)
        color = choose_class_color(int(shown.classes[row]))
        cv2.rectangle(canvas, (left, top), (right, bottom), color, pen.line)


def _draw_labels(canvas: UInt8, shown: Rows, class_names: Sequence[str], pen: Pen, factor: int) -> None:
    """Writes names and scores, those of the best detections first, so that they have the best places."""
    placed: list[tuple[int, int, int, int]] = []
    for row in np.argsort(-shown.scores, kind="stable"):
        label = int(shown.classes[row])
        name = class_names[label - 1] if label <= len(class_names) else f"class_{label}"
        box = _to_canvas(shown.boxes[row], canvas, factor)
        place = draw_label(canvas, box, name, f"{shown.scores[row]:.2f}", choose_class_color(label), pen, placed)
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


def _draw_dashed_box(canvas: UInt8, box: tuple[int, int, int, int], pen: Pen) -> None:
    """Draws white dashes on a black box, which shows on any ground."""
    import cv2

    left, top, right, bottom = box
    cv2.rectangle(canvas, (left, top), (right, bottom), (0, 0, 0), pen.line)
    for start, end in _dashes(left, right, pen.dash):
        for y in (top, bottom):
            cv2.line(canvas, (start, y), (end, y), (255, 255, 255), pen.line)
    for start, end in _dashes(top, bottom, pen.dash):
        for x in (left, right):
            cv2.line(canvas, (x, start), (x, end), (255, 255, 255), pen.line)


def _dashes(low: int, high: int, length: int) -> Iterator[tuple[int, int]]:
    return ((start, min(start + length, high)) for start in range(low, high + 1, 2 * length))


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


def _write_jpeg(path: Path, picture: UInt8) -> Path:
    import cv2

    try:
        fits, content = cv2.imencode(".jpg", picture, [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY])
    except cv2.error as failure:
        raise DataError(
            f"{path}: a picture of {picture.shape[1]} x {picture.shape[0]} pixels cannot be a JPEG"
        ) from failure
    if not fits:
        raise DataError(f"{path}: a picture of {picture.shape[1]} x {picture.shape[0]} pixels cannot be a JPEG")
    write_durable(path, content.tobytes())
    return path
