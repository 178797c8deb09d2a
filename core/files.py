"""Durable files: whole or absent after a power cut, never half; and the lock that keeps two runs out of one folder.

A file is written under a temporary name beside its place, flushed to the disk, renamed, and its folder flushed. A lock is the kernel's
(`flock`): it ends with the process that holds it, however that ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from roiline.core.errors import DataError, UsageError

TEMPORARY_SUFFIX = ".part"


@contextlib.contextmanager
def durable_file(path: Path) -> Iterator[IO[bytes]]:
    """Opens a temporary file beside `path` for writing, and puts it in place when the block ends without an error.

    After an error nothing is left behind. The temporary name holds the process id, so that two processes never share one.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}{TEMPORARY_SUFFIX}")
    try:
        with temporary.open("wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_durable(path: Path, *chunks: bytes | memoryview) -> None:
    """Writes `chunks` one after another as the whole content of `path`."""
    with durable_file(path) as stream:
        for chunk in chunks:
            stream.write(chunk)


def write_json(path: Path, value: object) -> None:
    """Writes `value` as indented JSON; equal values give equal bytes."""
    write_durable(path, (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode())


def read_json_object(path: Path, *, format_version: int) -> dict[str, Any]:
    """Reads a JSON object of ours.

    Raises:
        DataError: the file is absent, not JSON, not an object, or of another format version.
    """
    try:
        plain = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file") from error
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path}: cannot be read as JSON ({error})") from error
    if not isinstance(plain, dict):
        raise DataError(f"{path}: expected a JSON object, got {type(plain).__name__}")
    if plain.get("format_version") != format_version:
        got = plain.get("format_version")
        raise DataError(f"{path}: has format version {got!r}, this roiline reads {format_version}")
    return plain


def sync_folder(folder: Path) -> None:
    """Flushes a folder's entries to the disk, so that a rename in it survives a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256_of_file(path: Path) -> str:
    """Returns the SHA-256 of a file's content as hexadecimal text."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def remove_temporaries(folder: Path) -> None:
    """Removes the temporary files that killed writers left in `folder`."""
    for path in folder.glob(f".*{TEMPORARY_SUFFIX}"):
        path.unlink(missing_ok=True)


class FolderLock:
    """Holds a folder for one process at a time, through `.lock` in it; the file stays, the hold does not outlive the process."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / ".lock"
        self._descriptor: int | None = None

    def __enter__(self) -> FolderLock:
        """Takes the lock.

        Raises:
            UsageError: another process holds it.
        """
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.read(descriptor, 32).decode(errors="replace").strip()
            os.close(descriptor)
            raise UsageError(
                f"{self.path.parent}: another run (process {holder or 'unknown'}) is writing here; wait for it, or choose another folder"
            ) from error
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
        self._descriptor = descriptor
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
