"""One way into every kind of dataset: what a path is, its pictures in ascending id order, and the part of them that a run wants.

The order of image ids (integers by value, text by code points) is the order of every result file and of ranges, as in Detectron.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from roiline.core.errors import DataError, UsageError
from roiline.core.structures import RoidbEntry
from roiline.infer.coco import read_coco
from roiline.infer.folders import (
    has_wildcards,
    read_folder,
    read_glob,
    read_list,
    read_picture_entry,
    read_pictures,
    read_standard_input,
)
from roiline.infer.picture_headers import ExifPolicy
from roiline.infer.pictures import is_picture_file, read_size
from roiline.infer.roidb import Category, Dataset, Listing, shorten
from roiline.infer.video import is_video_file, read_video
from roiline.infer.voc import is_voc_root, read_voc

__all__ = ["Category", "Dataset", "dataset_from_listing", "load_dataset", "with_sizes"]

STANDARD_INPUT = "-"
_SIZE_READERS = 8


def load_dataset(
    source: str | Path | Sequence[str | Path],
    *,
    images: Path | None = None,
    split: str | None = None,
    limit: int | None = None,
    id_range: tuple[int, int] | None = None,
    class_names: tuple[str, ...] | None = None,
    exif: ExifPolicy = "apply",
    need_pictures: bool = True,
) -> Dataset:
    """Loads a dataset; which of them `source` is is recognised.

    It is a COCO json, a VOC root, a folder, a glob, a text list (`-`: standard input), a picture, several pictures, or a video, whose
    frames are the pictures.

    `images` is the picture folder of a COCO json, `split` names a split of a VOC root, `class_names` are the classes of a VOC root
    in order. `id_range` selects the half-open range of positions in ascending id order, `limit` the first pictures of that. Where only
    the ground truth is wanted, without `need_pictures`, no picture has to be there.

    Raises:
        DataError: the dataset cannot be used, or none of its pictures is there and they are needed.
        UsageError: an option does not fit the kind of dataset, or the range or limit selects nothing.
    """
    named = describe_source(source)
    try:
        listing = _read_listing(source, images, split, class_names, exif, need_pictures)
    except OSError as error:
        raise DataError(f"{named}: cannot be read ({error})") from error
    return dataset_from_listing(listing, named=named, id_range=id_range, limit=limit, need_pictures=need_pictures)


def dataset_from_listing(
    listing: Listing,
    *,
    named: str,
    id_range: tuple[int, int] | None = None,
    limit: int | None = None,
    need_pictures: bool = True,
) -> Dataset:
    """Orders, checks and cuts what a reader found; `named` is what messages call it, the rest as for `load_dataset`.

    Raises:
        DataError: ids are not unique or cannot be written, or none of its pictures is there and they are needed.
        UsageError: the range or limit selects nothing.
    """
    ordered = _order_entries(listing, named)
    start, end, notes = _resolve_range(id_range, len(ordered), named)
    if limit is not None:
        if limit < 1:
            raise UsageError(f"--limit: expected a number of pictures of at least 1, got {limit}")
        end = min(end, start + limit)
    selected = ordered[start:end]
    missing = _note_missing(selected, listing, named) if need_pictures and listing.kind != "video" else ()
    return Dataset(
        name=listing.name,
        kind=listing.kind,
        categories=listing.categories,
        entries=selected,
        fingerprint=_fingerprint(listing, ordered),
        problems=(*listing.problems, *notes, *missing),
        root=listing.root,
        total=len(ordered),
        id_range=(start, end),
        annotation_file=listing.annotation_file,
    )


def describe_source(source: str | Path | Sequence[str | Path]) -> str:
    """Returns what a dataset was named as: of several pictures the first and how many there are."""
    if isinstance(source, (str, Path)):
        return str(source)
    return shorten(source, limit=1)


def with_sizes(entries: Iterable[RoidbEntry], *, exif: ExifPolicy = "apply") -> tuple[RoidbEntry, ...]:
    """Returns the entries with the sizes that were unknown read from the files' headers, without decoding.

    An entry whose file cannot be read keeps the size zero: it is the run that says why it failed.
    """
    entries = tuple(entries)
    if all(entry.height > 0 and entry.width > 0 for entry in entries):
        return entries
    with ThreadPoolExecutor(_SIZE_READERS) as readers:
        return tuple(readers.map(lambda entry: _with_size(entry, exif), entries))


def _with_size(entry: RoidbEntry, exif: ExifPolicy) -> RoidbEntry:
    if entry.height > 0 and entry.width > 0:
        return entry
    try:
        height, width = read_size(entry.path, exif=exif)
    except DataError:
        return entry  # the run reads the file itself and records the reason
    return dataclasses.replace(entry, height=height, width=width)


def _read_listing(
    source: str | Path | Sequence[str | Path],
    images: Path | None,
    split: str | None,
    class_names: tuple[str, ...] | None,
    exif: ExifPolicy,
    need_pictures: bool,
) -> Listing:
    if not isinstance(source, (str, Path)):
        return read_pictures([Path(one) for one in source])
    path = Path(source)
    voc = path.is_dir() and is_voc_root(path)
    coco = path.is_file() and path.suffix.lower() == ".json"
    if images is not None and not coco:
        raise UsageError(f"{source}: --images says where the pictures of a COCO json are; this is none")
    if split is not None and not voc:
        raise UsageError(f"{source}: --split names a split of a VOC root (Annotations/ and JPEGImages/); this is none")
    if str(source) == STANDARD_INPUT:
        return read_standard_input()
    if voc:
        return read_voc(path, split=split, class_names=class_names, exif=exif)
    if coco:
        return read_coco(path, images=images, exif=exif, need_pictures=need_pictures)
    if path.is_dir():
        return read_folder(path)
    if path.is_file():
        reader = read_picture_entry if is_picture_file(path) else read_video if is_video_file(path) else read_list
        return reader(path)
    if has_wildcards(str(source)):
        return read_glob(str(source))
    raise DataError(
        f"{source}: no such dataset (expected a COCO json, a VOC root, a folder, a glob, a text list, a picture or a video)"
    )


def _order_entries(listing: Listing, source: str) -> tuple[RoidbEntry, ...]:
    ids = [entry.image_id for entry in listing.entries]
    twice = len(ids) - len(set(ids))
    if twice:
        seen: set[object] = set()
        repeated = [identity for identity in ids if identity in seen or seen.add(identity)]  # type: ignore[func-returns-value]
        raise DataError(f"{source}: {twice} pictures are listed twice: {shorten(repeated)}")
    unwritable = [ascii(identity) for identity in ids if isinstance(identity, str) and not _is_utf8(identity)]
    if unwritable:
        raise DataError(f"{source}: {len(unwritable)} names are not valid UTF-8, rename them: {shorten(unwritable)}")
    return tuple(sorted(listing.entries, key=lambda entry: entry.image_id))


def _is_utf8(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _resolve_range(id_range: tuple[int, int] | None, total: int, source: str) -> tuple[int, int, tuple[str, ...]]:
    if id_range is None:
        return 0, total, ()
    start, end = id_range
    if not 0 <= start < end or start >= total:
        raise UsageError(
            f"{source}: --range {start} {end} selects nothing; expected 0 <= START < END, and START below {total} (the pictures there are)"
        )
    if end > total:
        return start, total, (f"range that ends after the last picture (cut to {total}): 1 ({start} {end})",)
    return start, end, ()


def _note_missing(entries: tuple[RoidbEntry, ...], listing: Listing, source: str) -> tuple[str, ...]:
    missing = [entry for entry in entries if not os.path.isfile(entry.path)]
    names = shorten((_relative(entry.path, listing.root) for entry in missing), limit=3)
    if len(missing) == len(entries):
        hint = "; give the right folder with --images" if listing.kind == "coco" else ""
        raise DataError(
            f"{source}: none of the {len(entries)} pictures is in {listing.root} (looked for {names}){hint}"
        )
    return (f"picture that is not there (will be recorded as failed): {len(missing)} ({names})",) if missing else ()


def _fingerprint(listing: Listing, entries: tuple[RoidbEntry, ...]) -> str:
    digest = hashlib.sha256()
    digest.update(json.dumps([[category.id, category.name] for category in listing.categories]).encode())
    for entry in entries:
        row = [entry.image_id, _relative(entry.path, listing.root), entry.height, entry.width]
        digest.update(json.dumps(row).encode())
    return digest.hexdigest()


def _relative(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else path.as_posix()
