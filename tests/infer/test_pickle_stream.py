from __future__ import annotations

import io
import pickle
import pickletools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from roiline.infer.pickle_stream import PickleStream


def written(write: Callable[[PickleStream], None]) -> bytes:
    stream = io.BytesIO()
    writer = PickleStream(stream)
    write(writer)
    writer.close()
    return stream.getvalue()


@pytest.mark.parametrize(
    "array",
    [
        np.arange(1000, dtype=np.float32).reshape(200, 5),
        np.zeros((0, 5), np.float32),
        np.float32([np.nan, -np.inf, 1e-45]),
        np.arange(24, dtype=np.float32).reshape(4, 6)[:, ::2],
        np.array([[2**40, -1]], np.int64),
        np.zeros((3, 70000), np.float32),
    ],
    ids=str,
)
def test_arrays_read_back_to_the_bit(array: NDArray[Any]) -> None:
    got = pickle.loads(written(lambda writer: writer.write_array(array)))
    assert got.dtype == array.dtype
    assert got.shape == array.shape
    assert got.tobytes() == array.tobytes()
    assert got.flags.writeable


def test_modules_are_those_of_old_numpy_and_the_protocol_is_two() -> None:
    data = written(lambda writer: writer.write_list([np.zeros((2, 4), np.float32)] * 3, writer.write_array))
    opcodes = list(pickletools.genops(data))
    assert data[:2] == b"\x80\x02"
    assert {arg for op, arg, _ in opcodes if op.name == "GLOBAL"} == {
        "numpy.core.multiarray _reconstruct",
        "numpy ndarray",
        "numpy dtype",
        "_codecs encode",
    }
    assert max(op.proto for op, _, _ in opcodes) <= 2
    assert len(pickle.loads(data)) == 3


@pytest.mark.parametrize("value", [0, 255, 256, 2**31 - 1, 2**31, -1, -(2**31), -(2**31) - 1, 2**63, 2**200, "ä\n", ""])
def test_ids_read_back(value: int | str) -> None:
    got = pickle.loads(written(lambda writer: writer.write_id(value)))
    assert got == value
    assert type(got) is type(value)


@pytest.mark.parametrize("count", [0, 1, 999, 1000, 1001, 2500])
def test_lists_of_any_length_read_back(count: int) -> None:
    assert pickle.loads(written(lambda writer: writer.write_list(range(count), writer.write_integer))) == list(
        range(count)
    )
    assert pickle.loads(written(lambda writer: writer.write_empty_lists(count))) == [[]] * count


def test_dicts_keep_their_order_and_nest() -> None:
    def write(writer: PickleStream) -> None:
        writer.write_dict(
            [
                (
                    "b",
                    lambda: writer.write_list([[1], []], lambda items: writer.write_list(items, writer.write_integer)),
                ),
                ("a", lambda: writer.write_text("x: 1\n")),
            ]
        )

    got = pickle.loads(written(write))
    assert list(got.items()) == [("b", [[1], []]), ("a", "x: 1\n")]


@pytest.mark.parametrize("value", [b"", b"PlZ8", bytes(range(256))])
def test_byte_strings_read_back(value: bytes) -> None:
    got = pickle.loads(written(lambda writer: writer.write_list([value] * 3, writer.write_bytes)))
    assert got == [value] * 3
    assert type(got[0]) is bytes


def test_empty_arrays_of_any_form_read_back() -> None:
    forms = [
        ((0, 5), "f4"),
        ((0, 4), "f4"),
        ((0, 5), "f4"),
        ((0, 5), "f8"),
        ((2, 5), "f4"),
        ((0, 5), "f4"),
        ((3, 0), "i8"),
    ]
    arrays = [np.zeros(shape, kind) for shape, kind in forms] * 2
    got = pickle.loads(written(lambda writer: writer.write_list(arrays, writer.write_array)))
    assert [(one.shape, one.dtype) for one in got] == [(one.shape, one.dtype) for one in arrays]
