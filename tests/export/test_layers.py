from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from golden_cases import golden_cases
from onnx import TensorProto, helper

from roiline.core.errors import ExportError
from roiline.core.spec import Conventions, ImageRules, ModelSpec, Source
from roiline.export.graph import GraphWriter
from roiline.export.layers import (
    Feature,
    GroupNorm,
    Kernel,
    write_conv,
    write_group_norm,
    write_mean,
    write_normed_conv,
    write_response_norm,
)

SPEC = ModelSpec(
    architecture="layers",
    tasks=(),
    class_names=("a",),
    class_names_known=True,
    conventions=Conventions("detectron", True, True, False, 4.0),
    images=ImageRules("BGR", (0.0, 0.0, 0.0), (1.0, 1.0, 1.0), 100, 200, "detectron", 1, "apply"),
    detection=None,
    seams={},
    source=Source("detectron", "", ""),
)


def _run(g: GraphWriter, y: str, x: np.ndarray, blobs: dict[str, np.ndarray]) -> np.ndarray:
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * rank)
        for name, rank in (("x", x.ndim), (y, 2 if y == "rows" else 4))
    ]
    model = g.finish(SPEC, blobs, ends[:1], ends[1:])
    onnx.checker.check_model(model)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run([y], {"x": x})[0]


def _writer(blobs: dict[str, np.ndarray]) -> GraphWriter:
    return GraphWriter({name: blob.shape for name, blob in blobs.items()})


@pytest.mark.golden
@pytest.mark.parametrize("case", golden_cases("ops/caffe2_torch_1.8.1", "GroupNorm"))
def test_group_norm_is_caffe2s(case):
    x, scale, shift = case.inputs
    blobs = {"y_gn_s": scale, "y_gn_b": shift}
    g = _writer(blobs)
    norm = GroupNorm(case.args["group"], case.args["epsilon"])
    write_group_norm(g, Feature("x", x.shape[1]), "y_gn", norm, purpose="test", name="y")
    np.testing.assert_allclose(_run(g, "y", x, blobs), case.outputs[0], atol=2e-6)


@pytest.mark.golden
@pytest.mark.parametrize("case", golden_cases("ops/caffe2_torch_1.8.1", "LRN"))
def test_response_norm_is_caffe2s(case):
    (x,) = case.inputs
    g = _writer({})
    args = {name: case.args[name] for name in ("size", "alpha", "beta", "bias")}
    write_response_norm(g, Feature("x", x.shape[1]), **args, name="y")
    np.testing.assert_allclose(_run(g, "y", x, {}), case.outputs[0], atol=1e-6)


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_group_norm_follows_its_definition_for_any_number_of_rows(rows):
    rng = np.random.default_rng(1)
    x = rng.normal(2, 3, (rows, 12, 5, 4)).astype(np.float32)
    blobs = {name: rng.normal(0, 1, 12).astype(np.float32) for name in ("y_gn_s", "y_gn_b")}
    g = _writer(blobs)
    write_group_norm(g, Feature("x", 12), "y_gn", GroupNorm(0, 1e-3, group_size=3), purpose="test", name="y")
    groups = x.astype(np.float64).reshape(rows, 4, 60)
    centred = groups - groups.mean(axis=2, keepdims=True)
    normal = (centred / np.sqrt(groups.var(axis=2, keepdims=True) + 1e-3)).reshape(x.shape)
    expected = normal * blobs["y_gn_s"][:, None, None] + blobs["y_gn_b"][:, None, None]
    np.testing.assert_allclose(_run(g, "y", x, blobs), expected, atol=1e-5)


def test_group_norm_of_a_constant_map_is_its_shift():
    x = np.full((1, 4, 9, 9), 1234.567, np.float32)
    blobs = {"y_gn_s": np.ones(4, np.float32), "y_gn_b": np.arange(4, dtype=np.float32)}
    g = _writer(blobs)
    write_group_norm(g, Feature("x", 4), "y_gn", GroupNorm(2, 1e-5), purpose="test", name="y")
    got = _run(g, "y", x, blobs)
    np.testing.assert_allclose(got, np.broadcast_to(blobs["y_gn_b"][:, None, None], x.shape), atol=0.1)


@pytest.mark.parametrize(
    ("norm", "message"),
    [
        (GroupNorm(5, 1e-5), "12 channels cannot be divided into GROUP_NORM.NUM_GROUPS groups, 5"),
        (GroupNorm(32, 1e-5, group_size=8), "12 channels cannot be divided into groups of GROUP_NORM.DIM_PER_GP 8"),
    ],
)
def test_channels_that_cannot_be_divided_are_refused(norm, message):
    with pytest.raises(ExportError, match=message):
        norm.count_groups(12, "head_conv1_gn")


def test_an_affine_channel_is_folded_into_its_convolution():
    rng = np.random.default_rng(2)
    blobs = {
        "c_w": rng.normal(0, 1, (4, 3, 1, 1)).astype(np.float32),
        "c_bn_s": np.array([1, 2, -1, 0.5], np.float32),
        "c_bn_b": np.array([0, 1, 2, 3], np.float32),
    }
    x = rng.normal(0, 1, (2, 3, 5, 6)).astype(np.float32)
    g = _writer(blobs)
    write_conv(g, Feature("x", 3), "c", Kernel(1), purpose="test", affine="c_bn", name="y")
    plain = np.einsum("oc,nchw->nohw", blobs["c_w"][:, :, 0, 0], x)
    expected = plain * blobs["c_bn_s"][:, None, None] + blobs["c_bn_b"][:, None, None]
    np.testing.assert_allclose(_run(g, "y", x, blobs), expected, atol=1e-5)
    assert "c_b" not in {need.name for need in g.requirements}


@pytest.mark.parametrize(("norm", "names"), [(None, ["c_w", "c_b"]), (GroupNorm(2, 1e-5), ["c_w", "c_gn_s", "c_gn_b"])])
def test_a_normed_convolution_needs_no_bias(norm, names):
    g = GraphWriter({"c_w": (4, 3, 3, 3)})
    write_normed_conv(g, Feature("x", 3), "c", Kernel(3, pad=1), norm, purpose="test", relu=True)
    assert [need.name for need in g.requirements] == names
    assert ("c_gn" if norm else "c") in g.blobs


@pytest.mark.parametrize("rows", [0, 2])
def test_the_mean_over_cells_takes_no_rows(rows):
    x = np.random.default_rng(3).normal(0, 1, (rows, 3, 7, 7)).astype(np.float32)
    g = _writer({})
    mean = write_mean(g, Feature("x", 3))
    g.op("Identity", mean.name, name="rows")
    got = _run(g, "rows", x, {})
    assert got.shape == (rows, 3)
    np.testing.assert_allclose(got, x.mean(axis=(2, 3)), atol=1e-6)


def test_layers_that_share_a_blob_need_it_once():
    g = GraphWriter({"c_w": (4, 3, 1, 1)})
    for name in ("first", "second"):
        write_conv(g, Feature("x", 3), name, Kernel(1), purpose="test", weights_of="c", name=name)
    assert [need.name for need in g.requirements] == ["c_w", "c_b"]


def test_a_name_is_resolved_to_what_the_file_has():
    g = GraphWriter({"res5_w": (4, 3, 1, 1), "res5_b": (4,)}, resolve=lambda name: name.removeprefix("_[mask]_"))
    write_conv(g, Feature("x", 3), "_[mask]_res5", Kernel(1), purpose="test", name="y")
    blobs = {"res5_w": np.ones((4, 3, 1, 1), np.float32), "res5_b": np.zeros(4, np.float32)}
    assert [need.name for need in g.requirements] == ["_[mask]_res5_w", "_[mask]_res5_b"]
    np.testing.assert_array_equal(_run(g, "y", np.ones((1, 3, 1, 1), np.float32), blobs), np.full((1, 4, 1, 1), 3))
