"""The ground truth of pictures as rows that can be drawn beside results: boxes, and the masks and keypoints that a COCO file has."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from roiline.core.rle import compress_runs, encode_mask
from roiline.core.structures import Float32, RoidbEntry
from roiline.infer.result_rows import NO_KEYPOINTS, NO_MASKS, NO_ROWS, KeypointRows, MaskRows, Rows
from roiline.infer.roidb import Dataset
from roiline.report.ground_truth import read_ground_truth
from roiline.report.image_rows import CERTAIN


def read_truth_rows(dataset: Dataset, entries: tuple[RoidbEntry, ...]) -> list[Rows]:
    """Returns what is annotated in each entry, every score 1; nothing for a dataset without categories. Crowd regions are left out.

    Raises:
        DataError: the annotations cannot be read or used.
    """
    if not dataset.categories:
        return [NO_ROWS] * len(entries)
    truth = read_ground_truth(dataset, entries, parts=("masks", "keypoints"))
    labels = {rank: label for label, rank in truth.ranks.items()}
    by_image: dict[int, list[Mapping[str, Any]]] = defaultdict(list)
    for record in truth.records:
        if not record["iscrowd"]:
            by_image[record["image_id"]].append(record)
    return [_rows_of(by_image[position], entry, labels) for position, entry in enumerate(entries, start=1)]


def _rows_of(records: Sequence[Mapping[str, Any]], entry: RoidbEntry, labels: Mapping[int, int]) -> Rows:
    boxes = np.array([record["bbox"] for record in records], np.float32).reshape(-1, 4)
    boxes[:, 2:] += boxes[:, :2] - 1
    classes = np.array([labels[record["category_id"]] for record in records], np.int64)
    masked = [row for row, record in enumerate(records) if "segmentation" in record]
    posed = [row for row, record in enumerate(records) if record.get("num_keypoints")]
    masks, keypoints = NO_MASKS, NO_KEYPOINTS
    if masked:
        counts = tuple(_encode(records[row]["segmentation"], entry) for row in masked)
        masks = MaskRows(np.ones(len(masked), np.float32), classes[masked], counts, (entry.height, entry.width))
    if posed:
        points = np.stack([_points_of(records[row]["keypoints"]) for row in posed])
        keypoints = KeypointRows(np.ones(len(posed), np.float32), classes[posed], points)
    return Rows(boxes, np.ones(len(records), np.float32), classes, masks, keypoints)


def _encode(mask: Any, entry: RoidbEntry) -> bytes:
    """Returns polygons or run lengths as compressed run lengths; polygons are filled as a picture shows them, not as an evaluator does."""
    if isinstance(mask, Mapping):
        counts = mask["counts"]
        return compress_runs(np.array(counts, np.int64)) if isinstance(counts, list) else counts.encode("ascii")
    import cv2

    pixels = np.zeros((entry.height, entry.width), np.uint8)
    corners = [np.round(np.array(polygon, np.float64).reshape(-1, 2)).astype(np.int32) for polygon in mask]
    for polygon in corners:  # one by one: together, what they share would be left out
        cv2.fillPoly(pixels, [polygon], 1)
    return encode_mask(pixels)


def _points_of(flat: Sequence[float]) -> Float32:
    """Returns (4, J): x, y, a logit that says whether the keypoint is annotated, 1."""
    table = np.array(flat, np.float32).reshape(-1, 3)
    logits = np.where(table[:, 2] > 0, CERTAIN, -CERTAIN)
    points: Float32 = np.stack([table[:, 0], table[:, 1], logits, np.ones(len(table))]).astype(np.float32)
    return points
