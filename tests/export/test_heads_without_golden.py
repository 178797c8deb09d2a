"""Heads that no golden file covers, layer by layer against numpy written from their definitions: R-FCN, fused heads, classification."""

from __future__ import annotations

import numpy as np
import pytest
from thin_models import THIN, export_thin, feed_pictures, feed_rois

from roiline.core.errors import ConfigError
from roiline.ops.multilevel_roi_align import MULTILEVEL_ROI_ALIGN
from roiline.ops.ps_roi_pool import MULTILEVEL_PS_ROI_POOL

RFCN = """
MODEL: {TYPE: rfcn, CONV_BODY: ResNet.add_ResNet50_conv5_body, NUM_CLASSES: 4}
RESNETS: {RES5_DILATION: 2}
RFCN: {PS_GRID_SIZE: 3}
TEST: {SCORE_THRESH: 0.1, NMS: 0.5}
"""
FIXED_RFCN = RFCN.replace("TYPE: rfcn, CONV_BODY: ResNet.add_ResNet50_conv5_body", "TYPE: ResNet50_rfcn")
FORKED_RFCN = RFCN.replace("NUM_CLASSES", "FASTER_RCNN: True, NUM_CLASSES").replace(
    "PS_GRID_SIZE", "ROI_BOX_HEAD: rfcn_heads.add_rfcn_head, PS_GRID_SIZE"
)
PYRAMID = "FPN: {FPN_ON: True, MULTILEVEL_ROIS: True, MULTILEVEL_RPN: True}\n"
PYRAMID_RFCN = (
    FORKED_RFCN.replace("ResNet.add_ResNet50_conv5_body", "FPN.add_fpn_ResNet50_conv5_body").replace(
        "DILATION: 2", "DILATION: 1"
    )
    + PYRAMID
)
SIZE = 128, 160
CLASSES, GRID = 4, 3


def _conv1x1(x: np.ndarray, blobs: dict[str, np.ndarray], layer: str) -> np.ndarray:
    weight, bias = blobs[f"{layer}_w"], blobs[f"{layer}_b"]
    return np.einsum("oc,nchw->nohw", weight[:, :, 0, 0].astype(np.float64), x.astype(np.float64)) + bias[:, None, None]


def _fc(x: np.ndarray, blobs: dict[str, np.ndarray], layer: str) -> np.ndarray:
    return x.astype(np.float64) @ blobs[f"{layer}_w"].T.astype(np.float64) + blobs[f"{layer}_b"]


def _softmax(scores: np.ndarray) -> np.ndarray:
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def _votes(rois: np.ndarray, maps: list[np.ndarray], scales: list[float]) -> np.ndarray:
    """Returns the mean over the grid; the canonical level of 5 is the fork's default, and plays no part on one map."""
    (pooled,) = MULTILEVEL_PS_ROI_POOL.run(rois, *maps, spatial_scales=scales, grid=GRID, canonical_level=5)
    return pooled.mean(axis=(2, 3))


def _close(got: np.ndarray, expected: np.ndarray) -> None:
    assert got.shape == expected.shape
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4 * max(1.0, float(np.abs(expected).max())))


@pytest.mark.parametrize(("text", "reduced"), [(RFCN, False), (FIXED_RFCN, True)])
def test_rfcn_on_given_proposals(text, reduced, tmp_path):
    taps = ["res5_2_sum", "conv_cls", "conv_bbox_pred", "cls_score", "cls_prob", "bbox_pred", "proposal_cls_prob"]
    model = export_thin(text, tmp_path, taps=[*taps, "conv_dim_reduce"] if reduced else taps)
    assert model.spec.tasks == ("detections",)
    assert model.spec.given_proposals is not None
    feeds = feed_pictures(2, *SIZE) | feed_rois(2, 9, *SIZE)
    got = model.run(feeds)
    seen = got["res5_2_sum"]
    assert seen.shape[2:] == (SIZE[0] // 16, SIZE[1] // 16), "a dilated res5 does not stride"
    if reduced:
        seen = np.maximum(_conv1x1(seen, model.blobs, "conv_dim_reduce"), 0)
        assert seen.shape[1] == 1024
        _close(got["conv_dim_reduce"], seen)
    _close(got["conv_cls"], _conv1x1(seen, model.blobs, "conv_cls"))
    _close(got["conv_bbox_pred"], _conv1x1(seen, model.blobs, "conv_bbox_pred"))
    _close(got["cls_score"], _votes(feeds["rois"], [got["conv_cls"]], [1 / 16]))
    _close(got["bbox_pred"], _votes(feeds["rois"], [got["conv_bbox_pred"]], [1 / 16]))
    _close(got["cls_prob"], _softmax(got["cls_score"]))
    np.testing.assert_array_equal(got["proposal_cls_prob"], got["cls_prob"][feeds["roi_index"]])
    assert got["bbox_pred"].shape == (18, 4 * CLASSES)
    assert got["count"].min() > 0


def test_rfcn_of_the_fork_has_its_own_rpn(tmp_path):
    model = export_thin(FORKED_RFCN, tmp_path, taps=["rois", "conv_cls", "cls_score", "conv_dim_reduce"])
    assert model.spec.tasks == ("proposals", "detections")
    got = model.run(feed_pictures(1, *SIZE))
    assert len(got["rois"]) > 5
    _close(got["cls_score"], _votes(got["rois"], [got["conv_cls"]], [1 / 16]))


def test_rfcn_of_the_fork_on_a_pyramid(tmp_path):
    taps = ["rois", "cls_score", "bbox_pred", *(f"conv_cls_fpn{level}" for level in (2, 3, 4, 5))]
    model = export_thin(PYRAMID_RFCN, tmp_path, taps=[*taps, "fpn_res5_2_sum"])
    got = model.run(feed_pictures(1, *SIZE))
    assert "conv_dim_reduce_w" not in model.blobs
    _close(got["conv_cls_fpn5"], _conv1x1(got["fpn_res5_2_sum"], model.blobs, "conv_cls_fpn5"))
    maps = [got[f"conv_cls_fpn{level}"] for level in (2, 3, 4, 5)]
    _close(got["cls_score"], _votes(got["rois"], maps, [2.0**-level for level in (2, 3, 4, 5)]))


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (RFCN.replace("NUM_CLASSES", "FASTER_RCNN: True, NUM_CLASSES"), "MODEL.FASTER_RCNN"),
        (
            RFCN.replace("ResNet.add_ResNet50_conv5_body", "FPN.add_fpn_ResNet50_conv5_body").replace("2}", "1}")
            + PYRAMID,
            "FPN.FPN_ON",
        ),
    ],
)
def test_what_detectrons_own_rfcn_lacks_is_refused(text, key, tmp_path):
    with pytest.raises(ConfigError, match=rf"{key}: True; Detectron's R-FCN .*RFCN\.ROI_BOX_HEAD"):
        export_thin(text, tmp_path)


FUSED = """
MODEL: {TYPE: generalized_rcnn, CONV_BODY: FPN.add_fpn_ResNet50_conv5_body, NUM_CLASSES: 4, FASTER_RCNN: True, FR_FUSED: True}
FAST_RCNN: {ROI_BOX_HEAD: fast_rcnn_heads.add_roi_2mlp_head, ROI_XFORM_METHOD: RoIAlign, ROI_XFORM_RESOLUTION: 7,
  ROI_XFORM_SAMPLING_RATIO: 2}
RFCN: {PS_GRID_SIZE: 3, ROI_BOX_HEAD: rfcn_heads.add_rfcn_head}
TEST: {SCORE_THRESH: 0.1}
"""
LEVELS = (2, 3, 4, 5)
STAGES = ("res2_2_sum", "res3_3_sum", "res4_5_sum", "res5_2_sum")


@pytest.mark.parametrize("rule", ["sum", "mean", "concat"])
def test_fused_heads_are_joined_by_the_named_rule(rule, tmp_path):
    maps = [f"conv_cls_fpn{level}" for level in LEVELS]
    taps = [
        "rois",
        "fc7",
        "roi_feat",
        "cls_score",
        "bbox_pred",
        "cls_prob",
        "psroi_cls_score",
        "psroi_bbox_pred",
        *maps,
    ]
    joined = [] if rule == "concat" else ["fused_cls_score", "fused_bbox_pred"]
    model = export_thin(FUSED + PYRAMID + f"FR_FUSED: {{RULE: {rule}}}\n", tmp_path, taps=[*taps, *joined])
    got = model.run(feed_pictures(1, *SIZE))
    scales = [2.0**-level for level in LEVELS]
    _close(got["psroi_cls_score"], _votes(got["rois"], [got[name] for name in maps], scales))
    hidden = got["roi_feat"].reshape(len(got["rois"]), -1)
    for layer in ("fc6", "fc7"):
        hidden = np.maximum(_fc(hidden, model.blobs, layer), 0)
    _close(got["fc7"], hidden)
    if rule == "concat":
        seen = np.concatenate([got["fc7"], got["psroi_cls_score"], got["psroi_bbox_pred"]], axis=1)
        scores, deltas = _fc(seen, model.blobs, "cls_score"), _fc(seen, model.blobs, "bbox_pred")
        _close(got["cls_score"], scores)
        _close(got["bbox_pred"], deltas)
    else:
        part = 0.5 if rule == "mean" else 1.0
        scores = part * (_fc(got["fc7"], model.blobs, "cls_score") + got["psroi_cls_score"])
        _close(got["fused_cls_score"], scores)
        _close(got["fused_bbox_pred"], part * (_fc(got["fc7"], model.blobs, "bbox_pred") + got["psroi_bbox_pred"]))
        assert "fused_bbox_pred" in model.spec.seams["raw"]
    _close(got["cls_prob"], _softmax(scores))


def test_fused_heads_without_a_rule_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"FR_FUSED\.RULE: not set; .*sum, mean or concat"):
        export_thin(FUSED + PYRAMID, tmp_path)


def test_weighted_loss_makes_probabilities_of_softmax_and_sigmoid(tmp_path):
    text = FUSED.replace("FR_FUSED: True", "WEIGHTED_LOSS: True") + PYRAMID
    model = export_thin(
        text, tmp_path, taps=["rois", "roi_feat", "cls_score", "cls_prob", *(f"fpn_{s}" for s in STAGES)]
    )
    got = model.run(feed_pictures(1, *SIZE))
    scores = got["cls_score"].astype(np.float64)
    _close(got["cls_prob"], (_softmax(scores) + 1 / (1 + np.exp(-scores))) / 2)
    (pooled,) = MULTILEVEL_ROI_ALIGN.run(
        got["rois"],
        *(got[f"fpn_{stage}"] for stage in STAGES),
        spatial_scales=[2.0**-level for level in LEVELS],
        resolution=7,
        sampling_ratio=2,
        canonical_level=5,  # the fork's default
    )
    _close(got["roi_feat"], pooled)


CLASSIFIER = """
MODEL: {TYPE: generalized_rcnn, CONV_BODY: ResNet.add_ResNet50_conv5_body, NUM_CLASSES: 5, CLASSIFICATION: True}
CLASSIFICATION: {MLP_HEAD: classification_heads.add_Xmlp_head, MLP_HEADS_DIM: [24, 16, 8]}
TEST: {SCALE: 96, MAX_SIZE: 64}
"""


def test_classification(tmp_path):
    model = export_thin(CLASSIFIER, tmp_path, taps=["res5_2_sum", "fc8"])
    assert model.spec.tasks == ("classification",)
    assert [tensor.name for tensor in model.session.get_inputs()] == ["data"]
    got = model.run(feed_pictures(3, 64, 96))
    x = got["res5_2_sum"].mean(axis=(2, 3))
    for layer in ("fc6", "fc7", "fc8"):
        x = np.maximum(_fc(x, model.blobs, layer), 0)
    _close(got["fc8"], x)
    (name,) = model.spec.seams["classification"]
    _close(got[name], _softmax(_fc(x, model.blobs, "logits")))
    assert got[name].shape == (3, 5)


def test_the_resize_rule_of_a_classifier_shows_in_its_fork(tmp_path):
    assert export_thin(CLASSIFIER, tmp_path).spec.images.resize == "detectron_stretch"
    other = CLASSIFIER.replace("CLASSIFICATION: True", "CLASSIFICATION: True, ATTENTIONAL_TRANSITION: False")
    assert export_thin(other, tmp_path).spec.images.resize == "detectron"


def test_a_classifier_on_a_pyramid_is_refused(tmp_path):
    text = CLASSIFIER.replace("ResNet.add_ResNet50_conv5_body", "FPN.add_fpn_ResNet50_conv5_body") + PYRAMID
    with pytest.raises(
        ConfigError, match=r"MODEL\.CONV_BODY: R-50-FPN; a classifier needs a body with one feature map"
    ):
        export_thin(text, tmp_path, overrides=THIN)
