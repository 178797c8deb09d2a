"""Result lists in COCO's format: boxes, masks or keypoints, which the records themselves say."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from roiline.core.errors import DataError
from roiline.core.files import read_input
from roiline.core.quantities import are_numbers, array_from_numbers, is_integer
from roiline.core.structures import Float64, ImageId, Int64
from roiline.infer.roidb import Dataset
from roiline.report.result_columns import DetectionResults, KeypointResults, MaskResults, ScoredResults, read_masks

Kind: TypeAlias = Literal["bbox", "segmentation", "keypoints"]

_NAMED = 5
_NAMES: tuple[tuple[str, Kind], ...] = (("segmentations", "segmentation"), ("keypoints", "keypoints"))
"""How file names begin that say what an empty list is of."""


def read_coco_results(path: Path, dataset: Dataset) -> ScoredResults:
    """Reads a list of detections, masks or keypoints.

    Masks are told by `segmentation` without `bbox`, keypoints by `keypoints` without both; an empty list by its file's name.

    Raises:
        DataError: the file is damaged, not such a list, or of another dataset.
    """
    try:
        records = json.loads(read_input(path))
    except (ValueError, RecursionError) as failure:
        raise DataError(f"{path}: not complete, valid JSON ({failure}); the file may be truncated") from failure
    if not isinstance(records, list):
        keys = ", ".join(sorted(map(str, records))[:8]) if isinstance(records, dict) else type(records).__name__
        raise DataError(f"{path}: expected a list of detections, got a JSON object of {keys}; this is no result file")
    kind = _choose_kind(records, path)
    _check_fields(records, kind, path)
    positions = {entry.image_id: position for position, entry in enumerate(dataset.entries)}
    images = _look_up([record["image_id"] for record in records], positions, path, "image_id", dataset.name)
    classes = _look_up(
        [record["category_id"] for record in records], _class_ids(dataset, records), path, "category_id", dataset.name
    )
    scores = _number_table([record["score"] for record in records], (len(records),), path, "score")
    values = [record[kind] for record in records]
    if kind == "segmentation":
        places = [f"{path}: item {position}" for position in range(len(records))]
        masks = read_masks(values, images.tolist(), dataset.entries, places)
        return MaskResults(path, dataset.entries, images, classes, scores, masks.counts, masks.sizes_hw, masks.areas)
    if kind == "keypoints":
        return KeypointResults(path, dataset.entries, images, classes, scores, _read_points(values, path))
    boxes = _number_table(values, (len(records), 4), path, "bbox")
    return DetectionResults(path, dataset.entries, images, classes, boxes, scores)


def _choose_kind(records: Sequence[object], path: Path) -> Kind:
    if not records:
        return next((kind for start, kind in _NAMES if path.name.startswith(start)), "bbox")
    first = records[0] if isinstance(records[0], dict) else {}
    kinds: tuple[Kind, ...] = ("bbox", "segmentation", "keypoints")
    return next((kind for kind in kinds if kind in first), "bbox")


def _check_fields(records: Sequence[object], kind: Kind, path: Path) -> None:
    fields = ("image_id", "category_id", kind, "score")
    for position, record in enumerate(records):
        if not isinstance(record, dict) or any(name not in record for name in fields):
            got = ", ".join(sorted(record)) if isinstance(record, dict) else type(record).__name__
            raise DataError(f"{path}: item {position}: expected {', '.join(fields)}, got {got}")


def _read_points(values: Sequence[object], path: Path) -> Float64:
    """Returns the x, y rows (D, 2, J) of flat lists x, y, v."""
    lengths = {len(value) if isinstance(value, list) else -1 for value in values} or {0}
    (length,) = lengths if len(lengths) == 1 else (-1,)
    if length < 0 or length % 3:
        raise DataError(f"{path}: expected x, y, v of the same number of keypoints in every `keypoints`")
    table = _number_table(values, (len(values), length), path, "keypoints")
    return table.reshape(len(values), length // 3, 3)[:, :, :2].transpose(0, 2, 1)


def _class_ids(dataset: Dataset, records: Sequence[Mapping[str, Any]]) -> dict[ImageId, int]:
    """Returns category id -> contiguous class; a dataset without categories has classes for ids, as the run that wrote them had."""
    if dataset.categories:
        return {category.id: label for label, category in enumerate(dataset.categories, start=1)}
    ids = {record["category_id"] for record in records if is_integer(record["category_id"])}
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
        table = array_from_numbers(values, np.float64)
    except ValueError as failure:
        raise DataError(f"{path}: expected numbers in every `{field}`, got something else ({failure})") from failure
    if table.shape != shape or not are_numbers(table):
        raise DataError(
            f"{path}: expected {shape[1:] or 'one'} finite numbers in every `{field}`, got shape {table.shape[1:]}"
        )
    return table
