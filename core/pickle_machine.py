"""Runs the instructions of a pickle over a stack, for the values of data only.

The machine allocates nothing that the file does not hold, keeps array bytes as they come from the disk, and passes
over the arrays of entries that nobody wants where the layout shows them in time.
"""

from __future__ import annotations

import codecs
import io
import struct
import warnings
from collections.abc import Callable
from typing import Any, BinaryIO, NoReturn

import numpy as np

from roiline.core.pickle_names import (
    DROPPED,
    GLOBALS,
    Global,
    MalformedError,
    Pending,
    RefusedError,
    add_entry,
    check_members,
    finish_dtype,
    make_array,
    refuse_global,
)

_CHECKED_READ = 1 << 16  # reads of at least so many bytes are compared with what the file still has
_CUT_SHORT = "it ends in the middle: half a download? Compare its size or checksum"
# What parsing untrusted bytes raises: indices past the stack, bad numbers, bad text, values of the wrong kind.
_PARSE_ERRORS = (IndexError, KeyError, ValueError, TypeError, OverflowError, struct.error)


class Machine:
    """Runs the opcodes of one pickle over a stack, a stack of stacks (marks) and a memo."""

    def __init__(self, stream: BinaryIO, size: int, skip_key: Callable[[str], bool] | None) -> None:
        self._stream = stream
        self.size = size
        self._skip_key = skip_key
        self._budget = size + 4096  # bytes that copying operations may still produce
        self.stack: list[Any] = []
        self.marks: list[list[Any]] = []
        self.memo: dict[int, Any] = {}

    @property
    def position(self) -> int:
        """Answers how many bytes were read."""
        return self._stream.tell()

    def run(self) -> object:
        """Runs to the end of the pickle and answers its value.

        Raises:
            MalformedError: when the bytes are no well-formed pickle.
            RefusedError: when they ask for more than data.
        """
        read, table = self._stream.read, OPCODES
        try:
            while True:
                code = read(1)
                if code == b".":
                    return self._finish()
                if not code:
                    raise MalformedError(_CUT_SHORT)
                handler = table.get(code)
                if handler is None:
                    raise MalformedError(f"{code!r} is no instruction of a pickle")
                handler(self)
        except _PARSE_ERRORS as exc:
            raise MalformedError(f"an instruction does not fit its operands ({type(exc).__name__})") from None

    def _finish(self) -> object:
        value = self.stack.pop()
        if self.stack or self.marks:
            raise MalformedError("values are left over at its end")
        return value

    # Reading

    def take(self, count: int) -> bytes:
        """Reads exactly `count` bytes."""
        if count < 0 or (count >= _CHECKED_READ and count > self.size - self._stream.tell()):
            raise MalformedError(f"it declares {count} bytes, more than it has: half a download?")
        data = self._stream.read(count)
        if len(data) != count:
            raise MalformedError(_CUT_SHORT)
        return data

    def take_line(self) -> bytes:
        """Reads to the end of a line, without its newline."""
        line = self._stream.readline()
        if not line.endswith(b"\n"):
            raise MalformedError("it ends in the middle of a line")
        return line[:-1]

    def take_size(self, width: int) -> int:
        """Reads an unsigned little-endian number of `width` bytes."""
        return int.from_bytes(self.take(width), "little")

    def spend(self, count: int) -> None:
        """Takes bytes that a copy makes from the budget, which is the length of the file."""
        self._budget -= count
        if self._budget < 0:
            raise RefusedError("multiplies its own content (a decompression bomb); it was not read further")

    def encode(self, text: str) -> bytes:
        """Encodes text as latin-1 at the budget's cost."""
        self.spend(len(text))
        return text.encode("latin-1")

    # The stack

    def pop_mark(self) -> list[Any]:
        """Takes all values above the last mark, and the mark."""
        items = self.stack
        self.stack = self.marks.pop()
        return items

    def push_marked(self) -> None:
        """Sets a mark."""
        self.marks.append(self.stack)
        self.stack = []

    def recall(self, index: int) -> None:
        """Pushes what the memo holds, in its finished form."""
        value = self.memo[index]
        if type(value) is Pending and value.value is not None:
            value = value.value
        self.stack.append(value)

    def push_bytes(self, count: int, *, text: bool) -> None:
        """Pushes a byte string; `text` decodes it (Python 2) unless it is the content of an array."""
        if count > 1 and self._fills_array():
            if self._skip_key is not None and self._is_skipped(self.marks[-1]):
                if count > self.size - self._stream.tell():
                    raise MalformedError(_CUT_SHORT)
                self._stream.seek(count, io.SEEK_CUR)
                self.stack.append(DROPPED)
            else:
                self.stack.append(self.take(count))
            return
        data = self.take(count)
        self.stack.append(data.decode("latin-1") if text else data)

    def _fills_array(self) -> bool:
        # An array is `ndarray MARK version shape dtype fortran CONTENT TUPLE BUILD`.
        below = self.marks[-1] if self.marks else None
        return len(self.stack) == 4 and bool(below) and type(below[-1]) is Pending  # type: ignore[index]

    def _is_skipped(self, below: list[Any]) -> bool:
        return len(below) > 1 and type(below[-2]) is str and self._skip_key is not None and self._skip_key(below[-2])

    # Containers

    def set_items(self, target: object, items: list[Any]) -> None:
        """Gives keys and values, one after the other, to a dictionary."""
        if type(target) is not dict or len(items) % 2:
            raise MalformedError("entries are given to something that is not a dictionary")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if self._skip_key is None or type(key) is not str or not self._skip_key(key):
                add_entry(target, key, value)

    def extend_list(self, target: object, items: list[Any]) -> None:
        """Gives items to a list."""
        if type(target) is not list:
            raise MalformedError("items are given to something that is not a list")
        target.extend(items)

    # Objects

    def find_global(self, module: str, name: str) -> None:
        """Pushes what stands for a name, or refuses it."""
        found = GLOBALS.get((module, name))
        if found is None:
            refuse_global(module, name)
        self.stack.append(found)

    def reduce(self) -> None:
        """Makes the value that a name and arguments describe."""
        arguments = self.stack.pop()
        function = self.stack.pop()
        if type(function) is not Global or type(arguments) is not tuple:
            raise MalformedError("it calls something that is not a function")
        self.stack.append(function.call(self, arguments))

    def build(self) -> None:
        """Finishes an array or a dtype with its state."""
        state = self.stack.pop()
        target = self.stack.pop()
        if isinstance(target, np.dtype):
            raise MalformedError("a dtype gets its state twice")
        if type(target) is not Pending or type(state) is not tuple:
            raise RefusedError("sets the state of an object; only arrays have any here")
        target.value = finish_dtype(target.spec, state) if target.spec else self._finish_array(state)
        self.stack.append(target.value)

    def _finish_array(self, state: tuple[Any, ...]) -> object:
        shape, dtype, fortran, content = state[-4:]
        return make_array(self, content, dtype, shape, "F" if fortran else "C")


# One function an opcode, where an expression is not enough.


def _read_int_line(m: Machine) -> None:
    line = m.take_line()
    m.stack.append({b"00": False, b"01": True}[line] if line in (b"00", b"01") else int(line))


def _read_quoted(m: Machine) -> None:
    line = m.take_line().strip()
    if len(line) < 2 or line[:1] != line[-1:] or line[:1] not in (b'"', b"'"):
        raise MalformedError("a text has no quotes")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # unknown escapes stay as they are, which is right here
        m.stack.append(codecs.escape_decode(line[1:-1])[0].decode("latin-1"))


def _read_global_line(m: Machine) -> None:
    module, name = m.take_line().decode("utf-8"), m.take_line().decode("utf-8")
    m.find_global(module, name)


def _read_stack_global(m: Machine) -> None:
    name, module = m.stack.pop(), m.stack.pop()
    if type(name) is not str or type(module) is not str:
        raise MalformedError("it names something that is no name")
    m.find_global(module, name)


def _read_instance_line(m: Machine) -> NoReturn:
    refuse_global(m.take_line().decode("utf-8"), m.take_line().decode("utf-8"))


def _refuse_object(m: Machine) -> NoReturn:
    for value in (*reversed(m.stack), *(m.marks[-1] if m.marks else ())):
        if type(value) is Global:
            raise RefusedError(f"makes an object of {value.name!r} in a way that data has no need of")
    raise RefusedError("makes an object; nothing was run")


def _refuse_external(_m: Machine) -> NoReturn:
    raise RefusedError("refers to objects outside itself (PyTorch does; Detectron's files never do)")


def _check_protocol(m: Machine) -> None:
    protocol = m.take_size(1)
    if protocol > 5:
        raise MalformedError(f"pickle protocol {protocol} is unknown (0 to 5 are read)")


def _check_frame(m: Machine) -> None:
    size = m.take_size(8)
    if size > m.size - m.position:
        raise MalformedError(f"it declares {size} bytes, more than it has: half a download?")


def _put(m: Machine, index: int) -> None:
    m.memo[index] = m.stack[-1]


def _tuple_of(m: Machine, count: int) -> None:
    if len(m.stack) < count:
        raise MalformedError("a tuple has too few values")
    m.stack[-count:] = [tuple(m.stack[-count:])]


def _tuple_marked(m: Machine) -> None:
    items = m.pop_mark()
    m.stack.append(tuple(items))


def _list_marked(m: Machine) -> None:
    items = m.pop_mark()
    m.stack.append(items)


def _dict_marked(m: Machine) -> None:
    items = m.pop_mark()
    made: dict[Any, Any] = {}
    m.set_items(made, items)
    m.stack.append(made)


def _set_item(m: Machine) -> None:
    value, key = m.stack.pop(), m.stack.pop()
    m.set_items(m.stack[-1], [key, value])


def _set_marked(m: Machine) -> None:
    items = m.pop_mark()
    m.set_items(m.stack[-1], items)


def _append(m: Machine) -> None:
    value = m.stack.pop()
    m.extend_list(m.stack[-1], [value])


def _append_marked(m: Machine) -> None:
    items = m.pop_mark()
    m.extend_list(m.stack[-1], items)


def _add_marked(m: Machine) -> None:
    items = m.pop_mark()
    target = m.stack[-1]
    if type(target) is not set:
        raise MalformedError("items are given to something that is not a set")
    check_members(target, items)


def _frozen_marked(m: Machine) -> None:
    items = m.pop_mark()
    m.stack.append(frozenset(check_members(set(), items)))


def _pop(m: Machine) -> None:
    if m.stack:
        m.stack.pop()
    else:
        m.pop_mark()


def _read_long(m: Machine, width: int) -> None:
    m.stack.append(int.from_bytes(m.take(m.take_size(width)), "little", signed=True))


def _read_text(m: Machine, width: int) -> None:
    m.stack.append(m.take(m.take_size(width)).decode("utf-8", "surrogatepass"))


OPCODES: dict[bytes, Callable[[Machine], None]] = {
    b"\x80": _check_protocol,
    b"\x95": _check_frame,
    b"(": Machine.push_marked,
    b"0": _pop,
    b"1": lambda m: m.pop_mark().clear(),
    b"2": lambda m: m.stack.append(m.stack[-1]),
    b"N": lambda m: m.stack.append(None),
    b"\x88": lambda m: m.stack.append(True),
    b"\x89": lambda m: m.stack.append(False),
    b"I": _read_int_line,
    b"J": lambda m: m.stack.append(int.from_bytes(m.take(4), "little", signed=True)),
    b"K": lambda m: m.stack.append(m.take(1)[0]),
    b"M": lambda m: m.stack.append(m.take_size(2)),
    b"L": lambda m: m.stack.append(int(m.take_line().rstrip(b"L"))),
    b"\x8a": lambda m: _read_long(m, 1),
    b"\x8b": lambda m: _read_long(m, 4),
    b"F": lambda m: m.stack.append(float(m.take_line())),
    b"G": lambda m: m.stack.append(struct.unpack(">d", m.take(8))[0]),
    b"S": _read_quoted,
    b"U": lambda m: m.push_bytes(m.take_size(1), text=True),
    b"T": lambda m: m.push_bytes(m.take_size(4), text=True),
    b"V": lambda m: m.stack.append(m.take_line().decode("raw-unicode-escape")),
    b"X": lambda m: _read_text(m, 4),
    b"\x8c": lambda m: _read_text(m, 1),
    b"\x8d": lambda m: _read_text(m, 8),
    b"C": lambda m: m.push_bytes(m.take_size(1), text=False),
    b"B": lambda m: m.push_bytes(m.take_size(4), text=False),
    b"\x8e": lambda m: m.push_bytes(m.take_size(8), text=False),
    b"\x96": lambda m: m.push_bytes(m.take_size(8), text=False),
    b")": lambda m: m.stack.append(()),
    b"t": _tuple_marked,
    b"\x85": lambda m: _tuple_of(m, 1),
    b"\x86": lambda m: _tuple_of(m, 2),
    b"\x87": lambda m: _tuple_of(m, 3),
    b"]": lambda m: m.stack.append([]),
    b"l": _list_marked,
    b"a": _append,
    b"e": _append_marked,
    b"}": lambda m: m.stack.append({}),
    b"d": _dict_marked,
    b"s": _set_item,
    b"u": _set_marked,
    b"\x8f": lambda m: m.stack.append(set()),
    b"\x90": _add_marked,
    b"\x91": _frozen_marked,
    b"g": lambda m: m.recall(int(m.take_line())),
    b"h": lambda m: m.recall(m.take(1)[0]),
    b"j": lambda m: m.recall(m.take_size(4)),
    b"p": lambda m: _put(m, int(m.take_line())),
    b"q": lambda m: _put(m, m.take(1)[0]),
    b"r": lambda m: _put(m, m.take_size(4)),
    b"\x94": lambda m: _put(m, len(m.memo)),
    b"c": _read_global_line,
    b"\x93": _read_stack_global,
    b"R": Machine.reduce,
    b"b": Machine.build,
    b"i": _read_instance_line,
    b"o": _refuse_object,
    b"\x81": _refuse_object,
    b"\x92": _refuse_object,
    b"P": _refuse_external,
    b"Q": _refuse_external,
    b"\x82": _refuse_external,
    b"\x83": _refuse_external,
    b"\x84": _refuse_external,
    b"\x97": _refuse_external,
    b"\x98": _refuse_external,
}
