"""Inspecting datasets: what they hold, and which pictures are not there, cannot be read, or have another size than stated."""

from __future__ import annotations

import os
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from roiline.checks.dataset_traits import list_traits
from roiline.checks.findings import Inspected, Inspection, failed, shorten_error
from roiline.core.errors import DataError
from roiline.core.structures import RoidbEntry
from roiline.infer.datasets import load_dataset
from roiline.infer.pictures import MAX_PIXELS, read_size
from roiline.infer.roidb import Dataset, Findings
from roiline.infer.video import read_rate
from roiline.infer.voc import is_voc_root

KIND = "dataset"
_READERS = 8
_ANNOTATED = ("coco", "voc")
_OBJECT_NAME = re.compile(rb"<object>.*?<name>\s*(.*?)\s*</name>", re.DOTALL)


def inspect_dataset(source: str, images: Path | None = None) -> Inspected:
    """Says what a dataset holds and what is wrong with it; headers of all pictures are read, none is decoded.

    `images` is the picture folder of a COCO json, where that is not the file's own or `images` in it.
    """
    path = Path(source)
    names = _find_voc_names(path) if path.is_dir() and is_voc_root(path) else None
    try:
        dataset = load_dataset(source, images=images, class_names=names, need_pictures=False)
    except DataError as error:
        return Inspected(
            replace(failed(source, KIND, error), problems=_split(error, source), notes=list_traits(path, None))
        )
    annotated = dataset.kind in _ANNOTATED
    problems = (*(dataset.problems if annotated else ()), *_check_pictures(dataset))
    facts = _describe(dataset)
    notes = (*(() if annotated else dataset.problems), *list_traits(path, dataset))
    return Inspected(Inspection(source, KIND, facts, notes, problems), dataset)


def _split(error: DataError, source: str) -> tuple[str, ...]:
    """Returns what an error says one by one, where it is a heading with a list."""
    heading, *lines = shorten_error(error, source).split("\n  ")
    return tuple(lines) if lines and heading.endswith("cannot be used:") else (shorten_error(error, source),)


def _find_voc_names(root: Path) -> tuple[str, ...]:
    """Returns the names that the annotations use, in alphabetical order: a VOC root says no other."""
    files = sorted((root / "Annotations").glob("*.xml"))
    found = {name for path in files for name in _OBJECT_NAME.findall(path.read_bytes())}
    return tuple(sorted(name.decode("utf-8", "replace") for name in found))


def _describe(dataset: Dataset) -> dict[str, Any]:
    boxes = {category.name: 0 for category in dataset.categories}
    crowd = 0
    for entry in dataset.entries:
        for label in entry.classes.tolist():
            boxes[dataset.categories[label - 1].name] += 1
        crowd += int(entry.crowd.sum())
    facts: dict[str, Any] = {
        "name": dataset.name,
        "kind": dataset.kind,
        "pictures": dataset.total,
        "folder": str(dataset.root),
    }
    if dataset.kind == "video":
        facts |= {
            "frame size": f"{dataset.entries[0].width} x {dataset.entries[0].height}",
            "frames a second": read_rate(dataset.entries[0].path.parent),
        }
    if dataset.categories:
        facts |= {
            "categories": {category.name: category.id for category in dataset.categories},
            "boxes": sum(boxes.values()),
            "boxes by category": boxes,
            "crowd regions": crowd,
            "pictures without boxes": sum(not len(entry.classes) for entry in dataset.entries),
        }
    return facts


def _check_pictures(dataset: Dataset) -> tuple[str, ...]:
    """Returns what is wrong with the files, fault by fault with a count and examples."""
    if dataset.kind == "video":
        return ()  # counting its frames has decoded them
    found = Findings()
    entries = dataset.entries
    if not any(os.path.isfile(entry.path) for entry in entries):
        hint = "; say where they are with --images" if dataset.kind == "coco" else ""
        return (f"none of the {len(entries)} pictures is in {dataset.root}{hint}",)
    with ThreadPoolExecutor(_READERS) as readers:
        for entry, fault in zip(entries, readers.map(_find_fault, entries), strict=True):
            if fault is not None:
                found.add(fault[0], f"{entry.image_id}{fault[1]}")
    return tuple(found.describe())


def _find_fault(entry: RoidbEntry) -> tuple[str, str] | None:
    """Returns what is wrong with the file of one picture, and the details; None: nothing."""
    if not os.path.isfile(entry.path):  # unlike Path.is_file, no for a name too long for a file
        return "picture that is not there", ""
    try:
        sizes = {read_size(entry.path, exif="apply"), read_size(entry.path, exif="ignore")}
    except DataError as error:
        return "picture that cannot be read", f": {shorten_error(error, entry.path)}"
    pixels = next(height * width for height, width in sizes)
    if pixels > MAX_PIXELS:
        return "picture that needs a higher --max-pixels", f": {pixels} pixels"
    stated = (entry.height, entry.width)
    if min(stated) > 0 and stated not in sizes:
        height, width = sorted(sizes)[0]
        return "picture of another size than stated", f": {width} x {height}, stated {entry.width} x {entry.height}"
    return None
