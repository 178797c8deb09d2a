"""COCO annotation files: pictures, categories and cleaned ground truth.

Everything that is wrong with a file is collected and told at once; what does no harm to a run (a size taken from the picture, an
annotation of a picture that is not listed) is noted and goes on. The cleaning of ground truth is Detectron's `JsonDataset`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from roiline.core.errors import DataError
from roiline.core.files import read_input
from roiline.core.quantities import is_integer, is_number
from roiline.core.structures import ImageId, RoidbEntry
from roiline.infer.picture_headers import ExifPolicy
from roiline.infer.pictures import describe_bytes
from roiline.infer.roidb import (
    Category,
    Findings,
    Listing,
    entry_from_ground_truth,
    read_unstated_size,
    shorten,
    side_from_stated,
)

Row: TypeAlias = dict[str, Any]


def read_coco(path: Path, *, images: Path | None, exif: ExifPolicy, need_pictures: bool = True) -> Listing:
    """Reads a COCO json; `images` is the folder of its pictures (None: beside the file, or in `images` beside it).

    Without `need_pictures` neither has to have any.

    Raises:
        DataError: the file is not a COCO json, or it has faults that a run cannot go on with (all of them are listed).
    """
    document = _read_document(path)
    faults, notes = Findings(), Findings()
    categories = _read_categories(document, faults)
    rows = _read_rows(document, "images", faults)
    _check_images(rows, faults)
    annotations = _read_rows(document, "annotations", faults)
    by_image = _group_annotations(annotations, rows, {category.id for category in categories}, faults, notes)
    if faults:
        raise DataError(f"{path}: the dataset cannot be used:\n  " + "\n  ".join(faults.describe()))
    root = images if images is not None else _find_root(path, rows, need_pictures=need_pictures)
    if need_pictures and not root.is_dir():
        raise DataError(f"{path}: the image folder {root} does not exist; say where the pictures are with --images")
    contiguous = {category.id: index for index, category in enumerate(categories, start=1)}
    entries = []
    for row in rows:
        image = RoidbEntry(row["id"], root / row["file_name"], *_image_size(row, root, exif, notes))
        entries.append(_add_ground_truth(image, by_image.get(row["id"], []), contiguous, notes))
    return Listing(path.stem, "coco", root, categories, tuple(entries), notes.describe(), path)


def _read_document(path: Path) -> Row:
    data = read_input(path)
    if not data.strip():
        raise DataError(f"{path}: the file is empty")
    try:
        document = json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: expected a COCO json, the file is {describe_bytes(data)} ({error})") from error
    if isinstance(document, list):
        hint = " (a result file is not a dataset)" if document and isinstance(document[0], dict) else ""
        raise DataError(f"{path}: expected a COCO json object with `images`, the file holds a list{hint}")
    if not isinstance(document, dict):
        raise DataError(f"{path}: expected a COCO json object with `images`, the file holds {document!r:.60}")
    if not isinstance(document.get("images"), list) or not document["images"]:
        keys = shorten(map(repr, document), limit=8) or "none"
        state = "empty" if document.get("images") == [] else "missing or not a list"
        raise DataError(f"{path}: expected a COCO json with pictures under `images`; it is {state} (keys: {keys})")
    return document


def _read_rows(document: Row, key: str, faults: Findings) -> list[Row]:
    rows = document.get(key)
    if rows is None:
        return []
    if not isinstance(rows, list):
        faults.add(f"`{key}` is not a list", type(rows).__name__)
        return []
    for index, row in enumerate(rows):
        if not isinstance(row, dict):
            faults.add(f"entry of `{key}` that is not an object", f"{key}[{index}]")
    return [row for row in rows if isinstance(row, dict)]


def _read_categories(document: Row, faults: Findings) -> tuple[Category, ...]:
    categories = []
    seen: set[int] = set()
    for index, row in enumerate(_read_rows(document, "categories", faults)):
        identity, name = row.get("id"), row.get("name")
        if not is_integer(identity):
            faults.add("category whose `id` is not an integer", f"categories[{index}]: {identity!r:.40}")
        elif not isinstance(name, str) or not name:
            faults.add("category without a `name`", f"id {identity}")
        elif not _is_unicode(name):
            faults.add("category whose `name` has halves of characters", f"id {identity}: {name!r:.40}")
        elif identity in seen:
            faults.add("category id that is used twice", identity)
        else:
            seen.add(identity)
            categories.append(Category(identity, name))
    return tuple(categories)


def _check_images(rows: list[Row], faults: Findings) -> None:
    seen: set[ImageId] = set()
    kinds: dict[type, ImageId] = {}
    for index, row in enumerate(rows):
        identity, name = row.get("id"), row.get("file_name")
        if not is_integer(identity) and not (isinstance(identity, str) and _is_unicode(identity)):
            faults.add("image whose `id` is neither an integer nor text", f"images[{index}]: {identity!r:.40}")
        elif identity in seen:
            faults.add("image id that is used twice", repr(identity))
        else:
            seen.add(identity)
            kinds.setdefault(type(identity), identity)
        if not isinstance(name, str) or not name or "\0" in name:
            faults.add("image without a `file_name`", f"images[{index}]")
        elif not _is_file_name(name):
            faults.add("image whose `file_name` no file can have", f"images[{index}]: {name!r:.40}")
    if len(kinds) > 1:
        faults.add("image ids are integers and text in one file", " and ".join(map(repr, kinds.values())))


def _group_annotations(
    annotations: list[Row], images: list[Row], category_ids: set[int], faults: Findings, notes: Findings
) -> dict[ImageId, list[Row]]:
    """Returns the usable annotations by image id, in the order of the file, their ids in the types of `images` and `categories`."""
    image_ids = {row["id"]: row["id"] for row in images if isinstance(row.get("id"), (int, str))}
    as_text = {str(identity): identity for identity in image_ids}
    by_image: dict[ImageId, list[Row]] = {}
    for index, row in enumerate(annotations):
        place = f"annotations[{index}]"
        identity = row.get("image_id")
        if not isinstance(identity, (int, str)):
            faults.add("annotation whose `image_id` is neither an integer nor text", place)
            continue
        if identity not in image_ids:
            if str(identity) not in as_text:
                notes.add("annotation of an image that is not listed (left out)", f"{place}: image_id {identity!r}")
                continue
            notes.add(
                "annotation whose image_id is written in another type than the image's (read as the image's)", place
            )
            identity = as_text[str(identity)]
        if _check_annotation(row, place, category_ids, faults):
            by_image.setdefault(identity, []).append(row)
    return by_image


def _check_annotation(row: Row, place: str, category_ids: set[int], faults: Findings) -> bool:
    category, box = row.get("category_id"), row.get("bbox")
    if not is_integer(category):
        faults.add("annotation whose `category_id` is not an integer", f"{place}: {category!r:.40}")
    elif category not in category_ids:
        faults.add("annotation of a category that is not listed", f"{place}: category_id {category}")
    elif not isinstance(box, list) or len(box) != 4 or not all(map(is_number, box)):
        faults.add("annotation whose `bbox` is not four numbers [x, y, width, height]", f"{place}: {box!r:.40}")
    elif not is_number(row.get("area", 0)):
        faults.add("annotation whose `area` is not a number", f"{place}: {row['area']!r:.40}")
    elif row.get("iscrowd", 0) not in (0, 1):
        faults.add("annotation whose `iscrowd` is neither 0 nor 1", f"{place}: {row['iscrowd']!r:.40}")
    else:
        return True
    return False


def _add_ground_truth(image: RoidbEntry, rows: list[Row], contiguous: dict[int, int], notes: Findings) -> RoidbEntry:
    used = []
    for row in rows:
        if row.get("ignore") == 1:
            notes.add("annotation marked `ignore` (left out, as Detectron does)", f"image {image.image_id}")
        else:
            used.append(row)
        if "area" not in row:
            notes.add("annotation without an `area` (width * height of its box used)", f"image {image.image_id}")
    if not used:
        return image
    boxes = np.array([row["bbox"] for row in used], np.float64)
    corners = boxes.copy()
    corners[:, 2:] = boxes[:, :2] + np.maximum(0.0, boxes[:, 2:] - 1.0)
    entry, dropped = entry_from_ground_truth(
        image,
        corners,
        [contiguous[row["category_id"]] for row in used],
        [bool(row.get("iscrowd", 0)) for row in used],
        [row.get("area", row["bbox"][2] * row["bbox"][3]) for row in used],
    )
    for _ in range(dropped):
        notes.add(
            "annotation without extent inside its picture (left out, as Detectron does)", f"image {image.image_id}"
        )
    return entry


def _image_size(row: Row, root: Path, exif: ExifPolicy, notes: Findings) -> tuple[int, int]:
    height, width = side_from_stated(row.get("height")), side_from_stated(row.get("width"))
    if height and width:
        return height, width
    return read_unstated_size(root / row["file_name"], row["id"], exif, notes)


def _find_root(path: Path, rows: list[Row], *, need_pictures: bool) -> Path:
    """Returns the folder that holds the pictures where nobody said it: the file's own, or `images` in it."""
    candidates = [path.parent, path.parent / "images"]
    for candidate in candidates:
        if any(os.path.isfile(candidate / row["file_name"]) for row in rows):
            return candidate
    if not need_pictures:
        return path.parent
    raise DataError(
        f"{path}: none of its {len(rows)} pictures is in {' or '.join(map(str, candidates))} "
        f"(looked for {shorten((row['file_name'] for row in rows), limit=2)}); say where they are with --images"
    )


def _is_unicode(text: str) -> bool:
    """Says whether text can be written as UTF-8: the escapes of JSON also make halves of characters."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_file_name(text: str) -> bool:
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return False
    return True
