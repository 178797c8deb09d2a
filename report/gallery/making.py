"""A gallery on the disk: `index.html` and the pictures that it shows, in a folder that can be moved or served as it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from roiline.core.errors import DataError
from roiline.core.files import make_folder, write_durable
from roiline.core.structures import ImageId, Proposals, RoidbEntry
from roiline.infer.picture_headers import ExifPolicy
from roiline.infer.result_rows import Rows
from roiline.infer.roidb import Dataset
from roiline.report.drawing import DETECTION_THRESH, read_entry
from roiline.report.drawn_results import DrawingRequest, check_folder, choose_stems, rules_of
from roiline.report.gallery.content import Plain, describe_gallery, describe_picture, rows_of_gallery
from roiline.report.gallery.page import make_gallery_page
from roiline.report.image_rows import read_image_rows
from roiline.report.jpeg import encode_jpeg, shrink
from roiline.report.results import dataset_of_run
from roiline.report.truth_rows import read_truth_rows

PAGE_NAME = "index.html"
PICTURES_FOLDER = "pictures"

_LEAST_SCORE = 0.05
_LONG_SIDE = 1280
_QUALITY = 85


@dataclass(frozen=True, slots=True)
class Gallery:
    """Is what was made: the page, how many pictures it shows, and those that could not be read or written, with the reason."""

    page: Path
    pictures: int
    failed: tuple[tuple[ImageId, str], ...]


def make_gallery(
    results: Path, dataset: Dataset, out_dir: Path, request: DrawingRequest, *, against: Path | None = None
) -> Gallery:
    """Makes the gallery of a run or a result file; with `against`, of two over the same pictures, and what differs between them.

    Detections from a score of 0.05 on are in it (or from `request.thresh`, where that is lower); it opens at `request.thresh`.

    Raises:
        UsageError: `out_dir` is the dataset's own folder of pictures.
        DataError: there are no results, they are damaged, of another dataset or of different pictures, or no picture can be read.
    """
    check_folder(out_dir / PICTURES_FOLDER, dataset)
    rules = rules_of(request, results, dataset)
    paths = [results] if against is None else [results, against]
    sides = [read_image_rows(path, dataset_of_run(path, dataset)) for path in paths]
    entries = sides[0][0]
    _check_same_pictures([side[0] for side in sides], paths)
    truths: Sequence[Rows | None] = read_truth_rows(dataset, entries) if request.ground_truth else [None] * len(entries)
    make_folder(out_dir / PICTURES_FOLDER)
    shown = _Shown(out_dir, choose_stems(entries), request, rules.exif)
    for place, (entry, *found) in enumerate(zip(entries, *(rows for _, rows in sides), strict=True)):
        shown.add(place, entry, found, truths[place])
    if not shown.pictures:
        raise DataError(f"none of the {len(entries)} pictures can be shown; the first: {shown.failed[0][1]}")
    if len(shown.kinds) > 1:
        raise DataError(f"{results} and {against}: one has detections, the other proposals; compare like with like")
    (kind,) = shown.kinds
    names = _name_sides(paths)
    title = f"{dataset.name}: {' and '.join(names)}"
    content = describe_gallery(title, names, rules.class_names, _opening(kind, request), kind, shown.pictures)
    page = out_dir / PAGE_NAME
    write_durable(page, make_gallery_page(content).encode())
    return Gallery(page, len(shown.pictures), tuple(shown.failed))


class _Shown:
    """Gathers the pictures of a gallery one by one; `kinds` are what their results are."""

    def __init__(self, out_dir: Path, stems: Sequence[str], request: DrawingRequest, exif: ExifPolicy) -> None:
        self._out_dir, self._stems, self._request, self._exif = out_dir, stems, request, exif
        self.pictures: list[Plain] = []
        self.failed: list[tuple[ImageId, str]] = []
        self.kinds: set[str] = set()

    def add(self, place: int, entry: RoidbEntry, found: Sequence[Rows | Proposals], truth: Rows | None) -> None:
        """Writes the picture of one entry and keeps what is shown of it; one that cannot be read or written is noted."""
        self.kinds |= {"proposals" if isinstance(one, Proposals) else "detections" for one in found}
        top = self._request.top
        rows = [rows_of_gallery(one, least=_least_score(one, self._request), top=top) for one in found]
        path = self._out_dir / PICTURES_FOLDER / f"{self._stems[place]}.jpg"
        try:
            size_hw = _write_picture(entry, path, self._exif)
        except (DataError, OSError) as failure:
            self.failed.append((entry.image_id, str(failure)))
            return
        self.pictures.append(describe_picture(entry, f"{PICTURES_FOLDER}/{quote(path.name)}", size_hw, rows, truth))


def _least_score(found: Rows | Proposals, request: DrawingRequest) -> float:
    if isinstance(found, Proposals):
        return float("-inf") if request.thresh is None else request.thresh
    return _LEAST_SCORE if request.thresh is None else min(_LEAST_SCORE, request.thresh)


def _opening(kind: str, request: DrawingRequest) -> float:
    """Returns the score that the page opens at."""
    if request.thresh is not None:
        return request.thresh
    return 0.0 if kind == "proposals" else DETECTION_THRESH


def _check_same_pictures(sides: Sequence[tuple[RoidbEntry, ...]], paths: Sequence[Path]) -> None:
    ids = [[entry.image_id for entry in entries] for entries in sides]
    if any(one != ids[0] for one in ids[1:]):
        raise DataError(
            f"{paths[0]} is over {len(ids[0])} pictures and {paths[1]} over {len(ids[1])} others; compare runs over the same"
        )


def _write_picture(entry: RoidbEntry, path: Path, exif: ExifPolicy) -> tuple[int, int]:
    """Writes a picture, smaller if it is large, and returns the original (height, width)."""
    picture = read_entry(entry, exif)
    write_durable(path, encode_jpeg(shrink(picture, _LONG_SIDE), where=path, quality=_QUALITY))
    return int(picture.shape[0]), int(picture.shape[1])


def _name_sides(paths: Sequence[Path]) -> list[str]:
    """Returns short names of one run or two, longer ones where short ones are the same."""
    names = [path.resolve().name for path in paths]
    return names if len(set(names)) == len(names) else [str(path) for path in paths]
