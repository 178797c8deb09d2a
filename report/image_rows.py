"""Results picture by picture: boxes, masks and keypoints of each entry, from a run's shards or from result files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from roiline.core.errors import DataError
from roiline.core.structures import Float32, Int64, Proposals, RoidbEntry
from roiline.infer.manifest import SHARDS_FOLDER, Manifest
from roiline.infer.merge import MergedResults
from roiline.infer.outputs import open_shards
from roiline.infer.result_rows import NO_ROWS, KeypointRows, MaskRows, Rows
from roiline.infer.roidb import Dataset
from roiline.report.result_columns import DetectionResults, KeypointResults, MaskResults, ProposalResults, ScoredResults
from roiline.report.results import find_run, read_results

CERTAIN = float("inf")
"""The logit of keypoints whose file does not say it."""


def read_image_rows(path: Path, dataset: Dataset) -> tuple[tuple[RoidbEntry, ...], Iterator[Rows | Proposals]]:
    """Returns the entries that results cover and, in their order, the rows of each: detections, else proposals.

    Of the OUT folder of a finished run the shards are read: COCO's lists do not have the logits of keypoints.

    Raises:
        DataError: there are no results, they are damaged or of another dataset.
    """
    found = find_run(path, dataset.name) if path.is_dir() else None
    if found is not None and _has_shards(*found):
        folder, manifest = found
        results = MergedResults([(0, open_shards(folder, manifest))], images=manifest.images)
        return dataset.entries, _rows_of_run(results, np.array(manifest.class_order, np.int64), dataset, path)
    files = read_results(path, dataset)
    first = files[0]
    if isinstance(first, ProposalResults):
        return first.entries, iter(first.proposals)
    return first.entries, iter(split_by_image([part for part in files if not isinstance(part, ProposalResults)]))


def _has_shards(folder: Path, manifest: Manifest) -> bool:
    """Whether an OUT folder has all shards of detections; a joined one has none."""
    finished = manifest.finished and manifest.settings.task == "detections" and bool(manifest.shard_sizes)
    return finished and (folder / SHARDS_FOLDER).is_dir()


def _rows_of_run(results: MergedResults, order: Int64, dataset: Dataset, path: Path) -> Iterator[Rows]:
    if results.image_ids != [entry.image_id for entry in dataset.entries]:
        raise DataError(f"{path}: this run was over other pictures than those of dataset `{dataset.name}`")
    for rows in results:
        masks = replace(rows.masks, classes=order[rows.masks.classes])
        keypoints = replace(rows.keypoints, classes=order[rows.keypoints.classes])
        yield replace(rows, classes=order[rows.classes], masks=masks, keypoints=keypoints)


def split_by_image(parts: Sequence[ScoredResults]) -> list[Rows]:
    """Returns the rows of each entry, in entry order; boxes become inclusive corners."""
    every = [NO_ROWS] * len(parts[0].entries)
    for part in parts:
        order = np.argsort(part.images, kind="stable")
        bounds = np.searchsorted(part.images[order], np.arange(len(every) + 1)).tolist()
        for image, (start, end) in enumerate(pairwise(bounds)):
            if end > start:
                every[image] = _add_part(every[image], part, order[start:end])
    return every


def _add_part(rows: Rows, part: ScoredResults, chosen: Int64) -> Rows:
    """Returns the rows of a picture with its rows `chosen` of a part."""
    classes, scores = part.classes[chosen], part.scores[chosen].astype(np.float32)
    if isinstance(part, DetectionResults):
        corners = part.boxes_xywh[chosen]
        corners[:, 2:] += corners[:, :2] - 1
        return replace(rows, boxes=corners.astype(np.float32), scores=scores, classes=classes)
    if isinstance(part, MaskResults):
        height, width = part.sizes_hw[chosen[0]].tolist()
        counts = tuple(part.counts[row] for row in chosen)
        return replace(rows, masks=MaskRows(scores, classes, counts, (height, width)))
    if part.box_scores is not None:
        scores = part.box_scores[chosen].astype(np.float32)
    return replace(rows, keypoints=KeypointRows(scores, classes, _points_of(part, chosen)))


def _points_of(part: KeypointResults, chosen: Int64) -> Float32:
    """Returns (n, 4, J): x, y, logit, and 1 for the probability, which no drawing needs."""
    places = part.points[chosen]
    others = np.ones_like(places)
    others[:, 0] = CERTAIN if part.logits is None else part.logits[chosen]
    points: Float32 = np.concatenate([places, others], axis=1).astype(np.float32)
    return points
