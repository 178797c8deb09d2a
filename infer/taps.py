"""Tapped blobs as files: one npz a picture, written beside the picture's shard and linked into OUT/taps when the run is done.

A file holds every tapped blob by its name, as it is in a run over that picture alone, so with a first dimension of 1 where the blob has
one row a picture, and with as many rows as the picture has RoIs where it has one a RoI. The same blobs give the same bytes.
"""

from __future__ import annotations

import os
import re
import shutil
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from roiline.core.errors import DataError
from roiline.core.files import durable_file, remove_temporaries, sha256_of_file, sync_folder
from roiline.core.structures import ImageId, Taps

TAPS_FOLDER = "taps"
SUFFIX = ".npz"
LONGEST_NAME = 240
"""Is how many bytes a file's name may have, so that its temporary name fits a file system's 255 too."""

_UNFIT = re.compile(r'[%/\\:*?"<>|\x00-\x1f\x7f]|^\.')


def name_tap_file(image_id: ImageId) -> str:
    """Returns the name of an image's file: its id, in which what a file's name cannot have is percent-encoded.

    Raises:
        DataError: the name is too long for a file.
    """
    name = _UNFIT.sub(lambda match: f"%{ord(match[0]):02X}", str(image_id)) + SUFFIX
    if len(os.fsencode(name)) > LONGEST_NAME:
        raise DataError(
            f"image {image_id!r}: its taps cannot be saved: their file's name would have {len(os.fsencode(name))} bytes, "
            f"the most is {LONGEST_NAME}; give the image a shorter id"
        )
    return name


def check_tap_names(image_ids: Iterable[ImageId]) -> None:
    """Checks that every image can have a file of its own.

    Raises:
        DataError: a name is too long, or two ids have one name.
    """
    seen: dict[str, ImageId] = {}
    for image_id in image_ids:
        name = name_tap_file(image_id)
        if name in seen:
            raise DataError(f"images {seen[name]!r} and {image_id!r}: their taps would both be saved as {name}")
        seen[name] = image_id


def write_taps(path: Path, taps: Taps) -> str:
    """Writes the blobs of one picture durably, as an npz, and returns the file's SHA-256."""
    path.parent.mkdir(exist_ok=True)
    with durable_file(path) as stream, zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        for name, blob in taps.items():
            entry = zipfile.ZipInfo(f"{name}.npy")  # its time of change is a constant
            with archive.open(entry, "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asarray(blob, order="C"), allow_pickle=False)
    return sha256_of_file(path)


def link_taps(out: Path, files: Iterable[tuple[ImageId, Path]]) -> None:
    """Makes OUT/taps hold the files of the images given, and no other ones of ours; files that are there already stay untouched.

    They are links to those beside the shards, or copies where the file system has no links or is another one.
    """
    folder = out / TAPS_FOLDER
    wanted = {name_tap_file(image_id): source for image_id, source in files}
    if not wanted and not folder.exists():
        return
    folder.mkdir(exist_ok=True)
    remove_temporaries(folder)
    for path in folder.glob(f"*{SUFFIX}"):
        if path.name not in wanted:
            path.unlink()
    for name, source in wanted.items():
        _link(source, folder / name)
    sync_folder(folder)


def _link(source: Path, target: Path) -> None:
    if target.exists():
        if target.samefile(source):
            return
        target.unlink()
    try:
        os.link(source, target)
    except OSError:  # other file systems refuse in different words, and whatever else is wrong the copy meets too
        with source.open("rb") as stream, durable_file(target) as copy:
            shutil.copyfileobj(stream, copy)


def remove_taps(folders: Sequence[Path]) -> None:
    """Removes the files of taps in some folders, and the folders where nothing else is in them."""
    for folder in folders:
        if not folder.is_dir():
            continue
        remove_temporaries(folder)
        for path in folder.glob(f"*{SUFFIX}"):
            path.unlink()
        if not any(folder.iterdir()):
            folder.rmdir()
