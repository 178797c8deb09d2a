"""A few of a benchmark's pictures with their results, small enough to lie inside the page."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from roiline.core.errors import DataError
from roiline.core.spec import Task
from roiline.core.structures import Proposals, RoidbEntry
from roiline.infer.result_rows import Rows
from roiline.infer.roidb import Dataset
from roiline.report.benchmark.page import Thumbnail
from roiline.report.drawing import DrawingRules, draw_picture, read_entry
from roiline.report.image_rows import read_image_rows
from roiline.report.jpeg import encode_jpeg, shrink

MOST_PICTURES = 6
_LONG_SIDE = 560
_QUALITY = 80
_PROPOSALS = 30
_DETECTION_THRESH = 0.5


def draw_thumbnails(results: Path, dataset: Dataset, rules: DrawingRules) -> list[Thumbnail]:
    """Returns up to six pictures, evenly spread over the dataset; those that cannot be read are left out.

    Raises:
        DataError: the results cannot be read.
    """
    entries, per_image = read_image_rows(results, dataset)
    wanted = {index * len(entries) // MOST_PICTURES for index in range(MOST_PICTURES)}
    pairs = enumerate(zip(entries, per_image, strict=True))
    found = (_draw_one(*pair, rules) for index, pair in pairs if index in wanted)
    return [one for one in found if one is not None]


def _draw_one(entry: RoidbEntry, rows: Rows | Proposals, rules: DrawingRules) -> Thumbnail | None:
    try:
        drawn = draw_picture(read_entry(entry, rules.exif), rows, rules)
    except DataError:
        return None  # it failed in the run too, where it is counted
    small = shrink(drawn, _LONG_SIDE)
    height, width = small.shape[:2]
    return Thumbnail(encode_jpeg(small, where=entry.path, quality=_QUALITY), width, height, entry.path.name)


def thumbnail_rules(class_names: tuple[str, ...], *, task: Task, exif: Literal["apply", "ignore"]) -> DrawingRules:
    """Returns how the pictures are drawn: detections from a score of 0.5 on, of proposals the best."""
    thresh = _DETECTION_THRESH if task == "detections" else None
    return DrawingRules(thresh=thresh, top=_PROPOSALS, exif=exif, class_names=class_names)
