"""Reading checkpoints, and how their parameters become blobs."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from roiline.core.errors import WeightError
from roiline.export.detectron2.caffe2_names import convert_blobs, rename_blob
from roiline.export.detectron2.conversion import convert_layers, fill_statistics
from roiline.export.detectron2.layers import Layer
from roiline.export.detectron2.weights import match_endings, read_parameters


@pytest.mark.parametrize(
    ("blob", "name"),
    [
        ("conv1_w", "stem.conv1.weight"),
        ("res_conv1_bn_s", "stem.conv1.norm.weight"),
        ("conv1_gn_b", "stem.conv1.norm.bias"),
        ("res4_22_branch2b_bn_b", "res4.22.conv2.norm.bias"),
        ("res2_0_branch1_w", "res2.0.shortcut.weight"),
        ("fpn_inner_res5_2_sum_w", "fpn_lateral5.weight"),
        ("fpn_inner_res3_3_sum_lateral_gn_s", "fpn_lateral3.norm.weight"),
        ("fpn_res2_2_sum_b", "fpn_output2.bias"),
        ("conv_rpn_fpn2_w", "proposal_generator.rpn_head.conv.weight"),
        ("conv_rpn_b", "proposal_generator.rpn_head.conv.bias"),
        ("rpn_bbox_pred_w", "proposal_generator.rpn_head.anchor_deltas.weight"),
        ("fc7_b", "box_head.fc2.bias"),
        ("head_conv4_gn_s", "box_head.conv4.norm.weight"),
        ("_[mask]_fcn2_w", "mask_head.mask_fcn2.weight"),
        ("_mask_fcn2_gn_b", "mask_head.mask_fcn2.norm.bias"),
        ("conv5_mask_w", "mask_head.deconv.weight"),
        ("mask_fcn_logits_b", "mask_head.predictor.bias"),
        ("conv_fcn8_w", "roi_heads.keypoint_head.conv_fcn8.weight"),
        ("kps_score_lowres_w", "roi_heads.keypoint_head.score_lowres.weight"),
        ("kps_score_w", None),
        ("retnet_cls_conv_n0_fpn3_w", None),
        ("fpn_6_w", None),
        ("_[mask]_res5_0_branch2a_w", None),
    ],
)
def test_names_of_detectron(blob, name):
    assert rename_blob(blob) == name


def test_background_rows_of_detectron():
    rows = np.arange(12, dtype=np.float32).reshape(12, 1)
    found = convert_blobs({"cls_score_w": rows[:3], "bbox_pred_w": rows, "mask_fcn_logits_w": rows[:3]}, "x")
    np.testing.assert_array_equal(found["cls_score.weight"].ravel(), [1, 2, 0])
    np.testing.assert_array_equal(found["bbox_pred.weight"].ravel(), np.arange(4, 12))
    np.testing.assert_array_equal(found["mask_head.predictor.weight"].ravel(), [1, 2])


def test_one_name_for_two_blobs():
    with pytest.raises(WeightError, match="two blobs become"):
        convert_blobs({"conv_rpn_w": np.zeros(1), "conv_rpn_fpn2_w": np.zeros(1)}, "x")


def test_the_longest_ending_wins():
    tensors = {"conv1.weight": np.zeros(1), "res2.conv1.weight": np.ones(1)}
    found = match_endings(["backbone.res2.conv1.weight", "backbone.stem.conv2.weight"], tensors, "x")
    assert set(found) == {"backbone.res2.conv1.weight", "conv1.weight"}
    assert found["backbone.res2.conv1.weight"] == 1
    with pytest.raises(WeightError, match=r"fits a\.conv1\.weight and b\.conv1\.weight"):
        match_endings(["a.conv1.weight", "b.conv1.weight"], {"conv1.weight": np.zeros(1)}, "x")


def _pickle(folder, content):
    path = folder / "w.pkl"
    path.write_bytes(pickle.dumps(content, protocol=2))
    return path


def test_the_zoos_form(tmp_path):
    model = {"a.weight": np.ones(2, np.float16), "n": np.zeros((), np.int64), "b.running_var": np.ones(1)}
    stored = read_parameters(_pickle(tmp_path, {"model": model, "__author__": "x"}))
    assert stored.tensors["a.weight"].dtype == np.float32
    assert (stored.by_ending, stored.affine) == (False, False)
    heuristic = read_parameters(_pickle(tmp_path, {"model": model, "__author__": "x", "matching_heuristics": True}))
    assert heuristic.by_ending


def test_detectrons_form(tmp_path):
    stored = read_parameters(
        _pickle(tmp_path, {"blobs": {"conv1_w": np.ones((1, 1)), "conv1_w_momentum": np.ones((1, 1))}})
    )
    assert set(stored.tensors) == {"stem.conv1.weight"}
    assert stored.by_ending
    assert stored.affine


@pytest.mark.parametrize("content", [{"model": {}}, {"model": {"a": "text"}, "__author__": "x"}, [1, 2]])
def test_pickles_that_are_no_checkpoints(content, tmp_path):
    with pytest.raises(WeightError):
        read_parameters(_pickle(tmp_path, content))


def test_files_that_are_no_checkpoints(tmp_path):
    with pytest.raises(WeightError, match="no\\.pth"):
        read_parameters(tmp_path / "no.pth")
    (tmp_path / "page.pth").write_text("<!doctype html><html>")
    with pytest.raises(WeightError, match="HTML"):
        read_parameters(tmp_path / "page.pth")


# --- conversion ------------------------------------------------------------------------------------------------------


def _norm(path, rng, count):
    values = {"weight": rng.uniform(0.5, 2, count), "bias": rng.normal(size=count)}
    values |= {"running_mean": rng.normal(size=count), "running_var": rng.uniform(0.5, 2, count)}
    return {f"{path}.{part}": value.astype(np.float32) for part, value in values.items()}


def _expect(x, tensors, path):
    mean, var, scale, shift = (tensors[f"{path}.{part}"] for part in ("running_mean", "running_var", "weight", "bias"))
    return (x - mean) / np.sqrt(var + 1e-5) * scale + shift


def test_batch_norms_become_affine_channels_or_go_into_weights():
    rng = np.random.default_rng(0)
    tensors = {
        "l.weight": rng.normal(size=(4, 3, 1, 1)).astype(np.float32),
        "l.bias": rng.normal(size=4).astype(np.float32),
    }
    tensors |= _norm("l.norm", rng, 4)
    x = rng.normal(size=3).astype(np.float32)
    plain = tensors["l.weight"][:, :, 0, 0] @ x
    affine = convert_layers([Layer("c", "l", "batch", affine="c_bn", biased=False)], tensors)
    np.testing.assert_allclose(
        plain * affine["c_bn_s"] + affine["c_bn_b"], _expect(plain, tensors, "l.norm"), rtol=1e-5
    )
    folded = convert_layers([Layer("c", "l", "batch")], tensors)
    expected = _expect(plain + tensors["l.bias"], tensors, "l.norm")
    np.testing.assert_allclose(folded["c_w"][:, :, 0, 0] @ x + folded["c_b"], expected, rtol=1e-5, atol=1e-6)


def test_group_norms_stay():
    rng = np.random.default_rng(0)
    tensors = {"l.weight": rng.normal(size=(4, 3, 1, 1)), **_norm("l.norm", rng, 4)}
    blobs = convert_layers([Layer("c", "l", "group", biased=False)], tensors)
    assert set(blobs) == {"c_w", "c_gn_s", "c_gn_b"}


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ("plain", [1, 2, 3, 4]),
        ("scores", [4, 1, 2, 3]),
        ("deltas", [0, 0, 0, 0, 1, 2, 3, 4]),
        ("masks", [0, 1, 2, 3, 4]),
        ("anchor_deltas", [0.1, 0.2, 0.6, 0.8]),
    ],
)
def test_rows(rows, expected):
    weight = np.arange(1, 5, dtype=np.float32).reshape(4, 1)
    layer = Layer("c", "l", biased=False, rows=rows, weights=(10.0, 10.0, 5.0, 5.0))
    np.testing.assert_allclose(convert_layers([layer], {"l.weight": weight})["c_w"].ravel(), expected)


def test_missing_statistics_are_those_of_an_affine_channel():
    layer = Layer("c", "l", "batch", affine="c_bn", biased=False)
    ones, zeros = np.ones(2, np.float32), np.zeros(2, np.float32)
    tensors = {"l.weight": ones.reshape(2, 1, 1, 1), "l.norm.weight": ones, "l.norm.bias": zeros}
    assert "c_bn_s" not in convert_layers([layer], tensors)
    blobs = convert_layers([layer], fill_statistics([layer], tensors))
    np.testing.assert_allclose(blobs["c_bn_s"], 1 / np.sqrt(1 + 1e-5), rtol=1e-7)
