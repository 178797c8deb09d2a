"""Plain JSON for frozen dataclasses: what is written can be read back, and what was damaged is refused by name.

One decoder serves the model's specification, run manifests and shard headers. It knows dataclasses, `tuple[X, ...]`, fixed tuples,
`Mapping[str, X]`, `Literal`, unions, and the JSON scalars; integers are accepted where a float is expected, nothing else is converted.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
import types
from collections.abc import Mapping
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from roiline.core.errors import DataError, RoilineError
from roiline.core.quantities import is_integer

T = TypeVar("T")


def plain_from_record(value: object) -> Any:
    """Returns `value` as JSON types: dataclasses become dicts in field order, tuples become lists."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain_from_record(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain_from_record(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_from_record(item) for item in value]
    return value


def record_from_plain(kind: type[T], plain: object, *, where: str, error: type[RoilineError] = DataError) -> T:
    """Builds the dataclass `kind` from decoded JSON.

    Raises:
        error: a field is missing, unknown or of another type; the message names its path below `where`.
    """
    decoded: T = _decode(kind, plain, where, error)
    return decoded


def _decode(kind: Any, plain: Any, where: str, error: type[RoilineError]) -> Any:
    if dataclasses.is_dataclass(kind):
        return _decode_dataclass(kind, plain, where, error)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _decode_union(arguments, plain, where, error)
    if origin is Literal:
        if plain in arguments:
            return plain
        raise error(f"{where}: expected one of {', '.join(map(repr, arguments))}, got {plain!r}")
    if origin is tuple:
        return _decode_tuple(arguments, plain, where, error)
    if origin in (Mapping, dict):
        _expect(isinstance(plain, dict), "an object", plain, where, error)
        return {key: _decode(arguments[1], item, f"{where}.{key}", error) for key, item in plain.items()}
    if kind is float:
        _expect(_is_finite(plain), "a finite number", plain, where, error)
        return float(plain)
    if kind is int:
        _expect(is_integer(plain), "an integer", plain, where, error)
        return plain
    if kind in (str, bool, types.NoneType):
        _expect(isinstance(plain, kind), kind.__name__, plain, where, error)
        return plain
    raise TypeError(f"no JSON form for {kind!r}")


def _decode_dataclass(kind: Any, plain: Any, where: str, error: type[RoilineError]) -> Any:
    _expect(isinstance(plain, dict), "an object", plain, where, error)
    hints = _type_hints(kind)
    fields = {field.name: field for field in dataclasses.fields(kind)}
    unknown = sorted(set(plain) - set(fields))
    missing = sorted(
        name
        for name, field in fields.items()
        if name not in plain and field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    )
    if unknown or missing:
        raise error(f"{where}: missing fields {missing}, unknown fields {unknown}")
    return kind(**{name: _decode(hints[name], item, f"{where}.{name}", error) for name, item in plain.items()})


def _decode_union(kinds: tuple[Any, ...], plain: Any, where: str, error: type[RoilineError]) -> Any:
    failures = []
    for kind in kinds:
        try:
            return _decode(kind, plain, where, error)
        except error as failure:
            failures.append(str(failure))
    raise error("; or ".join(failures))


def _decode_tuple(kinds: tuple[Any, ...], plain: Any, where: str, error: type[RoilineError]) -> Any:
    _expect(isinstance(plain, list), "a list", plain, where, error)
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        if _is_taken_whole(plain, _types_taken_whole(kinds[0])):  # a column of numbers or names may be very long
            return tuple(plain)
        return tuple(_decode(kinds[0], item, f"{where}[{i}]", error) for i, item in enumerate(plain))
    _expect(len(plain) == len(kinds), f"{len(kinds)} items", plain, where, error)
    return tuple(_decode(k, item, f"{where}[{i}]", error) for i, (k, item) in enumerate(zip(kinds, plain, strict=True)))


_type_hints = functools.cache(get_type_hints)


def _is_taken_whole(plain: list[Any], types_taken: frozenset[type]) -> bool:
    if not set(map(type, plain)) <= types_taken:
        return False
    integers = [item for item in plain if type(item) is int]
    return not integers or (is_integer(min(integers)) and is_integer(max(integers)))


@functools.cache
def _types_taken_whole(kind: Any) -> frozenset[type]:
    """Returns the types of which every value is taken as it is where `kind` is expected; none where each must be looked at."""
    if kind in (int, str, bool, types.NoneType):
        return frozenset({kind})
    members = [_types_taken_whole(member) for member in get_args(kind)]
    either = get_origin(kind) in (Union, types.UnionType) and all(members)
    return frozenset().union(*members) if either else frozenset()


def _is_finite(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _expect(fits: bool, expected: str, got: object, where: str, error: type[RoilineError]) -> None:
    if not fits:
        text = repr(got)
        raise error(f"{where}: expected {expected}, got {text[:80]}{'...' if len(text) > 80 else ''}")
