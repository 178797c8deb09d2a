"""A gallery on the disk: `index.html` and the pictures that it shows, in a folder that can be moved or served as it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from roiline.core.errors import DataError
from roiline.core.files import make_folder, write_durable
from roiline.core.structures import ImageId, Proposals, RoidbEntry
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
    covered = dataset_of_run(results, dataset)
    sides = [read_image_rows(results, covered)]
    if against is not None:
        sides.append(read_image_rows(against, dataset_of_run(against, dataset)))
    entries = sides[0][0]
    _check_same_pictures(sides, results, against)
    truths = read_truth_rows(covered, entries) if request.ground_truth else None
    make_folder(out_dir / PICTURES_FOLDER)
    pictures: list[Plain] = []
    failed: list[tuple[ImageId, str]] = []
    kinds: set[str] = set()
    stems = choose_stems(entries)
    for place, (entry, *found) in enumerate(zip(entries, *(rows for _, rows in sides), strict=True)):
        kinds |= {"proposals" if isinstance(one, Proposals) else "detections" for one in found}
        try:
            rows = [rows_of_gallery(one, least=_least_score(one, request), top=request.top) for one in found]
            source, size_hw = _write_picture(entry, stems[place], out_dir, rules.exif)
        except (DataError, OSError) as failure:
            failed.append((entry.image_id, str(failure)))
            continue
        pictures.append(describe_picture(entry, source, size_hw, rows, None if truths is None else truths[place]))
    if not pictures:
        raise DataError(f"none of the {len(entries)} pictures can be shown; the first: {failed[0][1]}")
    if len(kinds) > 1:
        raise DataError(f"{results} and {against}: one has detections, the other proposals; compare like with like")
    (kind,) = kinds
    content = describe_gallery(
        _title(dataset, results, against),
        _name_sides(results, against),
        rules.class_names,
        _opening(kind, request),
        kind,
        pictures,
    )
    page = out_dir / PAGE_NAME
    write_durable(page, make_gallery_page(content).encode())
    return Gallery(page, len(pictures), tuple(failed))


def _least_score(found: Rows | Proposals, request: DrawingRequest) -> float:
    if isinstance(found, Proposals):
        return float("-inf") if request.thresh is None else request.thresh
    return _LEAST_SCORE if request.thresh is None else min(_LEAST_SCORE, request.thresh)


def _opening(kind: str, request: DrawingRequest) -> float:
    """Returns the score that the page opens at."""
    if request.thresh is not None:
        return request.thresh
    return 0.0 if kind == "proposals" else DETECTION_THRESH


def _check_same_pictures(
    sides: Sequence[tuple[tuple[RoidbEntry, ...], Iterator[Rows | Proposals]]], results: Path, against: Path | None
) -> None:
    ids = [[entry.image_id for entry in entries] for entries, _ in sides]
    if any(one != ids[0] for one in ids[1:]):
        raise DataError(
            f"{results} is over {len(ids[0])} pictures and {against} over {len(ids[1])} others; compare runs over the same"
        )


def _write_picture(entry: RoidbEntry, stem: str, out_dir: Path, exif: str) -> tuple[str, tuple[int, int]]:
    """Writes a picture, smaller if it is large, and returns its address from the page and the original (height, width)."""
    picture = read_entry(entry, "ignore" if exif == "ignore" else "apply")
    path = out_dir / PICTURES_FOLDER / f"{stem}.jpg"
    write_durable(path, encode_jpeg(shrink(picture, _LONG_SIDE), where=path, quality=_QUALITY))
    return f"{PICTURES_FOLDER}/{quote(path.name)}", (int(picture.shape[0]), int(picture.shape[1]))


def _title(dataset: Dataset, results: Path, against: Path | None) -> str:
    a, *b = _name_sides(results, against)
    return f"{dataset.name}: {a}" + (f" and {b[0]}" if b else "")


def _name_sides(results: Path, against: Path | None) -> list[str]:
    """Returns short names of one run or two, longer ones where short ones are the same."""
    paths = [results] if against is None else [results, against]
    names = [path.resolve().name for path in paths]
    return names if len(set(names)) == len(names) else [str(path) for path in paths]
