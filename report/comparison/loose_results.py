"""The boxes of results without their dataset: a run's own shards, a COCO list, a proposal file, or Detectron's `all_boxes`.

Without a dataset a picture is known by the id that the file has for it; `all_boxes` has none, its pictures are known by their place.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from roiline.core.errors import DataError
from roiline.core.files import read_input
from roiline.core.pickles import read_pickle
from roiline.core.quantities import are_numbers, array_from_numbers, is_integer
from roiline.core.structures import Float32, ImageId, Int64
from roiline.infer.manifest import SHARDS_FOLDER, Manifest, read_manifest
from roiline.infer.merge import MergedResults
from roiline.infer.outputs import open_shards
from roiline.infer.proposal_files import is_proposal_content, proposal_file_from_pickle
from roiline.report.comparison.boxes import BoxesByImage, LooseBoxes
from roiline.report.results import find_result_files


def read_loose_results(path: Path) -> BoxesByImage:
    """Reads the boxes of an OUT folder (its shards, else its result file) or of a result file.

    Raises:
        DataError: there are no results with boxes, or they are damaged.
    """
    if path.is_dir():
        manifest = read_manifest(path)
        if manifest is not None and manifest.finished and manifest.shard_sizes and (path / SHARDS_FOLDER).is_dir():
            results = MergedResults([(0, open_shards(path, manifest))], images=manifest.images)
            ids = _category_ids(manifest)
            rows = zip(results.image_ids, results, strict=True)
            return {image: _loose(one.boxes, one.scores, ids[one.classes]) for image, one in rows}
        return read_loose_results(find_result_files(path, path.name)[0])
    content = read_input(path)
    if content.lstrip()[:1] in (b"[", b"{"):
        return _read_coco(content, path)
    pickled = read_pickle(path, error=DataError)
    if is_proposal_content(pickled):
        file = proposal_file_from_pickle(pickled, path)
        return {
            image: _loose(boxes, scores) for image, boxes, scores in zip(file.ids, file.boxes, file.scores, strict=True)
        }
    if isinstance(pickled, Mapping) and "all_boxes" in pickled:
        return _read_all_boxes(pickled["all_boxes"], path)
    raise DataError(f"{path}: expected boxes to compare: a COCO list of `bbox`, a proposal file or `all_boxes`")


def _category_ids(manifest: Manifest) -> Int64:
    """Returns the category id of each class of the model, 0 for those that the dataset has not; lists have these for classes."""
    ids = (0, *(one.category_id for one in manifest.classes))
    return np.array([ids[place] for place in manifest.class_order] or [0], np.int64)


def _loose(boxes: Any, scores: Any, classes: Any = None) -> LooseBoxes:
    table = np.asarray(boxes, np.float32).reshape(-1, 4)
    kinds = np.zeros(len(table), np.int64) if classes is None or len(classes) != len(table) else classes
    return LooseBoxes(table, np.asarray(scores, np.float32), np.asarray(kinds, np.int64))


def _read_coco(content: bytes, path: Path) -> BoxesByImage:
    try:
        records = json.loads(content)
    except (ValueError, RecursionError) as failure:
        raise DataError(f"{path}: not complete, valid JSON ({failure})") from failure
    fields = ("image_id", "category_id", "bbox", "score")
    if not isinstance(records, list) or any(
        not isinstance(one, dict) or any(name not in one for name in fields) for one in records
    ):
        raise DataError(f"{path}: expected a list of detections, each with {', '.join(fields)}")
    by_image: dict[ImageId, list[Mapping[str, Any]]] = defaultdict(list)
    for record in records:
        image = record["image_id"]
        if not isinstance(image, str) and not is_integer(image):
            raise DataError(f"{path}: expected image ids that are integers or text, got {image!r:.80}")
        by_image[image].append(record)
    return {image: _loose_from_records(found, path) for image, found in by_image.items()}


def _read_integer(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{value!r:.80} is no category id")
    return value


def _loose_from_records(records: Sequence[Mapping[str, Any]], path: Path) -> LooseBoxes:
    try:
        boxes = array_from_numbers([one["bbox"] for one in records], np.float32).reshape(len(records), 4)
        scores = array_from_numbers([one["score"] for one in records], np.float32)
        classes = np.array([_read_integer(one["category_id"]) for one in records], np.int64)
    except (ValueError, OverflowError) as failure:
        raise DataError(
            f"{path}: image {records[0]['image_id']!r}: expected four numbers in `bbox`, one in `score` and `category_id` ({failure})"
        ) from failure
    if not (are_numbers(boxes) and are_numbers(scores)):
        raise DataError(f"{path}: image {records[0]['image_id']!r}: expected finite numbers in `bbox` and `score`")
    boxes[:, 2:] += boxes[:, :2] - 1
    return LooseBoxes(boxes, scores, classes)


def _read_all_boxes(all_boxes: object, path: Path) -> BoxesByImage:
    """Reads class-major lists of (R, 5) rows x1, y1, x2, y2, score; a picture's id is its place."""
    if not isinstance(all_boxes, list) or not all(isinstance(of_class, list) for of_class in all_boxes):
        raise DataError(f"{path}: expected `all_boxes` as a list of classes, each a list of pictures")
    parts: dict[ImageId, list[tuple[int, Any]]] = defaultdict(list)
    for label, of_class in enumerate(all_boxes):
        for place, cell in enumerate(of_class):
            parts[place].append((label, _read_rows(cell, f"{path}: all_boxes[{label}][{place}]")))
    return {place: _join_classes(found) for place, found in parts.items()}


def _read_rows(cell: object, where: str) -> Float32:
    try:
        rows = array_from_numbers(cell, np.float32)
    except ValueError as failure:
        raise DataError(f"{where}: expected rows of 5 numbers ({failure})") from failure
    if rows.size and (rows.ndim != 2 or rows.shape[1] != 5 or not are_numbers(rows)):
        raise DataError(f"{where}: expected rows of 5 finite numbers, got shape {rows.shape}")
    return rows.reshape(-1, 5)


def _join_classes(parts: Sequence[tuple[int, Any]]) -> LooseBoxes:
    rows = np.concatenate([found for _, found in parts])
    classes = np.concatenate([np.full(len(found), label, np.int64) for label, found in parts])
    return LooseBoxes(rows[:, :4], rows[:, 4], classes)
