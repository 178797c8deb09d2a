"""Pascal VOC roots: `Annotations/*.xml`, `JPEGImages/*`, and splits in `ImageSets/Main/*.txt`.

An image id is the file stem. VOC counts pixels from 1 with inclusive corners, so one is subtracted from each coordinate; sizes and
areas then follow COCO's rule for inclusive corners (width = x2 - x1 + 1), as in a COCO json that was converted from the same files.
Objects marked difficult become crowd regions: evaluation neither asks for them nor counts hits on them as false.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NoReturn
from xml.etree import ElementTree

import numpy as np

from roiline.core.errors import DataError, UsageError
from roiline.core.files import read_input
from roiline.core.quantities import is_number
from roiline.core.structures import RoidbEntry
from roiline.infer.picture_headers import ExifPolicy
from roiline.infer.pictures import is_picture_file
from roiline.infer.roidb import (
    Category,
    Findings,
    Listing,
    entry_from_ground_truth,
    read_unstated_size,
    shorten,
    side_from_stated,
)

_CLASS_FLAG = re.compile(r"\s+(-1|0|1)$")


class _PlainTreeBuilder(ElementTree.TreeBuilder):
    """Builds a tree from XML that declares no document type, and so can define no entities."""

    def doctype(self, name: str, pubid: str | None, system: str | None) -> NoReturn:  # noqa: ARG002 - the parser's signature
        raise DataError("document types and entities are not allowed in annotation files")


def is_voc_root(path: Path) -> bool:
    """Says whether a folder has the two folders of a VOC root."""
    return (path / "Annotations").is_dir() and (path / "JPEGImages").is_dir()


def read_voc(root: Path, *, split: str | None, class_names: tuple[str, ...] | None, exif: ExifPolicy) -> Listing:
    """Reads a VOC root, or one split of it; `class_names` give the order of the classes, which the files do not have.

    Sizes that the XML does not state are read from the pictures.

    Raises:
        DataError: no such split, unreadable XML, names that `class_names` lack, or two pictures of one stem (all are listed).
    """
    if class_names is None:
        raise DataError(
            f"{root}: a VOC root does not say the order of its classes; use a model that knows its class names, or give --classes"
        )
    faults, notes = Findings(), Findings()
    pictures = _find_pictures(root, faults)
    annotated = {path.stem: path for path in (root / "Annotations").glob("*.xml")}
    stems = (
        sorted(pictures.keys() | annotated.keys()) if split is None else _read_split(root, split, pictures, annotated)
    )
    classes = {name: index for index, name in enumerate(class_names, start=1)}
    unknown: set[str] = set()
    entries = []
    for stem in stems:
        image = RoidbEntry(stem, pictures.get(stem, root / "JPEGImages" / f"{stem}.jpg"), 0, 0)
        if stem not in annotated:
            notes.add("image without an annotation file (no ground truth)", stem)
            entries.append(image)
            continue
        try:
            entries.append(_read_annotation(annotated[stem], image, classes, unknown, notes, exif))
        except DataError as error:
            faults.add("annotation file that cannot be used", f"{annotated[stem].name}: {error}")
    if unknown:
        faults.add(
            f"class that the model does not know; the model has {', '.join(class_names)}", ", ".join(sorted(unknown))
        )
    if faults:
        raise DataError(f"{root}: the dataset cannot be used:\n  " + "\n  ".join(faults.describe()))
    name = root.resolve().name if split is None else f"{root.resolve().name}_{split}"
    categories = tuple(Category(index, label) for label, index in classes.items())
    return Listing(name, "voc", root, categories, tuple(entries), notes.describe())


def _find_pictures(root: Path, faults: Findings) -> dict[str, Path]:
    pictures: dict[str, Path] = {}
    for path in sorted((root / "JPEGImages").iterdir()):
        if path.name.startswith(".") or not path.is_file() or not is_picture_file(path):
            continue
        if path.stem in pictures:
            faults.add("two pictures of one stem", f"{pictures[path.stem].name} and {path.name}")
        pictures[path.stem] = path
    return pictures


def _read_split(root: Path, split: str, pictures: dict[str, Path], annotated: dict[str, Path]) -> list[str]:
    """Returns the stems that a split lists; lines of class splits end in a flag (-1, 0 or 1), which is left out."""
    path = root / "ImageSets" / "Main" / f"{split}.txt"
    if not path.is_file():
        known = sorted(file.stem for file in path.parent.glob("*.txt"))
        raise UsageError(f"{root}: no split `{split}` ({path} does not exist); there are: {', '.join(known) or 'none'}")
    try:
        lines = [line.strip() for line in read_input(path).decode("utf-8-sig").splitlines() if line.strip()]
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: cannot be read as text ({error})") from error
    stems = [line if line in pictures or line in annotated else _CLASS_FLAG.sub("", line) for line in lines]
    if not stems:
        raise DataError(f"{path}: the split is empty")
    twice = sorted({stem for stem in stems if stems.count(stem) > 1}) if len(set(stems)) < len(stems) else []
    if twice:
        raise DataError(f"{path}: {len(twice)} images are listed twice: {shorten(twice)}")
    return stems


def _read_annotation(
    path: Path, image: RoidbEntry, classes: dict[str, int], unknown: set[str], notes: Findings, exif: ExifPolicy
) -> RoidbEntry:
    tree = _parse_xml(path)
    height, width = (_side(tree.findtext(f"size/{side}")) for side in ("height", "width"))
    if not height or not width:
        height, width = read_unstated_size(image.path, image.image_id, exif, notes)
    sized = RoidbEntry(image.image_id, image.path, height, width)
    boxes, labels, difficult = [], [], []
    for item in tree.findall("object"):
        name = (item.findtext("name") or "").strip()
        if not name:
            raise DataError("an object has no name")
        if name not in classes:
            unknown.add(name)
            continue
        boxes.append([_coordinate(item, key) - 1.0 for key in ("xmin", "ymin", "xmax", "ymax")])
        labels.append(classes[name])
        difficult.append((item.findtext("difficult") or "0").strip() == "1")
    corners = np.array(boxes, np.float64).reshape(-1, 4)
    areas = (corners[:, 2] - corners[:, 0] + 1) * (corners[:, 3] - corners[:, 1] + 1)
    entry, dropped = entry_from_ground_truth(sized, corners, labels, difficult, areas.tolist())
    for _ in range(dropped):
        notes.add("object without extent inside its picture (left out)", path.name)
    return entry


def _parse_xml(path: Path) -> ElementTree.Element:
    try:
        parser = ElementTree.XMLParser(target=_PlainTreeBuilder())  # noqa: S314 - document types, hence entities, are refused
        parser.feed(read_input(path))
        root: ElementTree.Element = parser.close()
    except (ElementTree.ParseError, LookupError, ValueError) as error:
        raise DataError(f"not well-formed XML ({error})") from error
    if root.tag != "annotation":
        raise DataError(f"expected an <annotation> document, got <{root.tag}>")
    return root


def _coordinate(item: ElementTree.Element, key: str) -> float:
    text = item.findtext(f"bndbox/{key}")
    try:
        value = float(text or "")
    except ValueError:
        value = float("nan")
    if not is_number(value):
        raise DataError(f"expected a number as {key} of an object, got {text!r}")
    return value


def _side(text: str | None) -> int:
    try:
        return side_from_stated(float(text or ""))
    except ValueError:
        return 0
