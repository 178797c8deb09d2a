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

_BATCH = 1000  # items between two APPENDS or SETITEMS, as the standard pickler does: the reader's stack stays small


class PickleStream:
    """Writes one pickle to a binary stream: call one writing method for the one value, which may nest others."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._memo: dict[str, int] = {}
        self._frames: dict[str, tuple[bytes, bytes, bytes]] = {}
        self._empty: dict[tuple[str, tuple[int, ...]], bytes] = {}  # of arrays without elements, which most cells are
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

    def write_mapping(self, items: Iterable[tuple[str, T]], write_item: WriteItem[T]) -> None:
        """Writes a dict of text keys and any number of items; `write_item` writes one item."""
        stream = self._stream
        stream.write(pickle.EMPTY_DICT)
        in_batch = 0
        for key, item in items:
            if in_batch == 0:
                stream.write(pickle.MARK)
            self.write_text(key)
            write_item(item)
            in_batch = (in_batch + 1) % _BATCH
            if in_batch == 0:
                stream.write(pickle.SETITEMS)
        if in_batch:
            stream.write(pickle.SETITEMS)

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
            if in_batch == _BATCH:
                stream.write(pickle.APPENDS)
                in_batch = 0
        if in_batch:
            stream.write(pickle.APPENDS)

    def write_empty_lists(self, count: int) -> None:
        """Writes a list of `count` empty lists."""
        self._write(pickle.EMPTY_LIST)
        for start in range(0, count, _BATCH):
            self._write(pickle.MARK + pickle.EMPTY_LIST * min(_BATCH, count - start) + pickle.APPENDS)

    def write_text(self, text: str) -> None:
        """Writes a text."""
        self._write(_text_opcodes(text))

    def write_integer(self, value: int) -> None:
        """Writes an integer of any size."""
        self._write(_integer_opcodes(value))

    def write_id(self, value: int | str) -> None:
        """Writes an image id."""
        self._write(_text_opcodes(value) if isinstance(value, str) else _integer_opcodes(value))

    def write_bytes(self, value: bytes) -> None:
        """Writes a byte string."""
        encode = self._global("_codecs", "encode")
        self._write(encode + _text_opcodes(value.decode("latin1")) + _LATIN1)

    def write_array(self, values: NDArray[Any]) -> None:
        """Writes a NumPy array in C order."""
        key = (values.dtype.str, values.shape)
        if key in self._empty:
            self._write(self._empty[key])
            return
        ordered = np.ascontiguousarray(values)
        start, middle, end = self._frames.get(ordered.dtype.str) or self._make_frame(ordered.dtype)
        shape = b"".join(map(_integer_opcodes, ordered.shape))
        opcodes = start + shape + middle + _text_opcodes(ordered.tobytes().decode("latin1")) + end
        if not values.size and ordered.dtype.str in self._frames:
            self._empty[key] = opcodes
        self._write(opcodes)

    def _make_frame(self, dtype: np.dtype[Any]) -> tuple[bytes, bytes, bytes]:
        """Returns what comes before an array's shape, between shape and content, and after; kept once it only refers to what is known."""
        known = len(self._memo)
        zero, one = _integer_opcodes(0), _integer_opcodes(1)
        start = self._global("numpy.core.multiarray", "_reconstruct") + self._global("numpy", "ndarray")
        start += zero + pickle.TUPLE1 + self._global("_codecs", "encode") + _text_opcodes("b") + _LATIN1
        start += pickle.TUPLE3 + pickle.REDUCE + pickle.MARK + one + pickle.MARK
        middle = pickle.TUPLE + self._dtype(dtype) + pickle.NEWFALSE + self._global("_codecs", "encode")
        end = _LATIN1 + pickle.TUPLE + pickle.BUILD
        if len(self._memo) == known:
            self._frames[dtype.str] = (start, middle, end)
        return start, middle, end

    def _dtype(self, dtype: np.dtype[Any]) -> bytes:
        zero, one, minus = _integer_opcodes(0), _integer_opcodes(1), _integer_opcodes(-1)
        made = (
            self._global("numpy", "dtype") + _text_opcodes(dtype.str[1:]) + zero + one + pickle.TUPLE3 + pickle.REDUCE
        )
        state = pickle.MARK + _integer_opcodes(3) + _text_opcodes(dtype.str[0]) + pickle.NONE * 3 + minus + minus + zero
        return self._remembered(f"dtype {dtype.str}", made + state + pickle.TUPLE + pickle.BUILD)

    def _global(self, module: str, name: str) -> bytes:
        return self._remembered(f"global {module} {name}", pickle.GLOBAL + f"{module}\n{name}\n".encode())

    def _remembered(self, key: str, opcodes: bytes) -> bytes:
        """Returns `opcodes` the first time, and after that a reference to what they made."""
        number = self._memo.get(key)
        if number is not None:
            return pickle.BINGET + struct.pack("<B", number)
        self._memo[key] = len(self._memo)
        return opcodes + pickle.BINPUT + struct.pack("<B", self._memo[key])

    def _write(self, opcodes: bytes) -> None:
        self._stream.write(opcodes)


def _text_opcodes(text: str) -> bytes:
    encoded = text.encode("utf-8")
    return pickle.BINUNICODE + struct.pack("<I", len(encoded)) + encoded


_LATIN1 = _text_opcodes("latin1") + pickle.TUPLE2 + pickle.REDUCE  # closes a call of `_codecs.encode`


def _integer_opcodes(value: int) -> bytes:
    if 0 <= value < 1 << 8:
        return pickle.BININT1 + struct.pack("<B", value)
    if -(1 << 31) <= value < 1 << 31:
        return pickle.BININT + struct.pack("<i", value)
    encoded = pickle.encode_long(value)
    return pickle.LONG1 + struct.pack("<B", len(encoded)) + encoded
