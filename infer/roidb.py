"""What a dataset is to a run: its pictures in order, its categories, and everything that was found wrong with it.

The readers of each kind of dataset (COCO json, VOC root, folder, glob, list, pictures, video) return a `Listing`;
`roiline.infer.datasets` orders, checks and cuts it to a `Dataset`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np

from roiline.core.errors import DataError
from roiline.core.quantities import is_number
from roiline.core.structures import Float64, ImageId, RoidbEntry
from roiline.infer.picture_headers import ExifPolicy
from roiline.infer.pictures import read_size

DatasetKind: TypeAlias = Literal["coco", "voc", "folder", "glob", "list", "picture", "pictures", "video"]

MAX_SIDE = 1 << 20
"""The largest height and width that a dataset may state, in pixels: no larger picture can be decoded."""

_EXAMPLES = 5


@dataclass(frozen=True, slots=True)
class Category:
    """Is one category of a dataset: the id that results carry, and the name."""

    id: int
    name: str


@dataclass(frozen=True, slots=True)
class Listing:
    """Is what a reader found: pictures in any order, and notes on what it put right or left out.

    `root` is the folder that picture paths are relative to. `annotation_file` is the COCO json, None for other kinds.
    """

    name: str
    kind: DatasetKind
    root: Path
    categories: tuple[Category, ...]
    entries: tuple[RoidbEntry, ...]
    problems: tuple[str, ...] = ()
    annotation_file: Path | None = None


@dataclass(frozen=True, slots=True)
class Dataset:
    """Is a dataset ready to run over.

    `entries` are the selected pictures in ascending image id order: positions [start, end) of `id_range` among the `total` pictures
    of the whole dataset. Class k of the ground truth is `categories[k - 1]`; only the first two kinds have any.
    `fingerprint` is the SHA-256 of what determines answers (ids, relative paths, sizes and categories) of the *whole* dataset, so that
    runs over ranges of one dataset share it. `problems` are the harmless faults, one sentence each.
    """

    name: str
    kind: DatasetKind
    categories: tuple[Category, ...]
    entries: tuple[RoidbEntry, ...]
    fingerprint: str
    problems: tuple[str, ...]
    root: Path
    total: int
    id_range: tuple[int, int]
    annotation_file: Path | None = None


class Findings:
    """Collects faults by kind, so that a dataset with a thousand equal faults is described in one line with the count."""

    def __init__(self) -> None:
        self._places: dict[str, list[str]] = {}
        self._counts: dict[str, int] = {}

    def add(self, what: str, place: object) -> None:
        """Notes one fault of the kind `what` at `place`."""
        places = self._places.setdefault(what, [])
        self._counts[what] = self._counts.get(what, 0) + 1
        if len(places) < _EXAMPLES:
            places.append(str(place))

    def __bool__(self) -> bool:
        return bool(self._counts)

    def describe(self) -> tuple[str, ...]:
        """Returns one line a kind: what, how often, and the first few places."""
        lines = []
        for what, count in self._counts.items():
            places = self._places[what]
            more = ", ..." if count > len(places) else ""
            lines.append(f"{what}: {count} ({', '.join(places)}{more})")
        return tuple(lines)


def shorten(items: Iterable[object], *, limit: int = _EXAMPLES) -> str:
    """Returns the first few items, comma-separated, and how many more there are."""
    texts = [str(item) for item in items]
    more = f", and {len(texts) - limit} more" if len(texts) > limit else ""
    return ", ".join(texts[:limit]) + more


def side_from_stated(value: object) -> int:
    """Returns the height or width that a dataset states, 0 where it is no whole number from 1 to `MAX_SIDE`."""
    return int(value) if is_number(value) and 0 < value <= MAX_SIDE and value == int(value) else 0


def read_unstated_size(path: Path, identity: ImageId, exif: ExifPolicy, notes: Findings) -> tuple[int, int]:
    """Returns the (height, width) of a picture whose dataset does not state a valid one, and notes it; (0, 0) for an unreadable file."""
    try:
        size_hw = read_size(path, exif=exif)
    except DataError as error:
        notes.add("image without a valid width and height, and its file cannot be read either", f"{identity}: {error}")
        return 0, 0
    notes.add("image without a valid width and height (taken from the picture file)", identity)
    return size_hw


def entry_from_ground_truth(
    image: RoidbEntry,
    corners: Float64,
    classes: Sequence[int],
    crowd: Sequence[bool],
    areas: Sequence[float],
) -> tuple[RoidbEntry, int]:
    """Returns `image` with its ground truth clipped to the picture, and how many boxes were dropped.

    `corners` (G, 4) are inclusive corners in double precision. As Detectron does, a box stays if its annotated area is positive and it
    is larger than one pixel on both sides after clipping. A picture of unknown size clips nothing.
    """
    boxes = corners.reshape(-1, 4)
    if image.height > 0 and image.width > 0:
        limit = np.array([image.width, image.height] * 2, np.float64) - 1.0
        boxes = np.minimum(limit, np.maximum(0.0, boxes))
    area = np.asarray(areas, np.float64)
    keep = (area > 0) & (boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1])
    entry = RoidbEntry(
        image.image_id,
        image.path,
        image.height,
        image.width,
        boxes[keep].astype(np.float32),
        np.asarray(classes, np.int32)[keep],
        np.asarray(crowd, np.bool_)[keep],
        area[keep].astype(np.float32),
    )
    return entry, int(np.count_nonzero(~keep))
