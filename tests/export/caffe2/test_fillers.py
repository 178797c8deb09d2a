from __future__ import annotations

import numpy as np
import pytest
from caffe2_nets import encode_fill, encode_net, encode_operator

from roiline.core.errors import ExportError, WeightError
from roiline.export.caffe2.fillers import fill_blobs
from roiline.export.caffe2.netdef import net_from_bytes


def fill(*operators):
    return fill_blobs(net_from_bytes(encode_net(operators)), "model_init.pb")


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.int64])
def test_stated_values_come_back(dtype):
    array = np.arange(-3, 9).reshape(3, 4).astype(dtype)
    blobs = fill(encode_fill("blob", array), encode_operator("Copy", ["blob"], ["twin"]))
    assert blobs["blob"].dtype == dtype
    np.testing.assert_array_equal(blobs["blob"], array)
    np.testing.assert_array_equal(blobs["twin"], array)


def test_an_empty_blob_and_a_scalar_keep_their_shape():
    blobs = fill(
        encode_fill("data", np.zeros(0, np.float32)), encode_operator("ConstantFill", [], ["one"], {"value": 1.0})
    )
    assert blobs["data"].shape == (0,)
    assert blobs["one"].shape == ()


@pytest.mark.parametrize(
    ("args", "dtype", "value"),
    [
        ({"shape": [2, 3], "value": 1.5}, np.float32, 1.5),
        ({"shape": [2, 3]}, np.float32, 0),
        ({"shape": [2, 3], "value": 4}, np.int64, 4),
        ({"shape": [2, 3], "value": 4, "dtype": 2}, np.int32, 4),
        ({"shape": [2, 3], "value": 1, "dtype": 5}, np.bool_, True),
    ],
)
def test_constants_have_the_type_that_caffe2_gives_them(args, dtype, value):
    blob = fill(encode_operator("ConstantFill", [], ["b"], args))["b"]
    assert blob.dtype == dtype
    np.testing.assert_array_equal(blob, np.full((2, 3), value, dtype))


def test_what_states_no_values_is_named_with_all_its_kind():
    with pytest.raises(ExportError, match=r"Conv, XavierFill: operators that do not state values.*swapped"):
        fill(encode_operator("XavierFill", [], ["w"], {"shape": [1]}), encode_operator("Conv", ["x"], ["y"]))


def test_all_faults_are_listed():
    nothing = encode_operator("GivenTensorFill", [], ["c"], {"shape": [2]})
    infinite = encode_fill("d", np.array([1, np.inf, np.nan], np.float32))
    with pytest.raises(WeightError) as caught:
        fill(
            encode_operator("GivenTensorFill", [], ["a"], {"shape": [3], "values": [1.0]}),
            encode_operator("ConstantFill", [], ["b"], {"shape": [1 << 40, 1 << 40]}),
            nothing,
            infinite,
            encode_operator("ConstantFill", ["like"], ["e"], {"value": 0.0}),
            encode_operator("Copy", ["nobody"], ["f"]),
            encode_operator("ConstantFill", [], ["g"], {"shape": [-1]}),
            encode_operator("ConstantFill", [], ["h", "i"]),
            encode_operator("ConstantFill", [], ["j"], {"dtype": 99}),
        )
    lines = str(caught.value).splitlines()[1:]
    assert [line.split()[0].rstrip(",:") for line in lines] == ["a", "b", "c", "e", "f", "g", "h", "j", "d"]
    assert "wants 3 values, it has 1" in lines[0]
    assert "2 of 3 values are NaN or infinite" in lines[-1]
