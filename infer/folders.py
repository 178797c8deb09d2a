"""Pictures without annotations: a folder, a glob, a text list (a file, or standard input), one picture or several.

An image id is the picture's path as text: relative to the folder (for a glob: to its part without wildcards; for several pictures: to
the folder that they share), or as the list has it.
"""

from __future__ import annotations

import functools
import glob
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from roiline.core.errors import DataError
from roiline.core.structures import RoidbEntry
from roiline.infer.pictures import describe_bytes, is_picture_file
from roiline.infer.roidb import DatasetKind, Listing, shorten


def read_folder(root: Path) -> Listing:
    """Lists the pictures that lie directly in a folder.

    Raises:
        DataError: there are none.
    """
    files = sorted(path for path in root.iterdir() if path.is_file() and not path.name.startswith("."))
    pictures = [path for path in files if is_picture_file(path)]
    if not pictures:
        jsons = [path.name for path in files if path.suffix.lower() == ".json"]
        hint = f"; it has {shorten(jsons)}: give that file as the dataset" if jsons else _hint_at_subfolders(root)
        raise DataError(f"{root}: no pictures directly in this folder{hint}")
    return _listing(root.resolve().name, "folder", root, pictures, _note_others(files, pictures))


def read_glob(pattern: str) -> Listing:
    """Lists the pictures that a pattern matches (`**` goes into sub-folders).

    Raises:
        DataError: it matches no picture.
    """
    files = sorted(path for path in map(Path, glob.glob(pattern, recursive=True)) if path.is_file())
    pictures = [path for path in files if is_picture_file(path)]
    if not pictures:
        raise DataError(
            f"{pattern}: the pattern matches no pictures ({len(files)} other files); `**/` goes into sub-folders"
        )
    root = _fixed_part(pattern)
    return _listing(root.resolve().name, "glob", root, pictures, _note_others(files, pictures))


def read_picture_entry(path: Path) -> Listing:
    """Lists one picture; its id is its file name."""
    return _listing(path.stem, "picture", path.parent, [path], ())


def read_pictures(paths: Sequence[Path]) -> Listing:
    """Lists pictures that were named one by one; one that is not there fails in the run."""
    root = Path(os.path.commonpath([os.path.abspath(path.parent) for path in paths]))
    pictures = [Path(os.path.abspath(path)) for path in paths]
    return _listing(root.name or "pictures", "pictures", root, pictures, ())


def read_list(path: Path) -> Listing:
    """Reads a text file with one picture path a line, relative to the file's folder; blank lines are left out.

    Raises:
        DataError: not text, or no paths in it.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error
    return _list_from_text(path.stem, path.parent, data, str(path))


def read_standard_input() -> Listing:
    """Reads a list from standard input, one picture path a line, relative to the working folder.

    Raises:
        DataError: not text, or no paths in it.
    """
    return _list_from_text("stdin", Path.cwd(), _read_stdin(), "standard input")


@functools.cache
def _read_stdin() -> bytes:
    """Returns all of standard input: it can be read once, a dataset may be loaded again."""
    return sys.stdin.buffer.read()


def _list_from_text(name: str, root: Path, data: bytes, where: str) -> Listing:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: expected a dataset, the file is {describe_bytes(data)}") from error
    names = [line.strip() for line in text.splitlines() if line.strip()]
    if not names or "\0" in text:
        raise DataError(f"{where}: expected a list with one picture path a line, it has none")
    return Listing(name, "list", root, (), tuple(RoidbEntry(one, root / one, 0, 0) for one in names))


def has_wildcards(source: str) -> bool:
    """Says whether a source is a glob pattern."""
    return glob.has_magic(source)


def _fixed_part(pattern: str) -> Path:
    """Returns the folder before a pattern's first wildcard."""
    fixed = []
    for part in Path(pattern).parts[:-1]:
        if glob.has_magic(part):
            break
        fixed.append(part)
    return Path(*fixed)


def _listing(name: str, kind: DatasetKind, root: Path, pictures: Iterable[Path], notes: tuple[str, ...]) -> Listing:
    entries = tuple(RoidbEntry(path.relative_to(root).as_posix(), path, 0, 0) for path in pictures)
    return Listing(name, kind, root, (), entries, notes)


def _note_others(files: list[Path], pictures: list[Path]) -> tuple[str, ...]:
    chosen = set(pictures)
    others = [path.name for path in files if path not in chosen]
    return (f"file that is no picture (left out): {len(others)} ({shorten(others)})",) if others else ()


def _hint_at_subfolders(root: Path) -> str:
    holders = [
        path.name
        for path in sorted(root.iterdir())
        if path.is_dir() and any(is_picture_file(item) for item in path.iterdir() if item.is_file())
    ]
    return f"; its sub-folders {shorten(holders)} have some (give one of them, or a glob)" if holders else ""
