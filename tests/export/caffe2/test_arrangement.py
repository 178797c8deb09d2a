from __future__ import annotations

import numpy as np
import pytest
from caffe2_nets import encode_operator, export_net, run_model

from roiline.core.errors import ExportError

RNG = np.random.default_rng(11)
A, B = (RNG.standard_normal((2, 4, 3, 5)).astype(np.float32) for _ in range(2))
FIX = encode_operator("MaxPool", ["a"], ["x"], {"kernel": 1})  # tells that the input has four axes


def run(folder, operators, outputs=("y",), fills=None, **feeds):
    report = export_net(folder, operators, list(feeds), outputs, fills)
    return run_model(report.path, feeds)[outputs[0]]


@pytest.mark.parametrize(
    ("kind", "args", "expected"),
    [
        ("Alias", {}, A),
        ("Copy", {}, A),
        ("StopGradient", {}, A),
        ("Dropout", {"is_test": 1, "ratio": 0.5}, A),
        ("Relu", {}, np.maximum(A, 0)),
        ("Sigmoid", {}, 1 / (1 + np.exp(-A))),
        ("Tanh", {}, np.tanh(A)),
        ("LeakyRelu", {"alpha": 0.25}, np.where(A > 0, A, 0.25 * A)),
        ("Transpose", {}, A.transpose(3, 2, 1, 0)),
        ("Transpose", {"axes": [0, 2, 3, 1]}, A.transpose(0, 2, 3, 1)),
        ("Reshape", {"shape": [0, 2, -1]}, A.reshape(2, 2, 30)),
        ("Flatten", {}, A.reshape(2, 60)),
        ("Flatten", {"axis": 2}, A.reshape(8, 15)),
        ("Softmax", {}, np.exp(A) / np.exp(A).sum(axis=(1, 2, 3), keepdims=True)),
        ("Softmax", {"axis": 3}, np.exp(A) / np.exp(A).sum(axis=3, keepdims=True)),
    ],
)
def test_takes_one_blob(tmp_path, kind, args, expected):
    got = run(tmp_path, [FIX, encode_operator(kind, ["x"], ["y", "other"], args)], a=A)
    np.testing.assert_allclose(got, expected, atol=1e-6)


@pytest.mark.parametrize(
    ("kind", "args", "expected"),
    [
        ("Add", {}, A + B),
        ("Sub", {}, A - B),
        ("Mul", {"broadcast": 1}, A * B),
        ("Div", {}, A / B),
        ("Sum", {}, A + B),
        ("Concat", {}, np.concatenate([A, B], axis=1)),
        ("Concat", {"axis": 0}, np.concatenate([A, B], axis=0)),
    ],
)
def test_takes_two_blobs(tmp_path, kind, args, expected):
    fix = encode_operator("MaxPool", ["b"], ["z"], {"kernel": 1})
    got = run(tmp_path, [FIX, fix, encode_operator(kind, ["x", "z"], ["y", "_info"], args)], a=A, b=B)
    np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_sums_any_number(tmp_path):
    assert run(tmp_path, [FIX, encode_operator("Sum", ["x"], ["y"])], a=A).tolist() == A.tolist()
    got = run(tmp_path, [FIX, encode_operator("Sum", ["x", "x", "x"], ["y"])], a=A)
    np.testing.assert_allclose(got, 3 * A, rtol=1e-6)


def test_reshapes_to_a_filled_shape(tmp_path):
    shape = {"shape": np.array([4, -1], np.int64)}
    got = run(tmp_path, [FIX, encode_operator("Reshape", ["x", "shape"], ["y", "old"])], fills=shape, a=A)
    np.testing.assert_array_equal(got, A.reshape(4, 30))


def test_narrows_as_another(tmp_path):
    small = np.zeros((2, 1, 2, 4), np.float32)
    got = run(tmp_path, [encode_operator("SpatialNarrowAs", ["a", "b"], ["y"])], a=A, b=small)
    np.testing.assert_array_equal(got, A[:, :, :2, :4])


def test_what_is_learnt_of_a_copy_is_learnt_of_the_input(tmp_path):
    operators = [
        encode_operator("Copy", ["a"], ["c"]),
        encode_operator("Relu", ["c"], ["c"]),
        encode_operator("MaxPool", ["c"], ["y"], {"kernel": 1}),
    ]
    np.testing.assert_array_equal(run(tmp_path, operators, a=A), np.maximum(A, 0))


@pytest.mark.parametrize(
    ("kind", "args", "message"),
    [
        ("Dropout", {}, "is_test"),
        ("Add", {"broadcast": 1, "axis": 1}, "along an axis"),
        ("Concat", {"add_axis": 1}, "add_axis"),
        ("Transpose", {"axes": [0, 0, 1, 2]}, "each axis once"),
    ],
)
def test_what_cannot_be_translated_is_said(tmp_path, kind, args, message):
    with pytest.raises(ExportError, match=message):
        run(tmp_path, [FIX, encode_operator(kind, ["x", "x"], ["y"], args)], a=A)


def test_an_input_of_unknown_axes_is_named(tmp_path):
    with pytest.raises(ExportError, match="a: inputs of the net of which no operator tells how many axes"):
        run(tmp_path, [encode_operator("Relu", ["a"], ["y"])], a=A)
