from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import pytest

from roiline.core.errors import DataError
from roiline.core.records import plain_from_record, record_from_plain


@dataclass(frozen=True, slots=True)
class Inner:
    name: str
    weights: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Outer:
    kind: Literal["a", "b"]
    parts: tuple[Inner, ...]
    table: Mapping[str, tuple[int, ...]]
    size: int | None = None
    on: bool = False


VALUE = Outer("a", (Inner("x", (1.0, 2.5)),), {"one": (1, 2), "none": ()}, 3, True)


def _plain() -> dict:
    return plain_from_record(VALUE)


def test_a_record_comes_back_as_it_was():
    assert record_from_plain(Outer, _plain(), where="file") == VALUE


def test_defaults_may_be_absent():
    plain = _plain()
    del plain["size"], plain["on"]
    assert record_from_plain(Outer, plain, where="file").size is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "c"}, r"file.kind: expected one of 'a', 'b', got 'c'"),
        ({"parts": {}}, r"file.parts: expected a list"),
        ({"parts": [{"name": "x", "weights": [1]}]}, r"file.parts\[0\].weights: expected 2 items"),
        ({"parts": [{"name": 1, "weights": [1, 2]}]}, r"file.parts\[0\].name: expected str"),
        ({"parts": [{"name": "x"}]}, r"missing fields \['weights'\]"),
        ({"table": []}, r"file.table: expected an object"),
        ({"size": True}, r"file.size: expected an integer, got True"),
        ({"size": "3"}, r"expected an integer"),
        ({"on": 1}, r"file.on: expected bool"),
        ({"extra": 1}, r"unknown fields \['extra'\]"),
        ({"size": 2**63}, r"file.size: expected an integer, got 9223372036854775808"),
        (
            {"parts": [{"name": "x", "weights": [1, 10**400]}]},
            r"file.parts\[0\].weights\[1\]: expected a finite number",
        ),
        ({"parts": [{"name": "x", "weights": [1, float("nan")]}]}, r"weights\[1\]: expected a finite number, got nan"),
    ],
)
def test_what_is_wrong_is_named(change, message):
    with pytest.raises(DataError, match=message):
        record_from_plain(Outer, {**_plain(), **change}, where="file")


def test_a_number_may_be_whole_where_a_float_is_expected():
    plain = {"name": "x", "weights": [1, 2]}
    assert record_from_plain(Inner, plain, where="file").weights == (1.0, 2.0)


@dataclass(frozen=True, slots=True)
class Columns:
    numbers: tuple[int, ...] = ()
    ids: tuple[int | str, ...] = ()
    reasons: tuple[str | None, ...] = ()
    shares: tuple[float | int, ...] = ()


def test_columns_are_taken_whole():
    plain = {"numbers": [1, -(2**63), 2**63 - 1], "ids": [1, "a"], "reasons": [None, "b"], "shares": [1, 2.5]}
    read = record_from_plain(Columns, plain, where="file")
    assert read == Columns((1, -(2**63), 2**63 - 1), (1, "a"), (None, "b"), (1.0, 2.5))
    assert [type(share) for share in read.shares] == [float, float]


@pytest.mark.parametrize(
    ("column", "values", "place"),
    [
        ("numbers", [1, 2**63], 1),
        ("numbers", [1, True], 1),
        ("numbers", [1.0], 0),
        ("numbers", [[1]], 0),
        ("ids", ["a", 10**400], 1),
        ("ids", [None], 0),
        ("reasons", [None, 5], 1),
        ("shares", [1, float("nan")], 1),
    ],
)
def test_a_wrong_value_of_a_column_is_named(column, values, place):
    with pytest.raises(DataError, match=rf"^file\.{column}\[{place}\]: "):
        record_from_plain(Columns, {column: values}, where="file")
