"""The results of a run as pictures on the disk: one file a picture, or a video where the dataset is one; contact sheets on demand."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from roiline.core.errors import DataError, UsageError
from roiline.core.files import make_folder, write_durable
from roiline.core.structures import ImageId, Proposals, RoidbEntry, UInt8
from roiline.infer.picture_headers import ExifPolicy
from roiline.infer.result_rows import Rows
from roiline.infer.roidb import Dataset
from roiline.report.contact_sheet import ContactSheet, sheet_stems
from roiline.report.drawing import DrawingRules, choose_shown, draw_beside_truth, draw_picture, has_rows, read_entry
from roiline.report.drawn_video import VideoFile, name_video
from roiline.report.image_rows import read_image_rows
from roiline.report.jpeg import encode_jpeg
from roiline.report.results import dataset_of_run, find_run
from roiline.report.truth_rows import read_truth_rows


@dataclass(frozen=True, slots=True)
class DrawingRequest:
    """Is what is to be drawn, and what beside pictures.

    `thresh`, `top`, `heat` and `class_names` (for datasets without categories) are those of `DrawingRules`. With `ground_truth` every
    picture stands beside its ground truth. `sheet`: contact sheets too. `every`: pictures with nothing to show too. `exif` None reads
    pictures as the run did.
    """

    thresh: float | None = None
    top: int = 100
    heat: bool = False
    ground_truth: bool = False
    sheet: bool = False
    every: bool = False
    exif: ExifPolicy | None = None
    class_names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Drawing:
    """Is what was drawn.

    `files` are the pictures in dataset order, or one video; `sheets` are contact sheets; `failed` are the pictures that could not be read
    or written, with the reason. `pictures` is how many were drawn, `looked_at` how many of the dataset the results cover.
    """

    files: tuple[Path, ...]
    sheets: tuple[Path, ...]
    failed: tuple[tuple[ImageId, str], ...]
    pictures: int
    looked_at: int


class _Sink(Protocol):
    """Takes drawn pictures one by one."""

    def add(self, entry: RoidbEntry, picture: UInt8) -> None: ...

    def close(self) -> tuple[Path, ...]: ...


def draw_results(results_path: Path, dataset: Dataset, out_dir: Path, request: DrawingRequest) -> Drawing:
    """Draws the results of a run or a result file, one `<stem>.jpg` in `out_dir` for each picture that has something to show.

    With `ground_truth` that is every picture that has any, results or not; of a video it is every frame. Pictures of equal stems get
    `<stem>_2.jpg` and so on, in dataset order. Where a folder has detections and proposals, its detections are drawn.

    Raises:
        UsageError: `out_dir` is the dataset's own folder of pictures, which would be overwritten.
        DataError: there are no results, they are damaged or of another dataset, or no picture at all could be read and written.
    """
    check_folder(out_dir, dataset)
    rules = rules_of(request, results_path, dataset)
    dataset = dataset_of_run(results_path, dataset)
    entries, per_image = read_image_rows(results_path, dataset)
    truths: Sequence[Rows | None] = read_truth_rows(dataset, entries) if request.ground_truth else [None] * len(entries)
    make_folder(out_dir)
    sinks: list[_Sink] = [
        VideoFile(name_video(dataset, out_dir)) if dataset.kind == "video" else _PictureFiles(out_dir, dataset.entries)
    ]
    if request.sheet:
        sinks.append(ContactSheet(out_dir, title=dataset.name))
    every = request.every or dataset.kind == "video"
    drawn, failed = _draw_all(zip(entries, per_image, truths, strict=True), rules, sinks, every=every)
    if failed and not drawn:
        raise DataError(f"none of the {len(failed)} pictures to draw could be drawn; the first: {failed[0][1]}")
    files, *sheets = [sink.close() for sink in sinks]
    return Drawing(files, tuple(file for sheet in sheets for file in sheet), tuple(failed), drawn, len(entries))


def _draw_all(
    pictures: Iterable[tuple[RoidbEntry, Rows | Proposals, Rows | None]],
    rules: DrawingRules,
    sinks: Sequence[_Sink],
    *,
    every: bool,
) -> tuple[int, list[tuple[ImageId, str]]]:
    """Draws (entry, results, ground truth) and returns how many were drawn, and those that could not be, with the reason."""
    failed: list[tuple[ImageId, str]] = []
    drawn = 0
    for entry, found, truth in pictures:
        shown = has_rows(choose_shown(found, rules)) or (truth is not None and has_rows(truth))
        if not (shown or every):
            continue
        try:
            _draw_one(entry, found, truth, rules, sinks)
            drawn += 1
        except (DataError, OSError) as failure:
            failed.append((entry.image_id, str(failure)))
    return drawn, failed


def check_folder(out_dir: Path, dataset: Dataset) -> None:
    """Checks that drawn pictures would replace none of the dataset's own.

    Raises:
        UsageError: they would.
    """
    if out_dir.resolve() in {folder.resolve() for folder in {entry.path.parent for entry in dataset.entries}}:
        raise UsageError(
            f"{out_dir}: is where the dataset's own pictures are; choose another folder for the drawn ones"
        )


def rules_of(request: DrawingRequest, results_path: Path, dataset: Dataset) -> DrawingRules:
    """Returns the rules that a request means for a dataset.

    Raises:
        DataError: the run's run.json is damaged.
    """
    found = find_run(results_path, dataset.name)
    own: ExifPolicy = "ignore" if found is not None and found[1].settings.exif == "ignore" else "apply"
    names = tuple(category.name for category in dataset.categories) or request.class_names
    return DrawingRules(request.thresh, request.top, request.heat, request.exif or own, names)


def _draw_one(
    entry: RoidbEntry, found: Rows | Proposals, truth: Rows | None, rules: DrawingRules, sinks: Sequence[_Sink]
) -> None:
    picture = read_entry(entry, rules.exif)
    drawn = draw_picture(picture, found, rules) if truth is None else draw_beside_truth(picture, found, truth, rules)
    for sink in sinks:
        sink.add(entry, drawn)


class _PictureFiles:
    """Writes each picture to a file of its own."""

    def __init__(self, folder: Path, entries: Sequence[RoidbEntry]) -> None:
        self._folder = folder
        stems = choose_stems(entries, reserved=sheet_stems(len(entries)))
        self._stems = dict(zip((entry.image_id for entry in entries), stems, strict=True))
        self._files: list[Path] = []

    def add(self, entry: RoidbEntry, picture: UInt8) -> None:
        path = self._folder / f"{self._stems[entry.image_id]}.jpg"
        write_durable(path, encode_jpeg(picture, where=path))
        self._files.append(path)

    def close(self) -> tuple[Path, ...]:
        return tuple(self._files)


def choose_stems(entries: Sequence[RoidbEntry], *, reserved: Collection[str] = ()) -> list[str]:
    """Returns a file stem for each entry, the picture's own where it is the first of that name (upper and lower case alike)."""
    own = {entry.path.stem.lower() for entry in entries}
    taken: set[str] = set(reserved)
    following: dict[str, int] = {}
    stems = []
    for entry in entries:
        stem = entry.path.stem
        name, number = stem, following.get(stem.lower(), 2)
        while name.lower() in taken or (name != stem and name.lower() in own):
            name, number = f"{stem}_{number}", number + 1
        following[stem.lower()] = number
        taken.add(name.lower())
        stems.append(name)
    return stems
