from __future__ import annotations

import numpy as np
import pytest
from caffe2_nets import encode_argument, encode_entry, encode_net, encode_number, encode_operator
from shared_data import shared_path

from roiline.core.errors import ModelError
from roiline.export.caffe2.netdef import net_from_bytes, read_net
from roiline.export.caffe2.protobuf import ProtobufError

CONV = encode_operator("Conv", ["x", "w"], ["y"], {"kernel": 3, "order": "NCHW", "alpha": 0.25, "pads": [1, -1]})
NET = encode_net([CONV, encode_operator("Relu", ["y"], ["y"])], ["x", "w"], ["y"], "tiny")


def test_reads_operators_arguments_and_ends():
    net = net_from_bytes(NET)
    assert (net.name, net.external_inputs, net.external_outputs) == ("tiny", ("x", "w"), ("y",))
    conv, relu = net.operators
    assert (conv.type, conv.inputs, conv.outputs) == ("Conv", ("x", "w"), ("y",))
    assert conv.arguments["kernel"].integer == 3
    assert conv.arguments["order"].text == b"NCHW"
    assert conv.arguments["alpha"].number == 0.25
    assert conv.arguments["pads"].integers == (1, -1)
    assert relu.arguments == {}


def test_reads_packed_lists():
    floats = encode_entry(5, np.array([1.5, 2.5], "<f4").tobytes())
    integers = encode_entry(6, encode_number(7) + encode_number(-1))
    argument = encode_entry(1, "both") + floats + integers
    operator = encode_entry(4, "Fill") + encode_entry(5, argument)
    got = net_from_bytes(encode_net([operator])).operators[0].arguments["both"]
    assert got.numbers.tolist() == [1.5, 2.5]
    assert got.integers == (7, -1)


def test_nets_inside_arguments_are_not_opened():
    inner = NET
    for _ in range(2000):
        inner = encode_entry(
            2, encode_entry(4, "If") + encode_entry(5, encode_entry(1, "then") + encode_entry(8, inner))
        )
    operator = net_from_bytes(inner).operators[0]
    assert operator.arguments["then"].nested


@pytest.mark.golden
@pytest.mark.parametrize(("case", "count"), [("fpn_tiny", 233), ("fpn_tiny_fused", 180)])
def test_reads_nets_of_the_original_converter(case, count):
    net, _ = read_net(shared_path(f"golden/pb/{case}/model.pb"))
    assert len(net.operators) == count
    assert net.external_outputs == ("score_nms", "bbox_nms", "class_nms")
    assert "data" in net.external_inputs


@pytest.mark.parametrize("end", range(1, len(NET), 3))
def test_a_net_cut_anywhere_is_whole_or_an_error(end):
    try:
        net = net_from_bytes(NET[:end])
    except (ProtobufError, UnicodeDecodeError):
        return
    assert len(net.operators) <= 2


@pytest.mark.parametrize("position", range(0, len(NET), 2))
@pytest.mark.parametrize("byte", [0x00, 0x7F, 0xFF])
def test_a_damaged_byte_is_read_or_an_error(position, byte):
    damaged = NET[:position] + bytes([byte]) + NET[position + 1 :]
    try:
        net = net_from_bytes(damaged)
    except (ProtobufError, UnicodeDecodeError):
        return
    assert len(net.operators) <= 2


@pytest.mark.parametrize(
    ("operator", "message"),
    [
        (encode_entry(1, "x"), "no type"),
        (encode_entry(4, 7), "bytes are expected"),
        (encode_entry(4, "F") + encode_entry(5, encode_entry(5, b"\x00\x00")), "floats are expected"),
        (encode_entry(4, "F") + encode_entry(5, encode_entry(6, 0.5)), "integers are expected"),
    ],
)
def test_fields_of_another_kind_are_an_error(operator, message):
    with pytest.raises(ProtobufError, match=message):
        net_from_bytes(encode_net([operator]))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty file"),
        (b'name: "detectron"\nop {\n  type: "Conv"\n}\n', "text form"),
        (b"<!DOCTYPE html><html><body>404</body></html>", "HTML page"),
        (b"\x1f\x8b\x08\x00", "gzip"),
        (NET[:-1], "cut off"),
        (encode_entry(1, "only a name"), "no operator"),
        (encode_net([encode_entry(4, b"\xff\xfe")]), "NetDef"),
    ],
)
def test_other_files_are_named(tmp_path, content, message):
    path = tmp_path / "model.pb"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=message):
        read_net(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ModelError, match=r"absent\.pb: no such file"):
        read_net(tmp_path / "absent.pb")


def test_the_last_argument_of_a_name_counts():
    operator = encode_operator("Conv", [], []) + b"".join(
        encode_entry(5, encode_argument("kernel", size)) for size in (1, 3)
    )
    assert net_from_bytes(encode_net([operator])).operators[0].arguments["kernel"].integer == 3
