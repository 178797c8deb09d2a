"""What the JPEG decoder says of damaged files: on the standard error of the process, without a name, while it fills what it cannot read.

While pictures are decoded the standard error goes to a file in memory. A picture during whose decoding something was said is decoded
once more with no other beside it: what is said then is said of that picture. So the answer does not depend on what other threads
do. What is no complaint of the decoder goes on to the standard error as before.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_STDERR = 2
_FIRST_DESCRIPTOR = 10  # beyond the standard ones, also in a process that was started without some of these
_COMPLAINTS = (b"Corrupt JPEG data", b"Premature end of JPEG")


class DecoderWords:
    """Listens to the decoder; one for a process, shared by the threads that decode."""

    def __init__(self) -> None:
        self._file = _move_up(os.memfd_create("decoder-words"))
        try:
            self._stderr = fcntl.fcntl(_STDERR, fcntl.F_DUPFD_CLOEXEC, _FIRST_DESCRIPTOR)
        except OSError:  # the process was started without one
            self._stderr = _move_up(os.open(os.devnull, os.O_WRONLY))
        self._inside = 0
        self._alone = False
        self._waiting = 0
        self._changed = threading.Condition()

    def listen(self, decode: Callable[[], T]) -> tuple[T, str | None]:
        """Calls `decode`, and returns its answer and what the decoder complained of meanwhile; None: nothing."""
        answer, words = self._call(decode, alone=False)
        return (answer, None) if words is None else self._call(decode, alone=True)

    def close(self) -> None:
        """Gives the descriptors back; nobody may be decoding."""
        os.close(self._file)
        os.close(self._stderr)

    def _call(self, decode: Callable[[], T], *, alone: bool) -> tuple[T, str | None]:
        start = self._enter(alone)
        words = None
        try:
            answer = decode()
        finally:
            words = self._leave(start)
        return answer, words

    def _enter(self, alone: bool) -> int:
        """Waits until others do not hinder, and returns how much has been said before."""
        with self._changed:
            self._waiting += alone
            while self._alone or (self._inside if alone else self._waiting):
                self._changed.wait()
            self._waiting -= alone
            self._inside += 1
            self._alone = alone
            if self._inside > 1:
                return os.fstat(self._file).st_size
            os.dup2(self._file, _STDERR)
            return 0  # whoever left last has emptied the file

    def _leave(self, start: int) -> str | None:
        with self._changed:
            self._inside -= 1
            self._alone = False
            if self._inside == 0:
                os.dup2(self._stderr, _STDERR)  # before looking: what others say until now is in the file too
            size = os.fstat(self._file).st_size
            said = os.pread(self._file, size - start, start).splitlines() if size > start else []
            if self._inside == 0:
                self._hand_on(size)
            self._changed.notify_all()
        if not said:
            return None
        complaints = dict.fromkeys(line for line in said if line.startswith(_COMPLAINTS))
        return "; ".join(line.decode(errors="replace") for line in complaints) or None

    def _hand_on(self, size: int) -> None:
        """Writes what is no complaint of the `size` bytes in the file to the standard error, and empties it."""
        if not size:
            return
        lines = os.pread(self._file, size, 0).splitlines(keepends=True)
        with contextlib.suppress(OSError):  # nobody reads it any more; the work goes on
            os.write(self._stderr, b"".join(line for line in lines if not line.startswith(_COMPLAINTS)))
        os.ftruncate(self._file, 0)
        os.lseek(self._file, 0, os.SEEK_SET)


def _move_up(descriptor: int) -> int:
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _FIRST_DESCRIPTOR)
    os.close(descriptor)
    return moved
