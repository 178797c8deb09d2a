from __future__ import annotations

import numpy as np
import onnx
import pytest
from caffe2_nets import encode_operator, export_net, run_model

RNG = np.random.default_rng(5)
X = RNG.standard_normal((2, 3, 4, 4)).astype(np.float32)
BLOBS = {
    "w": RNG.standard_normal((4, 3, 1, 1)).astype(np.float32),
    "b": RNG.standard_normal(4).astype(np.float32),
    "s": RNG.standard_normal(4).astype(np.float32),
    "t": RNG.standard_normal(4).astype(np.float32),
}
CONV = encode_operator("Conv", ["x", "w", "b"], ["y"], {"kernel": 1})
PLAIN = encode_operator("Conv", ["x", "w"], ["y"], {"kernel": 1})
AFFINE = encode_operator("AffineChannel", ["y", "s", "t"], ["y"])
APART = encode_operator("AffineChannel", ["y", "s", "t"], ["z"])
CONVOLVED = np.einsum("oi,nihw->nohw", BLOBS["w"][:, :, 0, 0], X)
BIASED = CONVOLVED + BLOBS["b"][:, None, None]


def scaled(x):
    return x * BLOBS["s"][:, None, None] + BLOBS["t"][:, None, None]


@pytest.mark.parametrize(
    ("operators", "expected", "folded"),
    [
        ([CONV, AFFINE], {"y": scaled(BIASED)}, True),
        ([PLAIN, AFFINE], {"y": scaled(CONVOLVED)}, True),
        ([PLAIN, APART], {"z": scaled(CONVOLVED)}, True),
        ([PLAIN, AFFINE, encode_operator("Relu", ["y"], ["y"])], {"y": np.maximum(scaled(CONVOLVED), 0)}, True),
        ([CONV, APART], {"z": scaled(BIASED), "y": BIASED}, False),
        ([CONV, encode_operator("Tanh", ["y"], ["u"]), AFFINE], {"y": scaled(BIASED), "u": np.tanh(BIASED)}, False),
        ([CONV, APART, encode_operator("Tanh", ["y"], ["u"])], {"z": scaled(BIASED), "u": np.tanh(BIASED)}, False),
        ([CONV, encode_operator("Tanh", ["y"], ["y"]), AFFINE], {"y": scaled(np.tanh(BIASED))}, False),
        (
            [CONV, AFFINE, encode_operator("Conv", ["x", "w"], ["v"], {"kernel": 1})],
            {"y": scaled(BIASED), "v": CONVOLVED},
            False,
        ),
        (
            [CONV, APART, encode_operator("Tanh", ["z"], ["y"])],
            {"z": scaled(BIASED), "y": np.tanh(scaled(BIASED))},
            True,
        ),
    ],
)
def test_folds_where_nobody_else_needs_the_parts(tmp_path, operators, expected, folded):
    report = export_net(tmp_path, operators, ["x"], list(expected), BLOBS)
    kinds = [node.op_type for node in onnx.load(report.path).graph.node]
    assert ("Mul" not in kinds) is folded
    for name, array in run_model(report.path, {"x": X}).items():
        np.testing.assert_allclose(array, expected[name], atol=1e-5)
    assert "not used: s" not in report.leftovers


def test_one_scale_may_serve_two_convolutions(tmp_path):
    second = encode_operator("Conv", ["x", "w2"], ["v"], {"kernel": 1})
    operators = [PLAIN, AFFINE, second, encode_operator("AffineChannel", ["v", "s", "t"], ["v"])]
    report = export_net(tmp_path, operators, ["x"], ["y", "v"], {**BLOBS, "w2": BLOBS["w"]})
    assert [node.op_type for node in onnx.load(report.path).graph.node] == ["Conv", "Conv"]
    got = run_model(report.path, {"x": X})
    np.testing.assert_allclose(got["y"], scaled(CONVOLVED), atol=1e-5)
    np.testing.assert_allclose(got["v"], scaled(CONVOLVED), atol=1e-5)
