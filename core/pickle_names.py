"""Knows the few names that a pickle of data may mention, and makes the plain value that each stands for.

NumPy arrays, dtypes and numbers, byte strings, sets, ordered dictionaries and complex numbers: nothing is imported or
called because a file says so. Every function here is ours, bounded by the size of the file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, Protocol

import numpy as np

_DTYPE = re.compile(r"[<>|=]?(?:b1|[iu][1248]|f(?:2|4|8|16)|c(?:8|16|32)|[SU]\d{1,4})")
_RUNNERS = re.compile(
    "os|posix|nt|subprocess|commands|pty|sys|shutil|socket|webbrowser|builtins|__builtin__|runpy|importlib|code|types|"
    "operator|functools|ctypes|marshal|pickle|cPickle|cloudpickle|dill"
)

ATOMS = (str, int, float, bool, type(None))
"""What may be the key of a dictionary or the member of a set, with bytes."""


class MalformedError(Exception):
    """Says that the bytes are not a well-formed pickle."""


class RefusedError(Exception):
    """Says what a well-formed pickle asks for that data never needs; continues "this file ..."."""


class Budget(Protocol):
    """Counts the bytes that copying makes, and refuses when a file multiplies its content."""

    def spend(self, count: int) -> None:
        """Takes `count` bytes from the budget."""

    def encode(self, text: str) -> bytes:
        """Encodes text as latin-1 at the budget's cost."""


class Pending:
    """Stands for an array or a dtype between its creation and the BUILD that gives its content."""

    __slots__ = ("spec", "value")

    def __init__(self, spec: str | None) -> None:
        self.spec = spec  # the type text of a dtype; None for an array
        self.value: object = None


class Global:
    """Stands for one of the few names that a file may mention; `call` makes the value."""

    __slots__ = ("call", "name")

    def __init__(self, name: str, call: Callable[[Budget, tuple[Any, ...]], object]) -> None:
        self.name = name
        self.call = call


class Dropped:
    """Stands for an array that was passed over."""

    __slots__ = ()


DROPPED = Dropped()


def refuse_global(module: str, name: str) -> NoReturn:
    """Says that a file names something that is not data."""
    full = f"{module}.{name}"[:120]
    if _RUNNERS.fullmatch(module.split(".")[0]):
        raise RefusedError(f"tries to run code: it names {full!r}. Nothing was run; do not open it with other programs")
    if module.split(".")[0] == "torch":
        raise RefusedError(
            f"holds PyTorch objects ({full!r}); use `roiline export detectron2` or `roiline export torchvision`"
        )
    raise RefusedError(f"asks for the class {full!r}, which data has no need of; nothing was run")


# What a file may name. Each function gets the budget and the arguments and answers plain data.


def make_array(budget: Budget, content: Any, dtype: Any, shape: Any, order: Any) -> object:
    """Makes a read-only array over its bytes, without a copy; answers DROPPED for content that was passed over."""
    if content is DROPPED:
        return DROPPED
    if type(content) is str:
        content = budget.encode(content)
    if type(content) is list or not isinstance(dtype, np.dtype):
        raise RefusedError("holds an array of Python objects; only arrays of numbers and texts are read")
    if type(shape) is not tuple or len(shape) > 32 or any(type(n) is not int or n < 0 for n in shape):
        raise MalformedError("an array has a shape that is no shape")
    count = 1
    for length in shape:
        count *= length
    if count * dtype.itemsize != len(content) or order not in ("C", "F"):
        raise MalformedError(f"an array of shape {shape} and type {dtype} has {len(content)} bytes of content")
    if not count:
        return np.empty(shape, dtype)
    array = np.frombuffer(content, dtype).reshape(shape, order=order)
    array.flags.writeable = False
    return array


def add_entry(target: dict[Any, Any], key: Any, value: Any) -> None:
    """Sets an entry of a dictionary; keys in bytes become text, and only texts and numbers may be keys."""
    if type(key) is bytes:
        key = key.decode("latin-1")
        if key in target:
            raise MalformedError(f"the key {key!r} is there twice, as text and as bytes")
    if not isinstance(key, ATOMS):
        raise RefusedError(f"uses a {type(key).__name__} as the key of a dictionary; only texts and numbers may")
    if value is DROPPED:
        raise RefusedError(f"shares the array {key!r} with an entry that is left out")
    target[key] = value


def _start_array(_budget: Budget, arguments: tuple[Any, ...]) -> Pending:
    if len(arguments) != 3 or arguments[0] is not _NDARRAY:
        raise RefusedError("asks for an array of a foreign class")
    return Pending(None)


def _start_dtype(_budget: Budget, arguments: tuple[Any, ...]) -> Pending:
    spec = arguments[0]
    if type(spec) is bytes:
        spec = spec.decode("latin-1")
    if type(spec) is not str:
        raise RefusedError("holds a structured array; only arrays of numbers and texts are read")
    if spec.startswith(("O", "|O")):
        raise RefusedError("holds an array of Python objects; only arrays of numbers and texts are read")
    if not _DTYPE.fullmatch(spec):
        raise RefusedError(f"holds an array of type {spec[:20]!r}; only arrays of numbers and texts are read")
    return Pending(spec)


def finish_dtype(spec: str, state: tuple[Any, ...]) -> np.dtype[Any]:
    """Makes the dtype that a type text and the state that follows it describe; plain numbers and texts only."""
    byte_order = state[1].decode("latin-1") if type(state[1]) is bytes else state[1]
    if any(part is not None for part in state[2:5]) or byte_order not in ("<", ">", "|", "="):
        raise RefusedError("holds a structured array; only arrays of numbers and texts are read")
    dtype = np.dtype(spec)
    return dtype if byte_order in ("|", "=") else dtype.newbyteorder(">" if byte_order == ">" else "<")


def _make_scalar(budget: Budget, arguments: tuple[Any, ...]) -> object:
    dtype, content = arguments
    array = make_array(budget, content, dtype, (), "C")
    if not isinstance(array, np.ndarray):
        raise MalformedError("a number has no content")
    return array[()]


def _make_array_from_buffer(budget: Budget, arguments: tuple[Any, ...]) -> object:
    content, dtype, shape, order = arguments
    if type(content) not in (bytes, bytearray):
        raise MalformedError("an array has no content")
    return make_array(budget, content, dtype, shape, order)


def _encode_text(budget: Budget, arguments: tuple[Any, ...]) -> bytes:
    text, encoding = arguments
    if type(text) is not str or encoding not in ("latin1", "latin-1"):
        raise RefusedError("encodes text in a way that pickles do not")
    return budget.encode(text)


def _make_ordered(budget: Budget, arguments: tuple[Any, ...]) -> dict[Any, Any]:
    made: dict[Any, Any] = {}
    for pair in arguments[0] if arguments else ():
        budget.spend(16)
        if type(pair) not in (list, tuple) or len(pair) != 2:
            raise MalformedError("an ordered dictionary has an entry that is no pair")
        add_entry(made, *pair)
    return made


def _make_set(budget: Budget, arguments: tuple[Any, ...]) -> set[Any]:
    items = arguments[0] if arguments else []
    if type(items) not in (list, tuple):
        raise MalformedError("a set is made of something that is no list")
    budget.spend(8 * len(items))
    return check_members(set(), items)


def _make_frozen_set(budget: Budget, arguments: tuple[Any, ...]) -> frozenset[Any]:
    return frozenset(_make_set(budget, arguments))


def _make_bytes(_budget: Budget, arguments: tuple[Any, ...]) -> bytes:
    if arguments:
        raise RefusedError("makes bytes by a call")  # Python 3 writes empty bytes so, and only those
    return b""


def _make_bytearray(budget: Budget, arguments: tuple[Any, ...]) -> bytes:
    content = arguments[0] if arguments else b""
    if type(content) is str and arguments[1:] in (("latin-1",), ("latin1",)):
        return budget.encode(content)
    if type(content) is not bytes:
        raise RefusedError("makes bytes by a call")
    return content


def _make_complex(_budget: Budget, arguments: tuple[Any, ...]) -> complex:
    if len(arguments) != 2 or any(type(part) is not float for part in arguments):
        raise MalformedError("a complex number has parts that are no numbers")
    return complex(*arguments)


def _refuse_call(_budget: Budget, _arguments: tuple[Any, ...]) -> object:
    raise RefusedError("makes an array by a call")


def check_members(target: set[Any], items: list[Any] | tuple[Any, ...]) -> set[Any]:
    """Adds members to a set; only those whose hash is quick, since a file chooses them."""
    for item in items:
        if not isinstance(item, (*ATOMS, bytes)):
            raise RefusedError(f"holds a set of {type(item).__name__}; only texts and numbers may be in one")
        target.add(item)
    return target


def _list_globals() -> Iterator[tuple[tuple[str, str], Global]]:
    for core in ("numpy.core", "numpy._core"):
        yield (f"{core}.multiarray", "_reconstruct"), Global("_reconstruct", _start_array)
        yield (f"{core}.multiarray", "scalar"), Global("scalar", _make_scalar)
        yield (f"{core}.numeric", "_frombuffer"), Global("_frombuffer", _make_array_from_buffer)
    yield ("numpy", "dtype"), Global("dtype", _start_dtype)
    yield ("numpy", "ndarray"), _NDARRAY
    yield ("_codecs", "encode"), Global("encode", _encode_text)
    yield ("collections", "OrderedDict"), Global("OrderedDict", _make_ordered)
    for builtins in ("builtins", "__builtin__"):
        yield (builtins, "set"), Global("set", _make_set)
        yield (builtins, "frozenset"), Global("frozenset", _make_frozen_set)
        yield (builtins, "bytes"), Global("bytes", _make_bytes)
        yield (builtins, "bytearray"), Global("bytearray", _make_bytearray)
        yield (builtins, "complex"), Global("complex", _make_complex)


_NDARRAY = Global("ndarray", _refuse_call)
GLOBALS = dict(_list_globals())
"""What stands for each (module, name) that a file may mention."""
