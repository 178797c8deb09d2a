"""Pickles are read as data: what genuine files hold comes out unchanged, and nothing else gets through."""

from __future__ import annotations

import collections
import io
import lzma
import os
import pickle
import random
import struct
import tracemalloc

import numpy as np
import pytest
from shared_data import shared_files, shared_path

from roiline.core.errors import DataError, WeightError
from roiline.core.pickles import MAX_DEPTH, loads_pickle, read_pickle

PROTOCOLS = range(6)


def are_same(left: object, right: object) -> bool:
    if isinstance(left, np.ndarray | np.generic):
        return type(left) is type(right) and left.dtype == right.dtype and np.array_equal(left, right)
    if isinstance(left, dict):
        return isinstance(right, dict) and list(left) == list(right) and all(are_same(left[k], right[k]) for k in left)
    if isinstance(left, list | tuple):
        return type(left) is type(right) and len(left) == len(right) and all(map(are_same, left, right))
    return type(left) is type(right) and left == right


def make_values() -> dict[str, object]:
    return {
        "array": np.arange(12.0, dtype=np.float32).reshape(3, 4),
        "columns": np.asfortranarray(np.arange(12.0).reshape(3, 4)),
        "strided": np.arange(10)[::2],
        "big endian": np.arange(3, dtype=">i2"),
        "empty": np.zeros((0, 4), np.float32),
        "one": np.array(7, np.uint8),
        "texts": np.array(["ab", "c"]),
        "half": np.arange(4, dtype=np.float16),
        "flags": np.array([True, False]),
        "number": np.float64(4.135),
        "flag": np.bool_(True),
        "bytes": b"\x00\xff",
        "no bytes": b"",
        "text": "é" * 300,
        "long": 1 << 90,
        "negative": -70000,
        "floats": (0.5, -1.5, 1e300),
        "set": {1, 2},
        "frozen": frozenset(["a"]),
        "complex": 1 + 2j,
        "none": [None, True, False, [], (), {}],
        "shared": [[]] * 3,
    }


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_all_protocols_give_back_plain_values(protocol):
    values = make_values()
    read = loads_pickle(pickle.dumps(values, protocol))
    assert [name for name in values if not are_same(values[name], read[name])] == []


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_ordered_dictionaries_become_plain_ones(protocol):
    ordered = collections.OrderedDict([("b", 1), ("a", collections.OrderedDict())])
    read = loads_pickle(pickle.dumps(ordered, protocol))
    assert type(read) is dict
    assert list(read.items()) == [("b", 1), ("a", {})]


def test_byte_arrays_become_bytes():
    for protocol in PROTOCOLS:
        assert loads_pickle(pickle.dumps(bytearray(b"xy"), protocol)) == b"xy"


@pytest.mark.parametrize("path", shared_files("golden/dataset/**/*.pkl") + shared_files("models/*/*.pkl"))
def test_files_of_the_original_programs_are_read_as_the_standard_library_reads_them(path):
    content = path.read_bytes()
    assert are_same(pickle.loads(content, encoding="latin1"), read_pickle(path))


def test_a_weights_file_of_python_2_is_read():
    content = lzma.decompress(shared_path("golden/e2e/faster_R50_FPN_tiny.py2.pkl.xz").read_bytes())
    read = loads_pickle(content)
    assert are_same(pickle.loads(content, encoding="latin1"), read)
    assert isinstance(read["cfg"], str)
    assert read["blobs"]["conv1_w"].shape == (64, 3, 7, 7)
    assert not read["blobs"]["conv1_w"].flags.writeable


def python_2_pickle(entries: dict[str, np.ndarray]) -> bytes:
    """Writes a dictionary of float32 arrays as CPython 2.7 does: protocol 2, byte strings, memoised."""
    out = bytearray(b"\x80\x02}q\x01(")
    for number, (name, array) in enumerate(entries.items()):
        content = array.astype("<f4").tobytes()
        shape = b"".join(b"K" + bytes([length]) for length in array.shape)
        out += b"U" + bytes([len(name)]) + name.encode() + b"cnumpy.core.multiarray\n_reconstruct\n"
        out += b"cnumpy\nndarray\nK\x00\x85U\x01b\x87R" + b"r" + struct.pack("<I", 1000 + number)
        out += b"(K\x01(" + shape + b"tcnumpy\ndtype\nU\x02f4K\x00K\x01\x87R(K\x03U\x01<NNNJ\xff\xff\xff\xff"
        out += b"J\xff\xff\xff\xffK\x00tb\x89T" + struct.pack("<I", len(content)) + content + b"tb"
    return bytes(out + b"u.")


def test_entries_that_nobody_wants_are_passed_over_on_disk(tmp_path):
    path = tmp_path / "weights.pkl"
    kept = np.arange(4, dtype=np.float32)
    big = np.ones((200, 200, 100), np.float32)
    path.write_bytes(python_2_pickle({"a": kept, "a_momentum": big, "b": kept + 1}))
    tracemalloc.start()
    read = read_pickle(path, skip_key=lambda name: name.endswith("_momentum"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert sorted(read) == ["a", "b"]
    assert are_same(read["b"], kept + 1)
    assert peak < big.nbytes / 4


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_entries_that_nobody_wants_are_left_out_in_every_layout(protocol):
    values = {"a": np.ones(3), "a_momentum": np.ones(3), "b": 1}
    read = loads_pickle(pickle.dumps(values, protocol), skip_key=lambda name: name.endswith("_momentum"))
    assert list(read) == ["a", "b"]


class Runs:
    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    ("function", "arguments"),
    [(os.system, ("touch {}",)), (eval, ("open('{}', 'w')",)), (exec, ("open('{}', 'w')",)), (getattr, (os, "x"))],
)
def test_code_is_named_and_never_run(tmp_path, protocol, function, arguments):
    mark = tmp_path / "mark"
    if function is getattr:
        content = pickle.dumps(Runs(getattr, "text", "upper"), protocol)
    else:
        content = pickle.dumps({"blobs": [Runs(function, arguments[0].format(mark))]}, protocol)
    with pytest.raises(DataError, match="tries to run code: it names"):
        loads_pickle(content)
    assert not mark.exists()


HOSTILE = {
    "instance": b"(ios\nsystem\np0\n.",
    "object": b"(cnumpy\nndarray\no.",
    "new object": b"\x80\x02cnumpy\nndarray\n)\x81.",
    "new object with keywords": b"\x80\x04cnumpy\nndarray\n)}\x92.",
    "foreign class": b"ccollections\ndefaultdict\n.",
    "attribute path": b"\x80\x04\x8c\x05numpy\x8c\x0bndarray.tofile\x93.",
    "persistent": b"Pid\n.",
    "persistent object": b"N\x51.",
    "extension": b"\x82\x01.",
    "call of an array": b"cnumpy\nndarray\n(I5\ntR.",
    "call of a text": b"Vx\n)R.",
    "bytes by size": b"c__builtin__\nbytes\n(I1000000000000\ntR.",
    "bytearray by size": b"c__builtin__\nbytearray\n(I1000000000000\ntR.",
    "state of a dictionary": b"\x80\x02}}Vx\nK\x01sb.",
    "state of a class": b"\x80\x02cnumpy\nndarray\n}b.",
    "name left over": b"cnumpy\nndarray\n.",
    "array without content": b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntVb\ntR.",
    "long of 2 GB": b"\x8b\xff\xff\xff\x7f.",
    "negative long": b"\x8b\xff\xff\xff\xff.",
    "text of an exabyte": b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x0f.",
    "bytes of an exabyte": b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x0f.",
    "byte array of an exabyte": b"\x80\x05\x96\xff\xff\xff\xff\xff\xff\xff\x0f.",
    "frame of an exabyte": b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x0f.",
    "buffers out of band": b"\x80\x05\x97.",
    "negative size": b"T\xff\xff\xff\xff.",
    "far memo": b"Nr\xff\xff\xff\xff0j\xff\xff\xff\x7f.",
    "protocol 9": b"\x80\x09N.",
    "number of 10000 digits": b"I" + b"9" * 10000 + b"\n.",
    "stack underflow": b"\x80\x02\x87.",
    "mark missing": b"\x80\x02Nt.",
    "two values": b"\x80\x02NN.",
    "tuple as key": b"\x80\x02}N\x85Ns.",
    "list as key": b"\x80\x02}]Ns.",
    "tuple in a set": b"\x80\x04\x8f(N\x85\x90.",
    "self": b"\x80\x02]q\x00h\x00a.",
    "self in a dictionary": b"\x80\x02}q\x00K\x01h\x00s.",
    "odd entries": b"\x80\x02}(K\x01u.",
    "append to a number": b"\x80\x02K\x01K\x02a.",
    "bad utf-8": b"\x80\x02X\x02\x00\x00\x00\xff\xff.",
    "unquoted text": b"Sabc\n.",
    "concatenated": b"N.N.",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_not_data_is_refused(name):
    tracemalloc.start()
    try:
        with pytest.raises(WeightError):
            loads_pickle(HOSTILE[name], kind="weights file", error=WeightError)
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


def make_array_pickle(shape: tuple[int, ...], content: bytes, dtype: str = "f4", state: str = "<") -> bytes:
    """Writes an array with any shape and type over any content, with the opcodes that NumPy's own pickles have."""
    out = b"\x80\x03cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85C\x01b\x87R(K\x01("
    for length in shape:
        digits = length.to_bytes(16, "little", signed=True)
        out += b"\x8a\x10" + digits
    out += b"tcnumpy\ndtype\n(" + pickle.dumps(dtype, 3)[2:-1] + b"K\x00K\x01tR(K\x03" + pickle.dumps(state, 3)[2:-1]
    out += b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89B" + struct.pack("<I", len(content)) + content + b"tb."
    return out


def test_arrays_are_bounded_by_their_content():
    assert loads_pickle(make_array_pickle((2, 1), b"12345678")).shape == (2, 1)
    for shape in [(1 << 40,), (1 << 62, 1 << 62), (3, 1), (-2, -1), (-1,), (0,), (0, 1 << 62), (1,) * 33]:
        with pytest.raises(DataError):
            loads_pickle(make_array_pickle(shape, b"12345678" if 0 not in shape else b"1234"))


@pytest.mark.parametrize(
    "dtype", ["O", "O8", "|O8", "V8", "M8", "f4,i4", "(2,3)f4", "S0", "U99999", "float32", "x", "f3"]
)
def test_arrays_of_objects_and_odd_types_are_refused(dtype):
    with pytest.raises(DataError):
        loads_pickle(make_array_pickle((1,), b"12345678", dtype))


def test_arrays_of_objects_are_refused_by_name():
    with pytest.raises(DataError, match="array of Python objects"):
        loads_pickle(pickle.dumps(np.array([object], object), 2))
    with pytest.raises(DataError, match="array of type 'V4'"):
        loads_pickle(pickle.dumps(np.zeros(2, [("a", "f4")]), 2))


def test_nesting_is_bounded():
    assert loads_pickle(b"\x80\x02" + b"N" + b"\x85" * (MAX_DEPTH - 1) + b".") is not None
    for bomb in (b"N" + b"\x85" * 100_000, b"(" * 100_000 + b"l" * 100_000, b"}K\x01" * 5000 + b"N" + b"s" * 5000):
        with pytest.raises(DataError, match="deep"):
            loads_pickle(b"\x80\x02" + bomb + b".")


def test_sharing_cannot_multiply_without_end():
    doubled = b"\x80\x02]" + b"".join(b"q%c0(h%ch%cl" % (i, i, i) for i in range(60)) + b"."
    assert loads_pickle(b"\x80\x02]q\x000(h\x00h\x00l.") == [[], []]
    with pytest.raises(DataError, match="bomb"):
        loads_pickle(doubled)


def test_repeated_encoding_cannot_multiply_content():
    text = "x" * 10_000
    head = b"\x80\x02](X" + struct.pack("<I", len(text)) + text.encode() + b"q\x010"
    again = b"c_codecs\nencode\nh\x01X\x06\x00\x00\x00latin1\x86R"
    assert len(loads_pickle(head + again + b"e.")) == 1
    with pytest.raises(DataError, match="bomb"):
        loads_pickle(head + again * 50 + b"e.")
    members = b"\x80\x02](](" + b"K\x01" * 5000 + b"eq\x01"
    with pytest.raises(DataError, match="bomb"):
        loads_pickle(members + b"c__builtin__\nset\nh\x01\x85R" * 300 + b"e.")


def test_keys_in_bytes_become_text():
    assert loads_pickle(pickle.dumps({b"conv1_w": 1}, 4)) == {"conv1_w": 1}
    with pytest.raises(DataError, match="twice"):
        loads_pickle(pickle.dumps({"a": 1, b"a": 2}, 4))


@pytest.mark.parametrize("cut", [1, 2, 10, 200, 700, -1])
def test_half_a_download_is_called_so(cut):
    content = pickle.dumps({"blobs": np.arange(200.0)}, 2)
    with pytest.raises(DataError, match=r"half a download|damaged"):
        loads_pickle(content[:cut])


def test_paths_that_cannot_be_read_are_errors_of_the_asked_class(tmp_path):
    with pytest.raises(WeightError, match="No such file"):
        read_pickle(tmp_path / "none.pkl", kind="weights file", error=WeightError)
    with pytest.raises(WeightError, match="not a regular file"):
        read_pickle(tmp_path, kind="weights file", error=WeightError)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(WeightError, match="not a regular file"):
        read_pickle(tmp_path / "pipe", error=WeightError)


def test_mutated_files_give_values_or_our_error_and_nothing_else():
    values = {"blobs": {"w": np.arange(6.0).reshape(2, 3)}, "cfg": "MODEL: {}", "n": [1, 2.5, (None, True), {3}]}
    seeds = [pickle.dumps(values, protocol) for protocol in PROTOCOLS]
    seeds.append(python_2_pickle({"a": np.ones(3), "b_momentum": np.ones(2)}))
    chance = random.Random(7)
    refused = 0
    for _ in range(4000):
        content = bytearray(chance.choice(seeds))
        for _ in range(chance.randint(1, 4)):
            place = chance.randrange(len(content))
            action = chance.randrange(4)
            if action == 0:
                content[place] = chance.randrange(256)
            elif action == 1:
                del content[place : place + chance.randint(1, 8)]
            elif action == 2:
                start = chance.randrange(len(content))
                content[place:place] = content[start : start + chance.randint(1, 40)]
            else:
                content[place:place] = chance.choice([b"\x80\x04", b"R", b"b", b"(", b"t", b"h\x01", b"0", b"2", b"u"])
            if not content:
                content = bytearray(b".")
        try:
            loads_pickle(bytes(content), skip_key=lambda name: name.endswith("_momentum"))
        except DataError:
            refused += 1
    assert refused > 2000


def test_torch_files_are_named():
    legacy = io.BytesIO()
    pickle.dump(0x1950A86A20F9469CFC6C, legacy, 2)
    with pytest.raises(WeightError, match="PyTorch checkpoint"):
        loads_pickle(legacy.getvalue() + b"rest", error=WeightError)
    with pytest.raises(WeightError, match="PyTorch objects"):
        loads_pickle(b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n.", error=WeightError)
