"""Walking the fields of a protobuf message: what its bytes say, and a bound on everything they claim.

No schema and no library: a message is a run of (field number, wire type, value). Lengths are held against what is left, numbers against
64 bits, and nothing nests by itself (the caller opens the messages that it knows), so damaged bytes end in an error and not in a hang.
Source of the encoding: the public Protocol Buffers specification.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_FIXED_BYTES = {FIXED64: 8, FIXED32: 4}
_FLOAT_ENTRY = 5  # a tag byte and four of the value, for field numbers 1 to 15
_FIRST_WINDOW = 64


class ProtobufError(Exception):
    """Says at which byte a message stops being one."""


class Field(NamedTuple):
    """Is one entry: `value` holds the number of wire type 0, `data` the bytes of every other."""

    number: int
    wire: int
    value: int
    data: memoryview


_NO_BYTES = memoryview(b"")


def walk_fields(message: memoryview, *, float_field: int = 0) -> Iterator[Field]:
    """Yields the entries of a message in order.

    Floats of `float_field` (1 to 15) that stand one after another come as one entry whose data are all their values: Caffe2 writes
    weights with a tag before every float, millions of them.

    Raises:
        ProtobufError: it is cut off, or its bytes are no message.
    """
    position, size = 0, len(message)
    float_tag = (float_field << 3) | FIXED32
    while position < size:
        if float_field and message[position] == float_tag and (run := _count_floats(message, position, float_tag)):
            end = position + run * _FLOAT_ENTRY
            yield Field(float_field, FIXED32, 0, _join_floats(message[position:end], run))
            position = end
            continue
        start = position
        tag, position = _read_varint(message, position)
        number, wire = tag >> 3, tag & 7
        if not 0 < number < 1 << 29:
            raise ProtobufError(f"byte {start}: {number} is no field number")
        if wire == VARINT:
            value, position = _read_varint(message, position)
            yield Field(number, wire, value, _NO_BYTES)
            continue
        if wire == BYTES:
            length, position = _read_varint(message, position)
        elif wire in _FIXED_BYTES:
            length = _FIXED_BYTES[wire]
        else:
            raise ProtobufError(f"byte {start}: wire type {wire} does not occur in such files")
        if length > size - position:
            raise ProtobufError(
                f"byte {start}: an entry of {length} bytes where {size - position} are left: was it cut off?"
            )
        yield Field(number, wire, 0, message[position : position + length])
        position += length


def read_packed_ints(data: memoryview) -> list[int]:
    """Returns the signed numbers of a packed entry."""
    numbers, position = [], 0
    while position < len(data):
        value, position = _read_varint(data, position)
        numbers.append(signed(value))
    return numbers


def signed(value: int) -> int:
    """Returns a 64-bit number as the signed one that it stands for."""
    return value - (1 << 64) if value >= 1 << 63 else value


def _read_varint(message: memoryview, position: int) -> tuple[int, int]:
    """Returns an unsigned number of at most 64 bits, and the position behind it."""
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(message):
            raise ProtobufError(f"byte {position}: it ends inside a number")
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80 and value < 1 << 64:
            return value, position
    raise ProtobufError(f"byte {position}: a number has more than 64 bits")


def _count_floats(message: memoryview, position: int, tag: int) -> int:
    """Returns how many whole float entries follow each other; looks in growing windows, so its cost follows their number."""
    count, window = 0, _FIRST_WINDOW
    while whole := min(window, (len(message) - position) // _FLOAT_ENTRY):
        entries = np.frombuffer(message[position : position + whole * _FLOAT_ENTRY], np.uint8)
        others = np.flatnonzero(entries[::_FLOAT_ENTRY] != tag)
        if others.size:
            return count + int(others[0])
        count, position, window = count + whole, position + whole * _FLOAT_ENTRY, window * 4
    return count


def _join_floats(entries: memoryview, count: int) -> memoryview:
    """Returns the values of float entries without their tags."""
    rows = np.frombuffer(entries, np.uint8).reshape(count, _FLOAT_ENTRY)
    return memoryview(rows[:, 1:].tobytes())
