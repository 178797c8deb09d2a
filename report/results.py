"""Result files read back: an OUT folder or a bare file becomes detections or proposals, entry by entry of a dataset.

What a file is is told by its content, never by its name: a COCO result list (JSON), Detectron's class-major `all_boxes` (pickle), or
a proposal file (pickle). The one name that counts is that of a range file (`.._range_START_END.pkl`): such files say nowhere
else which pictures they cover, positions START to END in ascending id order.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np

from roiline.core.errors import DataError
from roiline.core.pickles import read_pickle
from roiline.core.structures import Detections, Float64, ImageId, Int64, Proposals, RoidbEntry
from roiline.infer.proposal_files import is_proposal_content, match_entries, proposal_file_from_pickle
from roiline.infer.roidb import Dataset

_DETECTION_NAMES = ("bbox_results.json", "detections.pkl", "detection_range_*.pkl")
_PROPOSAL_NAMES = ("rpn_proposals.pkl", "rpn_proposals_range_*.pkl")
_RANGE = re.compile(r"_range_(\d+)_(\d+)\.pkl$")
_NAMED = 5


@dataclass(frozen=True, slots=True)
class DetectionResults:
    """Is all detections of a result file, as columns in the file's order.

    `images` (D,) are positions in `entries`, `classes` (D,) are contiguous from 1, `boxes_xywh` (D, 4) are COCO's x, y, width, height in
    original pixels (inclusive corners: width = x2 - x1 + 1), `scores` (D,). All as precise as the file has them.
    """

    path: Path
    entries: tuple[RoidbEntry, ...]
    images: Int64
    classes: Int64
    boxes_xywh: Float64
    scores: Float64


@dataclass(frozen=True, slots=True)
class ProposalResults:
    """Is a proposal file's content, one `Proposals` for each of `entries`, as the file has it (neither clipped nor thinned)."""

    path: Path
    entries: tuple[RoidbEntry, ...]
    proposals: tuple[Proposals, ...]


Results: TypeAlias = DetectionResults | ProposalResults


def read_results(path: Path, dataset: Dataset) -> tuple[Results, ...]:
    """Reads the results that `path` has for a dataset: of a folder its detections and its proposals, of a file what it holds.

    Raises:
        DataError: there are no results, a file is damaged or of another kind, or it belongs to another dataset.
    """
    return tuple(read_result_file(file, dataset) for file in find_result_files(path, dataset.name))


def find_result_files(path: Path, dataset_name: str) -> tuple[Path, ...]:
    """Returns the result files of a folder, detections first; of a folder with a sub-folder named after the dataset, those in there.

    Detections written in two formats are the same detections: the COCO list is taken.

    Raises:
        DataError: the path does not exist, the folder has no results, or several range files that nobody merged.
    """
    if path.is_file():
        return (path,)
    if not path.is_dir():
        raise DataError(f"{path}: no such file or folder; expected a result file or the OUT folder of a run")
    for folder in (path / dataset_name, path):
        found = [
            file for names in (_DETECTION_NAMES, _PROPOSAL_NAMES) if (file := _first_match(folder, names)) is not None
        ]
        if found:
            return tuple(found)
    names = ", ".join((*_DETECTION_NAMES[:2], *_PROPOSAL_NAMES[:1]))
    raise DataError(
        f"{path}: no results in this folder, nor in a sub-folder `{dataset_name}`; expected one of {names}. "
        "`roiline status` tells whether the run has finished"
    )


def read_result_file(path: Path, dataset: Dataset) -> Results:
    """Reads one result file, recognised by its content.

    Raises:
        DataError: the file is damaged, not a result file, or belongs to another dataset.
    """
    head = _read_head(path)
    if head[:1] in (b"[", b"{"):
        return _detections_from_coco(_read_json(path), path, dataset)
    content = read_pickle(path, error=DataError)
    entries = _covered_entries(path, dataset)
    if is_proposal_content(content):
        return _proposals_from_pickle(content, path, entries)
    if isinstance(content, Mapping) and "all_boxes" in content:
        return _detections_from_pickle(content["all_boxes"], path, entries, dataset)
    keys = ", ".join(sorted(map(str, content))[:8]) if isinstance(content, Mapping) else type(content).__name__
    raise DataError(
        f"{path}: expected a pickle with all_boxes (detections) or boxes, scores and ids (proposals), got {keys}"
    )


def split_by_image(results: DetectionResults) -> tuple[Detections, ...]:
    """Returns the detections of each entry, in entry order; boxes become inclusive corners."""
    order = np.argsort(results.images, kind="stable")
    bounds = np.searchsorted(results.images[order], np.arange(len(results.entries) + 1))
    corners = results.boxes_xywh.copy()
    corners[:, 2:] += corners[:, :2] - 1
    boxes, scores = corners.astype(np.float32), results.scores.astype(np.float32)
    return tuple(
        Detections(entry.image_id, boxes[rows], scores[rows], results.classes[rows])
        for entry, rows in zip(results.entries, np.split(order, bounds[1:-1]), strict=True)
    )


def _first_match(folder: Path, patterns: Sequence[str]) -> Path | None:
    for pattern in patterns:
        files = sorted(folder.glob(pattern))
        if len(files) > 1:
            names = ", ".join(file.name for file in files[:_NAMED])
            raise DataError(
                f"{folder}: holds {len(files)} range files ({names}); join them with `roiline merge`, or name one"
            )
        if files:
            return files[0]
    return None


def _read_head(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            head = file.read(256)
    except OSError as failure:
        raise DataError(f"{path}: cannot be read: {failure.strerror}") from failure
    if not head:
        raise DataError(f"{path}: the file is empty")
    return head.removeprefix(b"\xef\xbb\xbf").lstrip()


def _read_json(path: Path) -> object:
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as failure:
        raise DataError(f"{path}: not complete, valid JSON ({failure}); the file may be truncated") from failure


def _covered_entries(path: Path, dataset: Dataset) -> tuple[RoidbEntry, ...]:
    """Returns the entries that a file covers: all of the dataset's, or those of the range in the file's name."""
    matched = _RANGE.search(path.name)
    if matched is None:
        return dataset.entries
    start, end = int(matched[1]), int(matched[2])
    low, high = dataset.id_range
    if not low <= start < end <= high:
        raise DataError(
            f"{path}: its name says pictures {start} to {end} in ascending id order, but of dataset `{dataset.name}` "
            f"pictures {low} to {high} were loaded"
        )
    return dataset.entries[start - low : end - low]


def _proposals_from_pickle(content: object, path: Path, entries: tuple[RoidbEntry, ...]) -> ProposalResults:
    file = proposal_file_from_pickle(content, path)
    positions = match_entries(file.ids, entries, path)
    return ProposalResults(
        path, entries, tuple(Proposals(file.ids[at], file.boxes[at], file.scores[at]) for at in positions)
    )


def _detections_from_pickle(
    all_boxes: object, path: Path, entries: tuple[RoidbEntry, ...], dataset: Dataset
) -> DetectionResults:
    classes = _class_lists(all_boxes, path, len(entries), dataset)
    images: list[Int64] = []
    labels: list[Int64] = []
    rows: list[np.ndarray] = []
    for label, cells in enumerate(classes, start=1):
        for position, cell in enumerate(cells):
            found = _detection_rows(cell, f"{path}: all_boxes[{label}][{position}]")
            images.append(np.full(len(found), position, np.int64))
            labels.append(np.full(len(found), label, np.int64))
            rows.append(found)
    table = np.concatenate(rows) if rows else np.zeros((0, 5), np.float32)
    positions = np.concatenate(images) if images else np.zeros(0, np.int64)
    kinds = np.concatenate(labels) if labels else np.zeros(0, np.int64)
    sized = table[:, :4].astype(np.float64)  # widths are taken in double precision, as the original writes them
    sized[:, 2:] = sized[:, 2:] - sized[:, :2] + 1
    return DetectionResults(path, entries, positions, kinds, sized, table[:, 4].astype(np.float64))


def _class_lists(all_boxes: object, path: Path, images: int, dataset: Dataset) -> Sequence[Sequence[object]]:
    if not isinstance(all_boxes, (list, tuple)) or not all(isinstance(cells, (list, tuple)) for cells in all_boxes):
        raise DataError(f"{path}: expected all_boxes to be a list of classes, each a list of pictures")
    background, *classes = all_boxes or [()]
    if any(len(cell) for cell in background):
        raise DataError(f"{path}: all_boxes[0] is the background and must be empty; the classes seem to be shifted")
    known = len(dataset.categories)
    if known and len(classes) != known:
        raise DataError(
            f"{path}: holds {len(classes)} classes, but dataset `{dataset.name}` has {known}: another dataset's results"
        )
    for label, cells in enumerate(classes, start=1):
        if len(cells) != images:
            raise DataError(
                f"{path}: all_boxes[{label}] covers {len(cells)} pictures, but {images} of dataset `{dataset.name}` were expected; "
                "give the dataset, --range and --limit of the run"
            )
    return classes


def _detection_rows(cell: object, where: str) -> np.ndarray:
    try:
        rows = np.asarray(cell, np.float32)
    except (TypeError, ValueError) as failure:
        raise DataError(f"{where}: expected (n, 5) numbers, got {type(cell).__name__}") from failure
    if rows.size == 0:
        return np.zeros((0, 5), np.float32)
    if rows.ndim != 2 or rows.shape[1] != 5 or not np.isfinite(rows).all():
        raise DataError(f"{where}: expected (n, 5) finite numbers x1, y1, x2, y2, score, got shape {rows.shape}")
    return rows


def _detections_from_coco(records: object, path: Path, dataset: Dataset) -> DetectionResults:
    fields = ("image_id", "category_id", "bbox", "score")
    if not isinstance(records, list):
        keys = ", ".join(sorted(map(str, records))[:8]) if isinstance(records, dict) else type(records).__name__
        raise DataError(f"{path}: expected a list of detections, got a JSON object of {keys}; this is no result file")
    for position, record in enumerate(records):
        missing = [name for name in fields if not isinstance(record, dict) or name not in record]
        if missing:
            got = ", ".join(sorted(record)) if isinstance(record, dict) else type(record).__name__
            raise DataError(
                f"{path}: item {position}: expected {', '.join(fields)}, got {got}; boxes are evaluated and drawn"
            )
    positions = {entry.image_id: position for position, entry in enumerate(dataset.entries)}
    images = _look_up([record["image_id"] for record in records], positions, path, "image_id", dataset.name)
    classes = _look_up(
        [record["category_id"] for record in records], _class_ids(dataset, records), path, "category_id", dataset.name
    )
    boxes = _number_table([record["bbox"] for record in records], (len(records), 4), path, "bbox")
    scores = _number_table([record["score"] for record in records], (len(records),), path, "score")
    return DetectionResults(path, dataset.entries, images, classes, boxes, scores)


def _class_ids(dataset: Dataset, records: Sequence[Mapping[str, object]]) -> dict[ImageId, int]:
    """Returns category id -> contiguous class; a dataset without categories has classes for ids, as the run that wrote them had."""
    if dataset.categories:
        return {category.id: label for label, category in enumerate(dataset.categories, start=1)}
    ids = {record["category_id"] for record in records if isinstance(record["category_id"], int)}
    return {key: key for key in ids if key > 0}


def _look_up(keys: Sequence[object], known: Mapping[ImageId, int], path: Path, field: str, dataset: str) -> Int64:
    usable = [key if isinstance(key, (int, str)) and not isinstance(key, bool) else None for key in keys]
    found = [known.get(key) if key is not None else None for key in usable]
    strange = list(dict.fromkeys(repr(key) for key, value in zip(keys, found, strict=True) if value is None))
    if strange:
        expected = ", ".join(repr(key) for key in list(known)[:_NAMED]) + (", .." if len(known) > _NAMED else "")
        raise DataError(
            f"{path}: {len(strange)} {field}s are not in dataset `{dataset}`: {', '.join(strange[:_NAMED])}"
            f"{', ..' if len(strange) > _NAMED else ''}; it has {expected or 'none'}. Another dataset's results?"
        )
    return np.array(found, np.int64)


def _number_table(values: Sequence[object], shape: tuple[int, ...], path: Path, field: str) -> Float64:
    if not values:
        return np.zeros(shape, np.float64)
    try:
        table = np.array(values, np.float64)
    except (TypeError, ValueError) as failure:
        raise DataError(f"{path}: expected numbers in every `{field}`, got something else ({failure})") from failure
    if table.shape != shape or not np.isfinite(table).all():
        raise DataError(
            f"{path}: expected {shape[1:] or 'one'} finite numbers in every `{field}`, got shape {table.shape[1:]}"
        )
    return table
