"""What is unusual about a dataset and harms no run: gaps in ids, keys that are left out, boxes at odds with pixels, names of files.

The files are looked at as they are written, faults included, so that everything is told at once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from roiline.core.quantities import is_integer, is_number
from roiline.infer.roidb import Dataset, Findings

_OBJECT = re.compile(rb"<object>.*?</object>", re.DOTALL)
_CORNER = re.compile(rb"<[xy]min>\s*(-?[\d.]+)\s*</[xy]min>")
_OPTIONAL = {"iscrowd": "no crowd", "area": "width * height of its box"}


def list_traits(path: Path, dataset: Dataset | None) -> tuple[str, ...]:
    """Returns what is unusual, one line a kind with counts; `dataset` is None where it could not be loaded."""
    found = Findings()
    if path.is_dir():
        _note_voc(path, found)
    elif path.suffix.lower() == ".json":
        _note_coco(path, found)
    if dataset is not None:
        _note_names(dataset, found)
    return found.describe()


def _note_coco(path: Path, found: Findings) -> None:
    try:
        document = json.loads(path.read_bytes().decode("utf-8-sig"))
    except (OSError, ValueError, RecursionError):
        return  # what is wrong with the file is told by its reader
    if not isinstance(document, dict):
        return
    for key in ("annotations", "categories"):
        if key not in document:
            found.add(f"no `{key}` in the file: there is no ground truth to compare with", path.name)
    images, categories, annotations = (_rows(document, key) for key in ("images", "categories", "annotations"))
    _note_ids("image", [row.get("id") for row in images], found)
    _note_ids("category", [row.get("id") for row in categories], found)
    sizes = {row["id"]: _sides(row) for row in images if isinstance(row.get("id"), (int, str))}
    seen: set[Any] = set()
    for place, row in enumerate(annotations):
        _note_annotation(row, place, sizes, seen, found)


def _rows(document: dict[str, Any], key: str) -> list[dict[str, Any]]:
    rows = document.get(key)
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _note_ids(what: str, ids: Sequence[object], found: Findings) -> None:
    """Notes text where integers are usual, and integers that skip some."""
    for identity in ids:
        if isinstance(identity, str):
            found.add(f"{what} id that is text (results carry it as it is)", repr(identity))
    numbers = sorted({identity for identity in ids if is_integer(identity)})
    if numbers and (skipped := numbers[-1] - numbers[0] + 1 - len(numbers)):
        found.add(
            f"{what} ids with gaps (results carry these ids)",
            f"{len(numbers)} from {numbers[0]} to {numbers[-1]}, {skipped} between are not used",
        )


def _sides(row: dict[str, Any]) -> tuple[float, float] | None:
    width, height = row.get("width"), row.get("height")
    return (width, height) if is_number(width) and is_number(height) and min(width, height) > 0 else None


def _note_annotation(row: dict[str, Any], place: int, sizes: dict[Any, Any], seen: set[Any], found: Findings) -> None:
    for key, taken in _OPTIONAL.items():
        if key not in row:
            found.add(f"annotation without `{key}` ({taken} is taken)", f"annotations[{place}]")
    identity = row.get("id")
    if isinstance(identity, (int, str)):
        if identity in seen:
            found.add("annotation id that is used twice (no result depends on it)", identity)
        seen.add(identity)
    box, image_id = row.get("bbox"), row.get("image_id")
    sides = sizes.get(image_id) if isinstance(image_id, (int, str)) else None
    if not isinstance(box, list) or len(box) != 4 or not all(map(is_number, box)):
        return
    if min(box[2:]) <= 0:
        found.add("box without width or height", f"annotations[{place}]: {box}")
    elif sides is not None and (min(box[:2]) < 0 or box[0] + box[2] > sides[0] or box[1] + box[3] > sides[1]):
        beyond = box[0] + box[2] - sides[0], box[1] + box[3] - sides[1]
        hint = " by one pixel (does the file count from 1?)" if max(beyond) == 1 and min(box[:2]) >= 1 else ""
        found.add(f"box that reaches beyond its picture{hint}", f"annotations[{place}]")


def _note_voc(root: Path, found: Findings) -> None:
    for path in sorted((root / "Annotations").glob("*.xml")):
        for block in _OBJECT.findall(path.read_bytes()):
            if b"<difficult>" not in block:
                found.add("object without `difficult` (not difficult is taken)", path.name)
            if any(float(corner) < 1 for corner in _CORNER.findall(block) if _is_plain(corner)):
                found.add(
                    "object that begins before pixel 1, where VOC begins to count (does the file count from 0?)",
                    path.name,
                )


def _is_plain(number: bytes) -> bool:
    return number.count(b".") <= 1 and number.strip(b"-.") != b""


def _note_names(dataset: Dataset, found: Findings) -> None:
    """Notes names that tools beside this one may not take; here every name is as good as any other."""
    for entry in dataset.entries:
        name = (
            entry.path.relative_to(dataset.root).as_posix()
            if entry.path.is_relative_to(dataset.root)
            else str(entry.path)
        )
        for kind in _kinds_of_name(name):
            found.add(f"file name with {kind} (other tools may stumble over it)", name)


def _kinds_of_name(name: str) -> Iterable[str]:
    if any(letter.isspace() for letter in name):
        yield "spaces"
    if not name.isascii():
        yield "letters beyond ASCII"
