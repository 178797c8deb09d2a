"""Durable files: whole or absent after a power cut, never half; and the lock that keeps two runs out of one folder.

A file is written under a temporary name beside its place, flushed to the disk, renamed, and its folder flushed. A lock is the kernel's
(`flock`): it ends with the process that holds it, however that ends; so a temporary file that nobody holds was left by a killed writer.
Files that were given are opened here too: only regular ones, since a pipe or a device need never end.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import hashlib
import itertools
import json
import os
import platform
import stat
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Any, BinaryIO

from roiline.core.errors import DataError, OutputError, RoilineError, UsageError

TEMPORARY_SUFFIX = ".part"
_TEMPORARY_PREFIX = ".roiline-"
LOCK_FILE = ".lock"
_LOCK_ATTEMPTS = 5
_LOCK_WAIT_S = 0.05
_NUMBERS = itertools.count()
_JSON_LIMIT = 1 << 30
_PART = 1 << 24
YAML_LIMIT = 1 << 26
"""The most bytes of a configuration: far above any that a person or a program writes."""

_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISSOCK, "a socket"),
)
_ADVICE = {
    errno.ENOSPC: "; make room and run it again",
    errno.EDQUOT: "; make room and run it again",
    errno.EACCES: "; choose a place that you may write to",
    errno.EPERM: "; choose a place that you may write to",
    errno.EROFS: "; choose a place that you may write to",
    errno.ENOLCK: "; its file system has no locks: choose another place",
}


# --- what was given --------------------------------------------------------------------------------------------------


def open_input(path: str | Path, *, error: type[RoilineError] = DataError) -> BinaryIO:
    """Opens a file that was given, for reading; the caller closes it.

    Raises:
        RoilineError: of the class `error`, when the file is absent, may not be read, or is a folder, a pipe or a device.
    """
    try:
        mode = os.stat(path).st_mode
        if not stat.S_ISREG(mode):
            raise error(f"{path}: expected a file, this is {_name_kind(mode)}")
        return open(path, "rb")
    except FileNotFoundError as failure:
        raise error(f"{path}: no such file") from failure
    except (OSError, ValueError) as failure:  # ValueError: a zero byte in the path
        raise error(f"{path}: cannot be read ({getattr(failure, 'strerror', None) or failure})") from failure


def read_input(path: str | Path, *, error: type[RoilineError] = DataError, limit: int | None = None) -> bytes:
    """Returns the content of a file that was given; `limit` is the most bytes that such a file can sensibly have.

    Raises:
        RoilineError: of the class `error`, as of `open_input`, and when the file is longer than `limit`.
    """
    with open_input(path, error=error) as stream:
        try:
            content = stream.read() if limit is None else _read_at_most(stream, limit + 1)
        except OSError as failure:
            raise error(f"{path}: cannot be read ({failure.strerror})") from failure
    if limit is not None and len(content) > limit:
        raise error(
            f"{path}: has more than {limit / 2**20:g} MiB, too much for what it should be; was another file meant?"
        )
    return content


def _read_at_most(stream: BinaryIO, size: int) -> bytes:
    """Reads up to `size` bytes; memory is taken for what there is, where `read(size)` would take all of it at once."""
    parts = []
    while size > 0 and (part := stream.read(min(size, _PART))):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _name_kind(mode: int) -> str:
    return next((name for test, name in _KINDS if test(mode)), "no regular file")


# --- what is written -------------------------------------------------------------------------------------------------


def check_output(out: Path, inputs: Iterable[str | Path]) -> None:
    """Refuses a file to write that would replace something that was given, or that stands where no file can.

    Raises:
        UsageError: `out` is one of `inputs` (through whatever links), or a folder, a pipe or a device.
    """
    if not os.path.exists(out):
        return
    mode = os.stat(out).st_mode
    if not stat.S_ISREG(mode):
        raise UsageError(f"-o {out}: expected a file to write, this is {_name_kind(mode)}")
    for given in inputs:
        if os.path.exists(given) and os.path.samefile(out, given):
            raise UsageError(
                f"-o {out}: is a file that this command reads ({given}); writing would destroy it: name another"
            )


def make_folder(folder: Path) -> None:
    """Makes a folder for results, and those above it, where they are not there yet.

    Raises:
        UsageError: a file stands there, or above it.
        OutputError: it cannot be made for another reason.
    """
    with _failures_named(folder, "be made a folder"):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as failure:
            raise UsageError(f"{folder}: cannot be made a folder ({failure.strerror})") from failure


@contextlib.contextmanager
def durable_file(path: Path) -> Iterator[IO[bytes]]:
    """Opens a temporary file beside `path` for writing, and puts it in place when the block ends without an error.

    After an error nothing is left behind. Where `path` is a link, what it points to is replaced, not the link. Temporary files that
    killed writers left in the folder are removed.

    Raises:
        OutputError: the file cannot be written, or what stands there is no regular file.
    """
    target = Path(os.path.realpath(path))
    with _failures_named(path):
        _refuse_irregular(path, target)
        _remove_leftovers(target.parent)
        stream = _open_temporary(target.parent)
    temporary = Path(stream.name)
    try:
        with _failures_named(path, foreign=True), stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
            with _failures_named(path):
                temporary.replace(target)  # while it is held, else it could be taken for a leftover
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    with _failures_named(path):
        sync_folder(target.parent)


@contextlib.contextmanager
def _failures_named(path: Path, what: str = "be written", *, foreign: bool = False) -> Iterator[None]:
    """Turns operating system errors into ones that name `path`; with `foreign`, those that name a file of their own pass."""
    try:
        yield
    except RoilineError:
        raise
    except OSError as failure:
        if foreign and failure.filename is not None:
            raise
        raise _output_error(path, failure, what) from failure


def _output_error(path: Path, failure: OSError, what: str) -> OutputError:
    error = OutputError(f"{path}: cannot {what} ({failure.strerror or failure}){_ADVICE.get(failure.errno or 0, '')}")
    error.errno = failure.errno
    return error


def _refuse_irregular(path: Path, target: Path) -> None:
    if os.path.exists(target) and not target.is_file():
        raise OutputError(f"{path}: cannot be written, this is {_name_kind(target.stat().st_mode)}")


def _open_temporary(folder: Path) -> IO[bytes]:
    """Makes a temporary file and holds it. Its name is short, so that every name that a folder can have can be written."""
    while True:
        path = folder / f"{_TEMPORARY_PREFIX}{os.getpid()}-{next(_NUMBERS)}{TEMPORARY_SUFFIX}"
        try:
            stream = path.open("xb")
        except FileExistsError:  # left by a process that had the same number
            continue
        if _hold(stream) and path.exists():
            return stream
        stream.close()  # another process took it for a leftover before it was held


def _hold(stream: IO[bytes]) -> bool:
    """Takes the lock of a file just made; False where another process has it. Without locks leftovers cannot be told, and stay."""
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


@functools.lru_cache(maxsize=1024)
def _remove_leftovers(folder: Path) -> None:
    """Removes the temporary files in `folder` that no process holds; once a folder, since it may hold a great many files."""
    for path in folder.glob(f"{_TEMPORARY_PREFIX}*{TEMPORARY_SUFFIX}"):
        with contextlib.suppress(OSError), path.open("r+b") as stream:  # held, or removed by another process meanwhile
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()


def write_durable(path: Path, *chunks: bytes | memoryview) -> None:
    """Writes `chunks` one after another as the whole content of `path`."""
    with durable_file(path) as stream:
        for chunk in chunks:
            stream.write(chunk)


def write_json(path: Path, value: object) -> None:
    """Writes `value` as indented JSON; equal values give equal bytes.

    Raises:
        OutputError: the file cannot be written.
        ValueError: a number is not finite, which JSON cannot say.
    """
    write_durable(path, (json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode())


def read_json_object(path: Path, *, format_version: int) -> dict[str, Any]:
    """Reads a JSON object of ours.

    Raises:
        DataError: the file is absent, not JSON, not an object, or of another format version.
    """
    content = read_input(path, limit=_JSON_LIMIT)
    try:
        plain = json.loads(content)
    except (ValueError, RecursionError) as error:
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
    """Removes the temporary files that killed writers left in `folder`, a folder that is all ours.

    Raises:
        OutputError: one cannot be removed.
    """
    for path in folder.glob(f".*{TEMPORARY_SUFFIX}"):
        with _failures_named(path, "be removed"):
            path.unlink(missing_ok=True)


class FolderLock:
    """Holds a folder for one process at a time, through `.lock` in it; the hold does not outlive the process, however that ends.

    The folder is made where it is not there. What the lock made goes with it: its file, and folders that are still empty.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / LOCK_FILE
        self._descriptor: int | None = None
        self._made: list[Path] = []

    def __enter__(self) -> FolderLock:
        """Takes the lock.

        Raises:
            UsageError: another process holds it, or a file stands where the folder belongs.
            OutputError: the folder cannot be written to.
        """
        folder = self.path.parent
        self._made = [one for one in (folder, *folder.parents) if not os.path.lexists(one)]
        try:
            with _failures_named(self.path):
                while self._descriptor is None:
                    make_folder(folder)
                    self._descriptor = self._take()
        except BaseException:
            self._remove_made()
            raise
        return self

    def _take(self) -> int | None:
        """Returns the held descriptor, or None where the file was removed by its last holder before it could be held."""
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except FileNotFoundError:  # the folder went with its last holder
            return None
        try:
            self._hold(descriptor)
            if not _is_at(descriptor, self.path):
                os.close(descriptor)
                return None
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"{os.getpid()} {platform.node()}\n".encode())
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _hold(self, descriptor: int) -> None:
        for _ in range(_LOCK_ATTEMPTS):
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            time.sleep(_LOCK_WAIT_S)  # who only looks whether it is held holds it for a moment
        raise UsageError(
            f"{self.path.parent}: another run ({_read_holder(descriptor)}) is writing here; wait for it, or choose another folder"
        )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._descriptor is not None:
            with contextlib.suppress(
                OSError
            ):  # a folder that has gone, or that nobody may write to any more, keeps its file
                self.path.unlink()
            os.close(self._descriptor)
            self._descriptor = None
        self._remove_made()

    def _remove_made(self) -> None:
        for folder in self._made:
            try:
                folder.rmdir()
            except OSError:
                return  # something lies in it
        self._made = []


def lock_holder(folder: Path) -> str | None:
    """Says which process holds a folder, as `process 4711` (with its machine, where that is another); None where none does."""
    try:
        descriptor = os.open(folder / LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _read_holder(descriptor)
    except OSError:
        return None  # where there are no locks nobody can hold one
    finally:
        os.close(descriptor)
    return None


def _read_holder(descriptor: int) -> str:
    number, _, machine = os.pread(descriptor, 300, 0).decode(errors="replace").strip().partition(" ")
    where = f" on {machine}" if machine and machine != platform.node() else ""
    return f"process {number or 'unknown'}{where}"


def _is_at(descriptor: int, path: Path) -> bool:
    """Says whether an open file is the one that lies at `path`."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False
