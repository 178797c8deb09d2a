"""Reads pickles as data: a small machine that knows the opcodes of numbers, texts, containers and NumPy arrays only.

`pickle.load` runs whatever a file names and allocates whatever it declares. This machine imports nothing, calls
nothing that a file chooses, and never allocates more than the file is long. Protocols 0 to 5 are understood, from
Python 2 (byte strings become text, latin-1) and Python 3. It is also leaner: array bytes go from the file into the
array once, and arrays that nobody wants (momentum) are passed over on disk.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from stat import S_ISREG
from typing import Any, BinaryIO

import numpy as np

from roiline.core.errors import DataError, RoilineError
from roiline.core.pickle_machine import Machine
from roiline.core.pickle_names import MalformedError, RefusedError
from roiline.core.signatures import HEAD_BYTES, recognise_content, recognise_plain_text

MAX_DEPTH = 100
"""How deep containers may be nested in each other."""

_MAX_SHARED = 10_000_000  # values that a walk over the result may meet, where sharing makes it look larger than it is
_LEAVES = (str, bytes, int, float, bool, type(None), complex, np.ndarray, np.generic, bytearray, set, frozenset)


def read_pickle(
    path: str | Path,
    *,
    kind: str = "pickle",
    error: type[RoilineError] = DataError,
    skip_key: Callable[[str], bool] | None = None,
) -> object:
    """Reads a pickle file into plain data.

    Ordered dictionaries become `dict`, byte strings of Python 2 `str`, byte arrays `bytes`; arrays are read-only.

    Args:
        path: the file.
        kind: what the file should be, for messages ("weights file").
        error: the class of the error that is raised.
        skip_key: names dictionary entries to leave out; their arrays are not even read where the file allows it.

    Raises:
        RoilineError: of the class `error`, when the file cannot be read, is something else, is damaged, or asks for
            anything but data.
    """
    try:
        status = Path(path).stat()
        if not S_ISREG(status.st_mode):
            raise error(f"{path}: not a regular file; give the path of a {kind}")
        with open(path, "rb") as stream:
            return _load(stream, status.st_size, str(path), kind, error, skip_key)
    except OSError as exc:
        raise error(f"{path}: cannot read this {kind}: {exc.strerror or exc}") from exc


def loads_pickle(
    data: bytes,
    *,
    kind: str = "pickle",
    source: str = "<bytes>",
    error: type[RoilineError] = DataError,
    skip_key: Callable[[str], bool] | None = None,
) -> object:
    """Reads a pickle that is in memory; see `read_pickle`. `source` names it in messages."""
    return _load(io.BytesIO(data), len(data), source, kind, error, skip_key)


def _load(
    stream: BinaryIO,
    size: int,
    source: str,
    kind: str,
    error: type[RoilineError],
    skip_key: Callable[[str], bool] | None,
) -> object:
    head = stream.read(HEAD_BYTES)
    content = recognise_content(head)
    if content is not None:
        raise error(f"{source}: expected a {kind}, got {content}")
    stream.seek(0)
    machine = Machine(stream, size, skip_key)
    try:
        value = machine.run()
        _check_tree(value, _MAX_SHARED + 16 * size)
    except RefusedError as exc:
        raise error(f"{source}: this {kind} {exc}") from None
    except MalformedError as exc:
        text = recognise_plain_text(head)
        if text is not None:
            raise error(f"{source}: expected a {kind}, got {text}") from None
        raise error(f"{source}: damaged or not a {kind}: {exc} (byte {machine.position} of {size})") from None
    rest = size - machine.position
    if rest:
        raise error(f"{source}: {rest} bytes follow the end of this {kind}: it is damaged or holds several pickles")
    return value


def _check_tree(root: object, max_values: int) -> None:
    """Makes sure that walking the result ends: no cycles, bounded depth and size, and only plain data in it.

    Sizes count shared parts as often as they are met, as a recursive reader would.
    """
    known: dict[int, tuple[int, int]] = {}  # id of a container -> (values below it, depth below it)
    opened: list[tuple[Any, Iterator[Any], list[int]]] = []
    entered: set[int] = set()
    totals = [0, 0]
    pending: Iterator[Any] = iter((root,))
    while True:
        for value in pending:
            if not isinstance(value, dict | list | tuple):
                if not isinstance(value, _LEAVES):
                    raise RefusedError("ends with an unfinished object in it")
                totals[0] += 1
                continue
            below = known.get(id(value))
            if below is None:
                if id(value) in entered:
                    raise RefusedError("holds a container that contains itself")
                if len(opened) > MAX_DEPTH:
                    raise RefusedError(f"nests containers more than {MAX_DEPTH} deep")
                entered.add(id(value))
                opened.append((value, pending, totals))
                totals, pending = [0, 0], iter(value.values() if isinstance(value, dict) else value)
                break
            totals[0] += below[0] + 1
            totals[1] = max(totals[1], below[1] + 1)
        else:
            if totals[0] > max_values or totals[1] > MAX_DEPTH:
                raise RefusedError("multiplies its own content by sharing (a decompression bomb)")
            if not opened:
                return
            value, pending, outer = opened.pop()
            known[id(value)] = (totals[0], totals[1])
            outer[0] += totals[0] + 1
            outer[1] = max(outer[1], totals[1] + 1)
            totals = outer
