"""Inspecting results: proposal files, detections in both formats, our own JSON files, and the OUT folder of a run."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence, Sized
from pathlib import Path
from typing import Any

import numpy as np

from roiline.checks.findings import Inspected, Inspection, failed, shorten_error
from roiline.core.errors import DataError, RoilineError
from roiline.infer.manifest import RUN_FILE, read_manifest
from roiline.infer.outputs import open_shards
from roiline.infer.proposal_files import proposal_file_from_pickle
from roiline.infer.status import read_status

_NAMED = 5


def inspect_proposals(content: object, path: Path) -> Inspected:
    """Says how many pictures and boxes a proposal file has, and what is wrong with it."""
    try:
        file = proposal_file_from_pickle(content, path)
    except DataError as error:
        return Inspected(failed(path, "proposals", error))
    counts = np.array([len(boxes) for boxes in file.boxes], np.int64)
    twice = [key for key, count in Counter(file.ids).items() if count > 1]
    problems = [f"{len(twice)} pictures are there more than once: {_shorten(twice)}"] if twice else []
    turned = [key for key, boxes in zip(file.ids, file.boxes, strict=True) if (boxes[:, 2:] < boxes[:, :2]).any()]
    if turned:
        problems.append(f"{len(turned)} pictures have boxes whose corners are the wrong way round: {_shorten(turned)}")
    unsorted = [key for key, scores in zip(file.ids, file.scores, strict=True) if (np.diff(scores) > 0).any()]
    notes = [f"{len(unsorted)} pictures are not in descending score order: {_shorten(unsorted)}"] if unsorted else []
    facts = {"pictures": len(file.ids), "rows": int(counts.sum()), **_describe_counts(counts)}
    return Inspected(Inspection(str(path), "proposals", facts, tuple(notes), tuple(problems)))


def inspect_detection_pickle(content: Mapping[str, Any], path: Path) -> Inspected:
    """Says what Detectron's nested lists hold: every class must cover the same pictures, with rows of five numbers."""
    boxes = content["all_boxes"]
    if not isinstance(boxes, list | tuple) or not all(isinstance(cells, list | tuple) for cells in boxes):
        fault = DataError("all_boxes is not a list of classes, each a list of pictures")
        return Inspected(failed(path, "detections", fault))
    pictures = [len(cells) for cells in boxes[1:]]
    problems = []
    if len(set(pictures)) > 1:
        problems.append(f"classes cover different numbers of pictures: {sorted(set(pictures))}")
    if boxes and any(map(_measure, boxes[0])):
        problems.append("class 0 is the background and must be empty; the classes seem to be shifted")
    rows, faults = _count_rows(boxes[1:])
    parts = [part for part, key in (("masks", "all_segms"), ("keypoints", "all_keyps")) if _has_rows(content.get(key))]
    facts = {
        "format": "detectron",
        "pictures": max(pictures, default=0),
        "classes": len(boxes) - 1 if boxes else 0,
        "rows": rows,
        "parts beside boxes": parts,
        "configuration inside": bool(content.get("cfg")),
    }
    return Inspected(Inspection(str(path), "detections", facts, problems=(*problems, *faults)))


def _count_rows(classes: Sequence[Sequence[Any]]) -> tuple[int, list[str]]:
    """Returns the rows of all cells, and what is wrong in them."""
    rows, faults = 0, []
    for label, cells in enumerate(classes, 1):
        for picture, cell in enumerate(cells):
            if not _measure(cell):
                continue
            table = _read_table(cell)
            rows += _measure(cell)
            if table.dtype.kind != "f" or table.ndim != 2 or table.shape[1] != 5:
                faults.append(
                    f"all_boxes[{label}][{picture}]: expected rows of five numbers, got {table.dtype} {table.shape}"
                )
            elif not np.isfinite(table).all():
                faults.append(f"all_boxes[{label}][{picture}]: holds NaN or infinite values")
    more = [f".. and {len(faults) - _NAMED} more"] if len(faults) > _NAMED else []
    return rows, [*faults[:_NAMED], *more]


def _read_table(cell: object) -> np.ndarray[Any, np.dtype[Any]]:
    """Returns a cell as an array; what is none becomes one of objects."""
    try:
        return np.asarray(cell)
    except ValueError:  # rows of different lengths
        return np.array([cell], object)


def _measure(cell: object) -> int:
    """Returns the length of a cell; a value that has none counts as one row."""
    return len(cell) if isinstance(cell, Sized) else 1


def _has_rows(nested: object) -> bool:
    if not isinstance(nested, list | tuple):
        return False
    return any(_measure(cell) for cells in nested[1:] if isinstance(cells, list | tuple) for cell in cells)


# --- JSON ------------------------------------------------------------------------------------------------------------


def inspect_result_list(records: Sequence[Any], path: Path) -> Inspected:
    """Says what a list in COCO's result format holds."""
    first = records[0] if records and isinstance(records[0], Mapping) else {}
    part = next((name for name in ("bbox", "segmentation", "keypoints") if name in first), "bbox")
    fields = ("image_id", "category_id", part, "score")
    faults = [(place, fault) for place, record in enumerate(records) if (fault := _check_record(record, fields))]
    problems = [f"item {place}: {fault}" for place, fault in faults[:_NAMED]]
    if len(faults) > _NAMED:
        problems.append(f".. and {len(faults) - _NAMED} more")
    usable = [record for record in records if isinstance(record, Mapping)]
    facts = {
        "format": "coco",
        "of": part,
        "rows": len(records),
        "pictures": len({str(record.get("image_id")) for record in usable}),
        "categories": len({str(record.get("category_id")) for record in usable}),
    }
    notes = () if records else ("it is an empty list: nothing was detected",)
    return Inspected(Inspection(str(path), "detections", facts, notes, tuple(problems)))


def _check_record(record: object, fields: Sequence[str]) -> str | None:
    if not isinstance(record, Mapping) or any(name not in record for name in fields):
        got = ", ".join(sorted(map(str, record))) if isinstance(record, Mapping) else type(record).__name__
        return f"expected {', '.join(fields)}, got {got}"
    if not _is_finite(record["score"]):
        return f"its score is {record['score']!r}"
    box = record.get("bbox")
    if "bbox" not in fields:
        return None
    if not isinstance(box, list) or len(box) != 4 or not all(map(_is_finite, box)):
        return f"its bbox is not four numbers: {box!r:.60}"
    return "its bbox has a negative side" if min(box[2:]) < 0 else None


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def inspect_own_json(content: Mapping[str, Any], path: Path) -> Inspected:
    """Says what a JSON object of ours is, by what it holds."""
    kinds = {"images": "classifications", "pairs": "tracks", "failed": "failed pictures", "lanes": "timings"}
    key = next((key for key in kinds if isinstance(content.get(key), list | Mapping)), None)
    facts: dict[str, Any] = {"format version": content["format_version"]}
    if key is None:
        facts["keys"] = sorted(map(str, content))
        return Inspected(Inspection(str(path), "JSON of ours", facts))
    facts["entries"] = len(content[key])
    return Inspected(Inspection(str(path), kinds[key], facts))


def read_json(path: Path) -> object:
    """Reads a JSON file.

    Raises:
        DataError: it is not whole, valid JSON.
    """
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not complete, valid JSON ({error}); the file may be cut off") from error


# --- runs ------------------------------------------------------------------------------------------------------------


def is_run(folder: Path) -> bool:
    """Returns whether a folder is the OUT folder of a run, or of one over several datasets."""
    return (folder / RUN_FILE).exists() or any(folder.glob(f"*/{RUN_FILE}"))


def inspect_run(folder: Path) -> Inspected:
    """Says what a run is and how far it is; shards are compared with their checksums."""
    facts: dict[str, Any] = {}
    notes: list[str] = []
    problems: list[str] = []
    try:
        for status in read_status(folder):
            manifest = read_manifest(status.out)
            if manifest is None:
                continue
            facts[status.dataset] = {
                "task": manifest.settings.task,
                "model": manifest.settings.model_sha256[:12],
                "pictures": status.images,
                "done": status.done,
                "failed": status.failed,
                "finished": status.finished,
            }
            if not status.finished:
                notes.append(f"{status.dataset}: not finished; run the same command again to go on")
            if status.failed:
                problems.append(f"{status.dataset}: {status.failed} pictures failed; failed.json names them and why")
            if status.finished and manifest.shard_sizes:
                open_shards(status.out, manifest)
    except RoilineError as error:
        problems.append(shorten_error(error, folder))
    return Inspected(Inspection(str(folder), "run", facts, tuple(notes), tuple(problems)))


# --- both ------------------------------------------------------------------------------------------------------------


def _describe_counts(counts: np.ndarray[Any, np.dtype[np.int64]]) -> dict[str, Any]:
    if not counts.size:
        return {}
    return {"rows of a picture": {"least": int(counts.min()), "mean": float(counts.mean()), "most": int(counts.max())}}


def _shorten(names: Sequence[object]) -> str:
    more = f", .. and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(map(str, names[:_NAMED])) + more
