"""The ground truth of a dataset as COCO's evaluator wants it: records of numbers of ours for images and classes.

The ground truth of a COCO file is the file's own annotations, as COCO's evaluator reads them: not clipped, crowds as regions that
excuse detections. Other datasets have the boxes of their roidb.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from roiline.core.boxes import xywh_from_xyxy
from roiline.core.errors import DataError
from roiline.core.files import read_input
from roiline.core.quantities import is_integer, is_number
from roiline.core.rle import decompress_runs
from roiline.core.structures import RoidbEntry
from roiline.infer.result_rows import Part
from roiline.infer.roidb import Dataset

_LEAST_POLYGON = 6
"""Numbers of a triangle; polygons of fewer have no area."""

_LONGEST_OUTLINE = 1 << 22
"""How many pixels long a polygon's outline may be: the evaluator's memory grows with it, a hundred bytes and more for each."""


@dataclass(frozen=True, slots=True)
class GroundTruth:
    """Is the annotations of one dataset in evaluator records.

    `records` have the keys id (from 1), image_id (the entry's position from 1), category_id (`ranks` of its class), bbox, area, iscrowd,
    and, as far as the file has them, segmentation, keypoints and num_keypoints. `ranks` maps a contiguous class to the rank of its
    category id, from 1: COCO's evaluator goes (and sums) by ascending category id.
    """

    entries: tuple[RoidbEntry, ...]
    ranks: Mapping[int, int]
    records: tuple[Mapping[str, Any], ...]

    @property
    def masks(self) -> int:
        """Is the number of annotations that have a mask."""
        return sum("segmentation" in record for record in self.records)

    @property
    def joints(self) -> int | None:
        """Is the number of keypoints that annotations have; None: no annotation has any."""
        counts = {len(record["keypoints"]) // 3 for record in self.records if "keypoints" in record}
        return max(counts) if counts else None


def read_ground_truth(
    dataset: Dataset, entries: tuple[RoidbEntry, ...], *, parts: Collection[Part] = ()
) -> GroundTruth:
    """Reads the ground truth of some of a dataset's entries: boxes, and the parts that are asked for.

    Raises:
        DataError: the dataset has no categories, or its annotations cannot be read or used.
    """
    if not dataset.categories:
        raise DataError(
            f"dataset `{dataset.name}` has no ground truth (no categories): detections cannot be scored against it"
        )
    order = sorted(range(len(dataset.categories)), key=lambda index: dataset.categories[index].id)
    ranks = {index + 1: rank for rank, index in enumerate(order, start=1)}
    if dataset.annotation_file is None:
        records = _records_from_roidb(entries, ranks)
    else:
        records = _records_from_json(dataset.annotation_file, dataset, entries, ranks, parts)
    # ids start at 1, since 0 means `unmatched` to the evaluator
    return GroundTruth(
        entries, ranks, tuple({"id": number, **record} for number, record in enumerate(records, start=1))
    )


def _records_from_roidb(entries: Sequence[RoidbEntry], ranks: Mapping[int, int]) -> list[dict[str, Any]]:
    return [
        {"image_id": position, "category_id": ranks[label], "bbox": box, "area": area, "iscrowd": int(crowd)}
        for position, entry in enumerate(entries, start=1)
        for label, box, area, crowd in zip(
            entry.classes.tolist(),
            xywh_from_xyxy(entry.boxes).tolist(),
            entry.areas.tolist(),
            entry.crowd.tolist(),
            strict=True,
        )
    ]


def _records_from_json(
    path: Path,
    dataset: Dataset,
    entries: Sequence[RoidbEntry],
    ranks: Mapping[int, int],
    parts: Collection[Part],
) -> list[dict[str, Any]]:
    positions: dict[object, int] = {str(entry.image_id): position for position, entry in enumerate(entries, start=1)}
    positions |= {entry.image_id: position for position, entry in enumerate(entries, start=1)}
    labels = {category.id: ranks[label] for label, category in enumerate(dataset.categories, start=1)}
    records = []
    for number, annotation in enumerate(_read_annotations(path)):
        where = f"{path}: annotation {number}"
        position = _find_image(annotation, positions, where)
        if position is not None:
            record = _record_from_annotation(annotation, position, labels, where)
            if "masks" in parts and annotation.get("segmentation"):
                record["segmentation"] = _check_mask(annotation["segmentation"], entries[position - 1], where)
            if "keypoints" in parts and annotation.get("keypoints"):
                record |= _check_keypoints(annotation, where)
            records.append(record)
    return records


def _read_annotations(path: Path) -> list[dict[str, Any]]:
    try:
        content = json.loads(read_input(path))
    except (ValueError, RecursionError) as failure:
        raise DataError(f"{path}: the ground truth cannot be read: {failure}") from failure
    annotations = content.get("annotations", []) if isinstance(content, dict) else None
    if not isinstance(annotations, list) or not all(isinstance(item, dict) for item in annotations):
        raise DataError(f"{path}: expected a COCO file with a list of annotations")
    return annotations


def _find_image(annotation: Mapping[str, Any], positions: Mapping[object, int], where: str) -> int | None:
    """Returns the position of an annotation's image, whose id may be written as a number or as text; None: it is of another."""
    identity = annotation.get("image_id")
    if not isinstance(identity, (int, str)):
        raise DataError(f"{where}: expected an image_id that is an integer or text, got {identity!r:.60}")
    return positions.get(identity, positions.get(str(identity)))


def _record_from_annotation(
    annotation: Mapping[str, Any], position: int, labels: Mapping[int, int], where: str
) -> dict[str, Any]:
    box, category, crowd = (annotation.get(key) for key in ("bbox", "category_id", "iscrowd"))
    if not isinstance(box, list) or len(box) != 4 or not all(map(is_number, box)):
        raise DataError(f"{where}: expected a bbox of 4 numbers x, y, width, height, got {box!r:.60}")
    area = annotation.get("area", box[2] * box[3])
    if not is_number(area):
        raise DataError(f"{where}: expected a number as area, got {area!r:.60}")
    if not is_integer(category) or category not in labels:
        raise DataError(f"{where}: expected the category_id of a category of the dataset, got {category!r:.60}")
    if "iscrowd" in annotation and crowd not in (0, 1):
        raise DataError(f"{where}: expected iscrowd to be 0 or 1, got {crowd!r:.60}")
    return {
        "image_id": position,
        "category_id": labels[category],
        "bbox": [float(number) for number in box],
        "area": float(area),
        "iscrowd": int(crowd or 0),
    }


def _check_keypoints(annotation: Mapping[str, Any], where: str) -> dict[str, Any]:
    keypoints = annotation["keypoints"]
    if not isinstance(keypoints, list) or len(keypoints) % 3 or not all(map(is_number, keypoints)):
        raise DataError(f"{where}: expected keypoints to be numbers x, y, visibility of each")
    count = annotation.get("num_keypoints", sum(value > 0 for value in keypoints[2::3]))
    if not is_integer(count) or count < 0:
        raise DataError(f"{where}: expected num_keypoints to be a number of keypoints, got {count!r:.60}")
    return {"keypoints": keypoints, "num_keypoints": count}


def _check_mask(mask: object, entry: RoidbEntry, where: str) -> object:
    """Returns a mask that the evaluator can take: polygons, or run lengths of the picture's size."""
    if isinstance(mask, list):
        for polygon in mask:
            if not isinstance(polygon, list) or len(polygon) % 2 or not all(map(is_number, polygon)):
                raise DataError(f"{where}: expected polygons to be lists of numbers x, y, x, y, ..")
            _check_extent(polygon, entry, where)
        polygons = [polygon for polygon in mask if len(polygon) >= _LEAST_POLYGON]
        if not polygons:
            raise DataError(f"{where}: its polygons have fewer than three corners")
        return polygons
    if not isinstance(mask, dict) or mask.get("size") != [entry.height, entry.width]:
        got = mask.get("size") if isinstance(mask, dict) else type(mask).__name__
        raise DataError(
            f"{where}: expected a mask of {entry.height} x {entry.width} pixels (height x width), got {got}"
        )
    total = _sum_runs(mask.get("counts"), where)
    if total != entry.height * entry.width:
        raise DataError(
            f"{where}: the run lengths of its mask add up to {total}, expected {entry.height * entry.width}"
        )
    return mask


def _check_extent(polygon: list[float], entry: RoidbEntry, where: str) -> None:
    """Refuses a polygon that is far out of its picture, or so long that drawing it would fill the memory."""
    corners = np.array(polygon, np.float64).reshape(-1, 2)
    limit = np.array([entry.width, entry.height], np.float64)
    if (corners < -limit).any() or (corners > 2 * limit).any():
        raise DataError(
            f"{where}: expected a polygon within its picture of {entry.width} x {entry.height} pixels (width x height), "
            f"got corners from {corners.min(axis=0).tolist()} to {corners.max(axis=0).tolist()}"
        )
    outline = float(np.abs(np.diff(corners, axis=0, append=corners[:1])).max(axis=1).sum())
    if outline > _LONGEST_OUTLINE:
        raise DataError(
            f"{where}: the outline of its polygon is {outline:.0f} pixels long, expected at most {_LONGEST_OUTLINE}"
        )


def _sum_runs(counts: object, where: str) -> int:
    if isinstance(counts, list) and all(isinstance(run, int) and run >= 0 for run in counts):
        return sum(counts)
    if not isinstance(counts, str):
        raise DataError(f"{where}: expected run lengths in `counts`, a list or COCO's compressed text")
    try:
        return int(decompress_runs(counts).sum())
    except DataError as failure:
        raise DataError(f"{where}: {failure}") from failure
