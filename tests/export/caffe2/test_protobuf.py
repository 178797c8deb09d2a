from __future__ import annotations

import struct

import numpy as np
import pytest
from caffe2_nets import encode_entry, encode_floats, encode_number

from roiline.export.caffe2.protobuf import (
    BYTES,
    FIXED32,
    VARINT,
    ProtobufError,
    read_packed_ints,
    signed,
    walk_fields,
)

MESSAGE = (
    encode_entry(1, "name") + encode_entry(3, -1) + encode_entry(200, 7) + encode_entry(2, 0.5) + b"\x21" + bytes(8)
)


def fields_of(data, **options):
    return [(f.number, f.wire, f.value, bytes(f.data)) for f in walk_fields(memoryview(data), **options)]


def test_yields_every_entry_in_order():
    assert fields_of(MESSAGE) == [
        (1, BYTES, 0, b"name"),
        (3, VARINT, (1 << 64) - 1, b""),
        (200, VARINT, 7, b""),
        (2, FIXED32, 0, struct.pack("<f", 0.5)),
        (4, 1, 0, bytes(8)),
    ]
    assert signed((1 << 64) - 1) == -1
    assert fields_of(b"") == []


def test_joins_floats_that_stand_together():
    values = np.arange(1000, dtype=np.float32)
    data = encode_floats(values) + encode_entry(1, "x") + encode_floats(values[:3])
    runs = [f for f in fields_of(data, float_field=5) if f[0] == 5]
    assert [np.frombuffer(run[3], "<f4").size for run in runs] == [1000, 3]
    np.testing.assert_array_equal(np.frombuffer(runs[0][3], "<f4"), values)


def test_floats_that_alternate_with_others_stay_in_order():
    data = b"".join(encode_entry(5, float(i)) + encode_entry(6, i) for i in range(300))
    got = fields_of(data, float_field=5)
    assert [f[2] for f in got if f[0] == 6] == list(range(300))
    assert [struct.unpack("<f", f[3])[0] for f in got if f[0] == 5] == list(range(300))


@pytest.mark.parametrize("end", [n for n in range(1, len(MESSAGE)) if n not in (6, 17, 20, 25)])
def test_a_message_cut_off_is_an_error(end):
    with pytest.raises(ProtobufError):
        fields_of(MESSAGE[:end])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f", "cut off"),
        (b"\x0a" + b"\xff" * 9 + b"\x7f", "64 bits"),
        (b"\x08" + b"\x80" * 11, "64 bits"),
        (b"\x0b\x0c", "wire type 3"),
        (b"\x0f", "wire type 7"),
        (b"\x02\x00", "no field number"),
        (encode_number(1 << 33) + b"\x00", "no field number"),
        (b"\x2d\x00\x00", "cut off"),
    ],
)
def test_hostile_bytes_are_an_error(data, message):
    with pytest.raises(ProtobufError, match=message):
        fields_of(data, float_field=5)


def test_packed_numbers_are_signed():
    assert read_packed_ints(memoryview(encode_number(3) + encode_number(-2))) == [3, -2]
    with pytest.raises(ProtobufError):
        read_packed_ints(memoryview(b"\x80"))
