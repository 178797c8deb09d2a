from __future__ import annotations

import numpy as np
import pytest
from caffe2_nets import encode_operator, export_net, run_model

from roiline.core.errors import ExportError

RNG = np.random.default_rng(9)
FEATURE = RNG.standard_normal((2, 3, 8, 9)).astype(np.float32)
ROIS = np.array([[1, 0, 0, 40, 30], [0, 10, 5, 60, 60]], np.float32)
NO_ROIS = np.zeros((0, 5), np.float32)
POOLED = {"pooled_h": 2, "pooled_w": 3, "spatial_scale": 0.125}


@pytest.mark.parametrize("kind", ["RoIAlign", "RoIPool", "RoIPoolF"])
def test_pooling_takes_no_rois_and_those_of_one_picture(tmp_path, kind):
    report = export_net(tmp_path, [encode_operator(kind, ["x", "rois"], ["y"], POOLED)], ["x", "rois"], ["y"])
    pooled = run_model(report.path, {"x": FEATURE, "rois": ROIS})["y"]
    assert pooled.shape == (2, 3, 2, 3)
    assert run_model(report.path, {"x": FEATURE, "rois": NO_ROIS})["y"].shape == (0, 3, 2, 3)
    alone = run_model(report.path, {"x": FEATURE, "rois": ROIS[1:, 1:]})["y"]
    np.testing.assert_array_equal(alone[0], pooled[1])


def test_levels_of_no_rois(tmp_path):
    outputs = ["fpn2", "fpn3", "restore"]
    args = {"roi_min_level": 2, "roi_max_level": 3}
    report = export_net(
        tmp_path, [encode_operator("DistributeFpnProposals", ["rois"], outputs, args)], ["rois"], outputs
    )
    got = run_model(report.path, {"rois": NO_ROIS})
    assert [got[name].shape for name in outputs] == [(0, 5), (0, 5), (0,)]
    assert got["restore"].dtype == np.int32


def propose(folder, **args):
    """Runs one GenerateProposals on seeded maps."""
    anchors = np.array([[-8, -8, 7, 7], [-16, -4, 15, 11]], np.float32)
    feeds = {
        "scores": np.random.default_rng(1).permutation(2 * 6 * 7).reshape(1, 2, 6, 7).astype(np.float32) / 100,
        "deltas": np.random.default_rng(2).standard_normal((1, 8, 6, 7)).astype(np.float32) / 4,
        "info": np.array([[48, 56, 1]], np.float32),
    }
    operator = encode_operator(
        "GenerateProposals", [*feeds, "anchors"], ["rois", "probs"], {"spatial_scale": 0.125, **args}
    )
    report = export_net(folder, [operator], list(feeds), ["rois", "probs"], {"anchors": anchors})
    return run_model(report.path, feeds)["rois"]


def test_generations_of_operators_differ_as_their_arguments_say(tmp_path):
    args = {"min_size": 0.0, "nms_thresh": 1.0, "post_nms_topN": 0, "pre_nms_topN": 0}
    by_argument = {
        "none": propose(tmp_path, **args),
        "legacy": propose(tmp_path, **args, legacy_plus_one=1),
        "corrected": propose(tmp_path, **args, correct_transform_coords=1),
        "uncorrected": propose(tmp_path, **args, correct_transform_coords=0),
        "new": propose(tmp_path, **args, legacy_plus_one=0),
    }
    np.testing.assert_array_equal(by_argument["none"], by_argument["legacy"])
    np.testing.assert_array_equal(by_argument["none"], by_argument["corrected"])
    assert by_argument["uncorrected"][:, 3:].max() == by_argument["none"][:, 3:].max() == 55
    assert (by_argument["uncorrected"][:, 3] >= by_argument["none"][:, 3]).all()
    assert (by_argument["uncorrected"][:, 3] > by_argument["none"][:, 3]).any()
    assert by_argument["new"][:, 3].max() == 56


def test_an_operator_without_arguments_follows_the_rest_of_its_net(tmp_path):
    deltas, rois = np.zeros((2, 4), np.float32), np.abs(ROIS)
    operators = [
        encode_operator("BBoxTransform", ["rois", "deltas", "info"], ["a"], {"correct_transform_coords": 1}),
        encode_operator("BBoxTransform", ["rois", "deltas", "info"], ["b"]),
    ]
    info = np.array([[100, 100, 1], [100, 100, 1]], np.float32)
    report = export_net(tmp_path, operators, ["rois", "deltas", "info"], ["a", "b"])
    got = run_model(report.path, {"rois": rois, "deltas": deltas, "info": info})
    np.testing.assert_allclose(got["a"], rois[:, 1:], atol=1e-5)
    np.testing.assert_allclose(got["b"], rois[:, 1:] + [0, 0, 1, 1], atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "inputs", "outputs", "args", "message"),
    [
        ("CollectRpnProposals", ["r2", "s2"], ["y"], {}, "are 5 levels, so 10 inputs, and it has 2"),
        ("CollectRpnProposals", ["r2", "s2"], ["y"], {"rpn_max_level": 2, "rpn_post_nms_topN": 0}, "positive number"),
        ("DistributeFpnProposals", ["r2"], ["y", "z"], {}, "are 4 levels, so 5 outputs, and it has 2"),
        (
            "DistributeFpnProposals",
            ["r2"],
            ["y", "z"],
            {"roi_max_level": 2, "roi_canonical_level": 99},
            "levels of a pyramid",
        ),
        ("RoIAlign", ["x", "r2"], ["y"], {"pooled_h": 0}, "pooled_h 0"),
        ("RoIAlign", ["x", "r2"], ["y"], {"order": "NHWC"}, "only NCHW"),
        ("RoIPool", ["x", "r2"], ["z", "y"], {}, "`y` is not translated, and it is used"),
        ("BBoxTransform", ["r2", "d", "i"], ["y"], {"rotated": 1}, "rotated"),
        ("BBoxTransform", ["r2", "d", "i"], ["y"], {"weights": [1.0, 1.0, 0.0, 1.0]}, "four that are not 0"),
        ("BoxWithNMSLimit", ["s", "b"], ["y", "z", "c"], {"rotated": 1}, "rotated"),
        ("BoxWithNMSLimit", ["s", "b"], ["y", "z", "c"], {"soft_nms_enabled": 1}, "soft-NMS"),
        ("GenerateProposals", ["s", "d", "i", "a"], ["y", "z"], {"spatial_scale": 0.0}, "reciprocal of a stride"),
    ],
)
def test_what_cannot_be_translated_is_said(tmp_path, kind, inputs, outputs, args, message):
    fills = {"a": np.zeros((3, 4), np.float32)}
    free = [name for name in inputs if name not in fills]
    with pytest.raises(ExportError, match=message):
        export_net(tmp_path, [encode_operator(kind, inputs, outputs, args)], free, ["y"], fills)


def test_rotated_anchors_are_refused(tmp_path):
    operator = encode_operator("GenerateProposals", ["s", "d", "i", "a"], ["y", "z"])
    with pytest.raises(ExportError, match=r"`a`: expected shape \('\?', 4\), got \(3, 5\)"):
        export_net(tmp_path, [operator], ["s", "d", "i"], ["y"], {"a": np.zeros((3, 5), np.float32)})
