"""Writes pickles piece by piece: protocol 2, arrays under the module names that NumPy had when the original programs were in use.

`pickle.dump` needs the whole result in memory, keeps a memo of every object, and with NumPy 2 names modules that older readers lack.
This writer emits the few opcodes that result files need, as they come; equal values give equal bytes. Byte strings are written as text
with `_codecs.encode(.., "latin1")`, the one form that both Python 2 and 3 read without being told an encoding.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable, Iterable
from typing import IO, Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")
WriteItem: TypeAlias = Callable[[T], None]

_LIST_BATCH = 1000  # items between two APPENDS, as the standard pickler does: the reader's stack stays small


class PickleStream:
    """Writes one pickle to a binary stream: call one writing method for the one value, which may nest others."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._memo: dict[str, int] = {}
        stream.write(pickle.PROTO + b"\x02")

    def close(self) -> None:
        """Ends the pickle; the stream stays open."""
        self._stream.write(pickle.STOP)

    def write_dict(self, items: Iterable[tuple[str, Callable[[], None]]]) -> None:
        """Writes a dict of text keys; each function writes its key's value."""
        self._stream.write(pickle.EMPTY_DICT + pickle.MARK)
        for key, write_value in items:
            self.write_text(key)
            write_value()
        self._stream.write(pickle.SETITEMS)

    def write_list(self, items: Iterable[T], write_item: WriteItem[T]) -> None:
        """Writes a list; `write_item` writes one item."""
        stream = self._stream
        stream.write(pickle.EMPTY_LIST)
        in_batch = 0
        for item in items:
            if in_batch == 0:
                stream.write(pickle.MARK)
            write_item(item)
            in_batch += 1
            if in_batch == _LIST_BATCH:
                stream.write(pickle.APPENDS)
                in_batch = 0
        if in_batch:
            stream.write(pickle.APPENDS)

    def write_empty_lists(self, count: int) -> None:
        """Writes a list of `count` empty lists."""
        self.write_list(range(count), lambda _: self._write(pickle.EMPTY_LIST))

    def write_text(self, text: str) -> None:
        """Writes a text."""
        encoded = text.encode("utf-8")
        self._write(pickle.BINUNICODE + struct.pack("<I", len(encoded)) + encoded)

    def write_integer(self, value: int) -> None:
        """Writes an integer of any size."""
        if 0 <= value < 1 << 8:
            self._write(pickle.BININT1 + struct.pack("<B", value))
        elif -(1 << 31) <= value < 1 << 31:
            self._write(pickle.BININT + struct.pack("<i", value))
        else:
            encoded = pickle.encode_long(value)
            self._write(pickle.LONG1 + struct.pack("<B", len(encoded)) + encoded)

    def write_id(self, value: int | str) -> None:
        """Writes an image id."""
        if isinstance(value, str):
            self.write_text(value)
        else:
            self.write_integer(value)

    def write_array(self, values: NDArray[Any]) -> None:
        """Writes a NumPy array in C order."""
        ordered = np.ascontiguousarray(values)
        self._write_global("numpy.core.multiarray", "_reconstruct")
        self._write_global("numpy", "ndarray")
        self._write(pickle.BININT1 + b"\x00" + pickle.TUPLE1)
        self._write_bytes(b"b")
        self._write(pickle.TUPLE3 + pickle.REDUCE + pickle.MARK + pickle.BININT1 + b"\x01" + pickle.MARK)
        for size in ordered.shape:
            self.write_integer(size)
        self._write(pickle.TUPLE)
        self._write_dtype(ordered.dtype)
        self._write(pickle.NEWFALSE)
        self._write_bytes(ordered.tobytes())
        self._write(pickle.TUPLE + pickle.BUILD)

    def _write_dtype(self, dtype: np.dtype[Any]) -> None:
        key = f"dtype {dtype.str}"
        if self._write_known(key):
            return
        self._write_global("numpy", "dtype")
        self.write_text(dtype.str[1:])
        self._write(pickle.BININT1 + b"\x00" + pickle.BININT1 + b"\x01" + pickle.TUPLE3 + pickle.REDUCE)
        self._write(pickle.MARK + pickle.BININT1 + b"\x03")
        self.write_text(dtype.str[0])
        self._write(pickle.NONE * 3)
        self.write_integer(-1)
        self.write_integer(-1)
        self._write(pickle.BININT1 + b"\x00" + pickle.TUPLE + pickle.BUILD)
        self._remember(key)

    def _write_bytes(self, content: bytes) -> None:
        self._write_global("_codecs", "encode")
        self.write_text(content.decode("latin1"))
        self.write_text("latin1")
        self._write(pickle.TUPLE2 + pickle.REDUCE)

    def _write_global(self, module: str, name: str) -> None:
        key = f"global {module} {name}"
        if not self._write_known(key):
            self._write(pickle.GLOBAL + f"{module}\n{name}\n".encode())
            self._remember(key)

    def _write_known(self, key: str) -> bool:
        """Writes a reference to what was remembered under `key`; False if nothing was."""
        number = self._memo.get(key)
        if number is not None:
            self._write(pickle.BINGET + struct.pack("<B", number))
        return number is not None

    def _remember(self, key: str) -> None:
        self._memo[key] = len(self._memo)
        self._write(pickle.BINPUT + struct.pack("<B", self._memo[key]))

    def _write(self, opcodes: bytes) -> None:
        self._stream.write(opcodes)
