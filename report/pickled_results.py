"""Detectron's pickled detections: nested lists [class][image] of boxes, masks and keypoints."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from roiline.core.errors import DataError
from roiline.core.quantities import are_numbers, array_from_numbers
from roiline.core.structures import Float32, Float64, Int64, RoidbEntry
from roiline.core.yamls import load_yaml
from roiline.infer.roidb import Dataset
from roiline.ops.keypoint_decode import KEYPOINT_CONFIDENCES, KeypointConfidence, score_keypoints
from roiline.report.result_columns import DetectionResults, KeypointResults, MaskResults, ScoredResults, read_masks

_LOGIT = 2


@dataclass(frozen=True, slots=True)
class _Frame:
    """Is what all parts of a file share: where it is, the entries it covers, and of which dataset."""

    path: Path
    entries: tuple[RoidbEntry, ...]
    dataset: Dataset


@dataclass(frozen=True, slots=True)
class _Places:
    """Is where each row of a part is: `images` and `classes` (D,), and the `row` in its cell (D,)."""

    images: Int64
    classes: Int64
    rows: Int64


def read_pickled_results(
    content: Mapping[str, Any], path: Path, entries: tuple[RoidbEntry, ...], dataset: Dataset
) -> tuple[ScoredResults, ...]:
    """Returns the boxes of a detection pickle, and its masks and keypoints if it has any.

    Raises:
        DataError: it is damaged, or of another dataset.
    """
    frame = _Frame(path, entries, dataset)
    boxes = _read_boxes(content["all_boxes"], frame)
    masks = _read_masks(content.get("all_segms"), boxes, frame)
    keypoints = _read_keypoints(content.get("all_keyps"), content.get("cfg"), boxes, frame)
    return tuple(part for part in (boxes, masks, keypoints) if part is not None)


def _read_boxes(all_boxes: object, frame: _Frame) -> DetectionResults:
    places, cells = _read_cells(all_boxes, "all_boxes", frame, _box_rows)
    table = np.concatenate([np.zeros((0, 5), np.float32), *cells])
    sized = table[:, :4].astype(np.float64)  # widths are taken in double precision, as the original writes them
    sized[:, 2:] = sized[:, 2:] - sized[:, :2] + 1
    scores = table[:, 4].astype(np.float64)
    return DetectionResults(frame.path, frame.entries, places.images, places.classes, sized, scores)


def _read_masks(all_segms: object, boxes: DetectionResults, frame: _Frame) -> MaskResults | None:
    if not _has_rows(all_segms):
        return None
    places, cells = _read_cells(all_segms, "all_segms", frame, _list_rows)
    rows = [row for cell in cells for row in cell]
    named = [
        f"{frame.path}: all_segms[{label}][{image}][{row}]"
        for label, image, row in zip(
            *(column.tolist() for column in (places.classes, places.images, places.rows)), strict=True
        )
    ]
    masks = read_masks(rows, places.images.tolist(), frame.entries, named)
    return MaskResults(
        frame.path,
        frame.entries,
        places.images,
        places.classes,
        _scores_of_rows(boxes, places, "all_segms", frame),
        masks.counts,
        masks.sizes_hw,
        masks.areas,
    )


def _read_keypoints(
    all_keyps: object, config: object, boxes: DetectionResults, frame: _Frame
) -> KeypointResults | None:
    if not _has_rows(all_keyps):
        return None
    confidence = _read_confidence(config, frame.path)
    places, cells = _read_cells(all_keyps, "all_keyps", frame, _list_rows)
    rows = [row for cell in cells for row in cell]
    try:
        table = array_from_numbers(rows, np.float32)
    except ValueError as failure:
        raise DataError(
            f"{frame.path}: all_keyps: expected (4, J) numbers for every detection ({failure})"
        ) from failure
    if table.ndim != 3 or table.shape[1] != 4 or not are_numbers(table):
        raise DataError(
            f"{frame.path}: all_keyps: expected (4, J) finite numbers x, y, logit, probability, got shape {table.shape[1:]}"
        )
    box_scores = _scores_of_rows(boxes, places, "all_keyps", frame)
    wide = table.astype(np.float64)
    return KeypointResults(
        frame.path,
        frame.entries,
        places.images,
        places.classes,
        box_scores if confidence == "bbox" else score_keypoints(table, box_scores.astype(np.float32), confidence),
        wide[:, :2],
        wide[:, _LOGIT],
        box_scores,
    )


def _has_rows(nested: object) -> bool:
    """Whether there is a row in nested lists [class][image]; what is of another form counts as one, so that it is looked at."""
    if not isinstance(nested, (list, tuple)):
        return nested is not None
    return any(not isinstance(cells, (list, tuple)) or any(_length(cell) for cell in cells) for cells in nested)


def _length(cell: object) -> int:
    return len(cell) if isinstance(cell, (list, tuple, np.ndarray)) else 1


def _read_cells(
    nested: object, name: str, frame: _Frame, read: Callable[[object, str], Sequence[Any] | Float32]
) -> tuple[_Places, list[Any]]:
    """Returns the cells of all classes but the background, class by class, and where their rows are."""
    cells: list[Any] = []
    places: list[tuple[int, int, int]] = []
    for label, image, cell in _walk(nested, name, frame):
        rows = read(cell, f"{frame.path}: {name}[{label}][{image}]")
        cells.append(rows)
        places += ((image, label, row) for row in range(len(rows)))
    images, classes, rows_ = np.array(places, np.int64).reshape(-1, 3).T
    return _Places(images, classes, rows_), cells


def _walk(nested: object, name: str, frame: _Frame) -> Iterator[tuple[int, int, object]]:
    """Goes through (class, image, cell) of nested lists after checking that they are those of the dataset."""
    path, dataset, images = frame.path, frame.dataset, len(frame.entries)
    if not isinstance(nested, (list, tuple)) or not all(isinstance(cells, (list, tuple)) for cells in nested):
        raise DataError(f"{path}: expected {name} to be a list of classes, each a list of pictures")
    background, *classes = nested or [()]
    if any(_length(cell) for cell in background):
        raise DataError(f"{path}: {name}[0] is the background and must be empty; the classes seem to be shifted")
    known = len(dataset.categories)
    if known and len(classes) != known:
        raise DataError(
            f"{path}: holds {len(classes)} classes, but dataset `{dataset.name}` has {known}: another dataset's results"
        )
    for label, cells in enumerate(classes, start=1):
        if len(cells) != images:
            raise DataError(
                f"{path}: {name}[{label}] covers {len(cells)} pictures, but {images} of dataset `{dataset.name}` were expected; "
                "give the dataset, --range and --limit of the run"
            )
        for image, cell in enumerate(cells):
            yield label, image, cell


def _box_rows(cell: object, where: str) -> Float32:
    try:
        rows = array_from_numbers(cell, np.float32)
    except ValueError as failure:
        raise DataError(f"{where}: expected (n, 5) numbers, got {type(cell).__name__}") from failure
    if rows.size == 0:
        return np.zeros((0, 5), np.float32)
    if rows.ndim != 2 or rows.shape[1] != 5 or not are_numbers(rows):
        raise DataError(f"{where}: expected (n, 5) finite numbers x1, y1, x2, y2, score, got shape {rows.shape}")
    return rows


def _list_rows(cell: object, where: str) -> Sequence[Any]:
    if not isinstance(cell, (list, tuple)):
        raise DataError(f"{where}: expected a list, got {type(cell).__name__}")
    return cell


def _scores_of_rows(boxes: DetectionResults, places: _Places, name: str, frame: _Frame) -> Float64:
    """Returns for each row of a part the score of the box that is in the same cell at the same place.

    Raises:
        DataError: a cell has rows without boxes.
    """
    images = len(frame.entries)
    keys = boxes.classes * images + boxes.images  # ascending: cells were read class by class
    first = np.searchsorted(keys, places.classes * images + places.images)
    count = np.searchsorted(keys, places.classes * images + places.images, side="right") - first
    short = np.flatnonzero(places.rows >= count)
    if short.size:
        label, image = places.classes[short[0]], places.images[short[0]]
        raise DataError(
            f"{frame.path}: {name}[{label}][{image}] has more rows than all_boxes[{label}][{image}]: they have no scores; "
            "read the result lists in COCO's format instead"
        )
    scores: Float64 = boxes.scores[first + places.rows]
    return scores


def _read_confidence(config: object, path: Path) -> KeypointConfidence:
    """Returns KRCNN.KEYPOINT_CONFIDENCE of the configuration text in a file; the box's score where it does not say."""
    if not isinstance(config, str):
        return "bbox"
    tree = load_yaml(config, source=f"{path}: cfg")
    section = tree.get("KRCNN") if isinstance(tree, dict) else None
    value = section.get("KEYPOINT_CONFIDENCE", "bbox") if isinstance(section, dict) else "bbox"
    known = next((one for one in KEYPOINT_CONFIDENCES if one == value), None)
    if known is None:
        raise DataError(
            f"{path}: cfg: KRCNN.KEYPOINT_CONFIDENCE is one of {', '.join(KEYPOINT_CONFIDENCES)}, got {value!r}"
        )
    return known
