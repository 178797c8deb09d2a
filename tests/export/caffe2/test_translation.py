from __future__ import annotations

import numpy as np
import onnx
import pytest
from caffe2_nets import encode_operator, export_net, run_model

from roiline.core.errors import ExportError, WeightError

X = np.random.default_rng(3).standard_normal((1, 2, 4, 4)).astype(np.float32)
W = np.random.default_rng(4).standard_normal((2, 2, 1, 1)).astype(np.float32)


def pool(x, y):
    return encode_operator("MaxPool", [x], [y], {"kernel": 1})


def convolve(x):
    return np.einsum("oi,nihw->nohw", W[:, :, 0, 0], x)


def test_a_blob_written_in_place_keeps_its_name_where_it_ends(tmp_path):
    operators = [
        encode_operator("Conv", ["x", "w"], ["y"], {"kernel": 1}),
        encode_operator("Relu", ["y"], ["y"]),
        encode_operator("Sum", ["y", "y"], ["y"]),
    ]
    report = export_net(tmp_path, operators, ["x"], ["y"], {"w": W})
    graph = onnx.load(report.path).graph
    assert [node.output[0] for node in graph.node] == ["y_1", "y_2", "y"]
    np.testing.assert_allclose(run_model(report.path, {"x": X})["y"], 2 * np.maximum(convolve(X), 0), atol=1e-5)


def test_an_earlier_value_reaches_those_who_took_it(tmp_path):
    operators = [pool("x", "y"), encode_operator("Copy", ["y"], ["old"]), encode_operator("Tanh", ["y"], ["y"])]
    got = run_model(export_net(tmp_path, operators, ["x"], ["old", "y"]).path, {"x": X})
    np.testing.assert_array_equal(got["old"], X)
    np.testing.assert_allclose(got["y"], np.tanh(X), atol=1e-6)


def test_names_made_for_earlier_values_never_meet_a_blob(tmp_path):
    operators = [pool("x", "y"), encode_operator("Tanh", ["y"], ["y"]), encode_operator("Copy", ["y"], ["y_1"])]
    got = run_model(export_net(tmp_path, operators, ["x"], ["y", "y_1"]).path, {"x": X})
    np.testing.assert_array_equal(got["y"], got["y_1"])


def test_an_input_written_over_stays_an_input(tmp_path):
    operators = [pool("x", "x"), encode_operator("Tanh", ["x"], ["y"])]
    report = export_net(tmp_path, operators, ["x"], ["y"])
    np.testing.assert_allclose(run_model(report.path, {"x": X})["y"], np.tanh(X), atol=1e-6)
    with pytest.raises(ExportError, match="x: outputs that no operator makes anew"):
        export_net(tmp_path, operators, ["x"], ["x"])


def test_a_filled_blob_written_over_gives_both_values(tmp_path):
    operators = [pool("f", "g"), encode_operator("Tanh", ["f"], ["f"])]
    report = export_net(tmp_path, operators, [], ["f", "g"], {"f": X})
    got = run_model(report.path, {})
    np.testing.assert_array_equal(got["g"], X)
    np.testing.assert_allclose(got["f"], np.tanh(X), atol=1e-6)


def test_a_net_may_fill_blobs_itself(tmp_path):
    operators = [
        encode_operator("ConstantFill", [], ["two"], {"shape": [1], "value": 2.0}),
        pool("x", "p"),
        encode_operator("Mul", ["p", "two"], ["y"], {"broadcast": 1}),
    ]
    np.testing.assert_array_equal(run_model(export_net(tmp_path, operators, ["x"], ["y"]).path, {"x": X})["y"], 2 * X)
    with pytest.raises(ExportError, match="two: filled and also made"):
        export_net(tmp_path, [*operators, pool("p", "two")], ["x"], ["y"])


def test_unknown_operators_are_named_together(tmp_path):
    operators = [
        encode_operator("Warp", ["x"], ["a"]),
        encode_operator("Warp", ["x"], ["b"]),
        encode_operator("Relu", ["a"], ["c"]),
        encode_operator("Int8Conv", ["c"], ["d", "e"]),
        encode_operator("Python", ["d"], ["f"]),
    ]
    with pytest.raises(ExportError) as caught:
        export_net(tmp_path, operators, ["x"], ["f"])
    text = str(caught.value)
    assert "Warp (x 2, the first makes a)" in text
    assert "Int8Conv (x 1, the first makes d, e)" in text
    assert "Python (x 1, the first makes f)" in text
    assert "roiline export detectron" in text
    assert "Relu" not in text


def test_weights_that_nothing_fills_are_named_together(tmp_path):
    operators = [
        encode_operator("Conv", ["x", "w", "b"], ["y"], {"kernel": 1}),
        encode_operator("AffineChannel", ["y", "s", "t"], ["y"]),
        encode_operator("FC", ["y", "fc_w", "fc_b"], ["z"]),
    ]
    with pytest.raises(WeightError) as caught:
        export_net(tmp_path, operators, ["x", "b", "fc_w"], ["z"], {"w": W, "s": W[0, :, 0, 0]})
    text = str(caught.value)
    assert "4 weights are not filled" in text
    for line in ("b: bias of Conv y", "t: bias of AffineChannel y", "fc_w: weights of FC z", "fc_b: bias of FC z"):
        assert line in text


@pytest.mark.parametrize(
    ("operators", "outputs", "message"),
    [
        ([encode_operator("Relu", ["nobody"], ["y"])], ["y"], "`nobody` is neither an input"),
        ([encode_operator("Relu", [], ["y"])], ["y"], "needs input 1"),
        ([encode_operator("Sum", ["x"], [])], ["y"], "needs output 1"),
        ([pool("x", "y")], [], "names no external output"),
        ([pool("x", "y")], ["z"], "z: outputs that no operator makes"),
        ([pool("x", "y")], ["x"], "x: outputs that no operator makes"),
        (
            [encode_operator("LRN", ["x"], ["y", "scale"], {"size": 3})],
            ["scale"],
            "`scale` is not translated, and it is used",
        ),
        ([pool("x", "y"), encode_operator("FC", ["y"], ["z"])], ["z"], "no weights"),
        ([pool("x", "y"), encode_operator("RoIAlign", ["x", "y"], ["z"])], ["z"], "`y`: expected shape"),
        ([pool("x", "constant_0"), encode_operator("ResizeNearest", ["constant_0"], ["z"])], ["z"], "rename them"),
    ],
)
def test_nets_that_make_no_sense_are_refused(tmp_path, operators, outputs, message):
    with pytest.raises(ExportError, match=message):
        export_net(tmp_path, operators, ["x"], outputs)
