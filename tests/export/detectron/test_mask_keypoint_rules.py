"""Mask and keypoint sections of configurations: the heads that they name, and what is refused by key."""

from __future__ import annotations

import pytest

from roiline.core.spec import KeypointRules, MaskRules
from roiline.export.architecture import ResNet, RoiTransform
from roiline.export.detectron.config import config_from_text
from roiline.export.detectron.mask_keypoint_rules import (
    keypoint_rules_from_config,
    mask_rules_from_config,
    read_keypoint_head,
    read_mask_head,
)
from roiline.export.detectron.refusals import Refusals
from roiline.export.layers import GroupNorm, Kernel
from roiline.export.map_heads import ConvChain, RoiStage
from roiline.export.plain_body import VGG16

BODY = ResNet((3, 4, 6, 3), groups=1, stride_in_1x1=True, last_stage=4)
FPN_MASKS = {"ROI_XFORM_RESOLUTION": 14, "RESOLUTION": 28, "DILATION": 1}
C4_MASKS = {"ROI_XFORM_RESOLUTION": 14, "RESOLUTION": 14, "DILATION": 1}
POSE = {
    "ROI_KEYPOINTS_HEAD": "keypoint_rcnn_heads.add_roi_pose_head_v1convX",
    "NUM_KEYPOINTS": 17,
    "ROI_XFORM_RESOLUTION": 14,
    "USE_DECONV_OUTPUT": True,
    "UP_SCALE": 2,
}


def _config(section, values, *, classes=9):
    lines = [f"MODEL:\n  NUM_CLASSES: {classes}\n{section}:", *(f"  {key}: {value}" for key, value in values.items())]
    return config_from_text("\n".join(lines), source="model.yaml", check=False)


def _read_mask(values, body=BODY):
    config, refusals = _config("MRCNN", values), Refusals()
    transform = RoiTransform(config["MRCNN.ROI_XFORM_RESOLUTION"], 2, 2, 5, 4, 224.0, 0.25)
    return read_mask_head(config, transform, body, refusals), refusals


def _read_keypoints(values, body=BODY):
    config, refusals = _config("KRCNN", values, classes=2), Refusals()
    transform = RoiTransform(config["KRCNN.ROI_XFORM_RESOLUTION"], 2, 2, 5, 4, 224.0, 0.25)
    return read_keypoint_head(config, transform, body, refusals), refusals


@pytest.mark.parametrize(
    ("function", "trunk", "pooled"),
    [
        ("v1up", ConvChain("_[mask]_fcn", 2, Kernel(3, pad=1), 256), "_[mask]_roi_feat"),
        ("v1up4convs", ConvChain("_[mask]_fcn", 4, Kernel(3, pad=1), 256), "_[mask]_roi_feat"),
        (
            "v1up4convs_gn",
            ConvChain("_mask_fcn", 4, Kernel(3, pad=1), 256, GroupNorm(32, 1e-5)),
            "_mask_roi_feat",
        ),
    ],
)
def test_convolutional_mask_heads(function, trunk, pooled):
    head, refusals = _read_mask({"ROI_MASK_HEAD": f"mask_rcnn_heads.mask_rcnn_fcn_head_{function}", **FPN_MASKS})
    assert (head.trunk, head.pooled, head.num_masks, head.size) == (trunk, pooled, 9, 28)
    assert not refusals


@pytest.mark.parametrize("function", ["v0up", "v0upshare"])
def test_mask_heads_with_a_res5(function):
    head, refusals = _read_mask({"ROI_MASK_HEAD": f"mask_rcnn_heads.mask_rcnn_fcn_head_{function}", **C4_MASKS})
    assert head.trunk == RoiStage("_[mask]_res5", BODY, stride=2, dilation=1)
    assert (head.pooled, head.size) == ("_[mask]_pool5", 14)
    assert not refusals


@pytest.mark.parametrize(
    ("values", "made"),
    [
        ({"ROI_MASK_HEAD": "mask_rcnn_heads.mask_rcnn_fcn_head_v0up", "DILATION": 2}, 28),
        ({"ROI_MASK_HEAD": "mask_rcnn_heads.mask_rcnn_fcn_head_v1up"}, 28),
        ({"ROI_MASK_HEAD": "mask_rcnn_heads.mask_rcnn_fcn_head_v1up", "UPSAMPLE_RATIO": 2}, 56),
        ({"ROI_MASK_HEAD": "mask_rcnn_heads.mask_rcnn_fcn_head_v1up4convs_gn", "DILATION": 2}, 44),
    ],
)
def test_a_resolution_that_the_head_does_not_make_is_refused(values, made):
    _, refusals = _read_mask({**C4_MASKS, **values})
    assert len(refusals) == 1
    assert refusals[0].startswith(f"MRCNN.RESOLUTION: 14; the head makes masks of {made} x {made} cells")


def test_unknown_and_unset_heads_are_refused_with_the_known_ones():
    _, refusals = _read_mask({"ROI_MASK_HEAD": "mask_rcnn_heads.mine", **FPN_MASKS})
    assert refusals[0].startswith("MRCNN.ROI_MASK_HEAD: mask_rcnn_heads.mine; known: ")
    assert "mask_rcnn_heads.mask_rcnn_fcn_head_v0upshare" in refusals[0]
    _, refusals = _read_keypoints({**POSE, "ROI_KEYPOINTS_HEAD": "''"})
    assert refusals[0].startswith("KRCNN.ROI_KEYPOINTS_HEAD: not set; known: keypoint_rcnn_heads.add_ResNet")


def test_a_res5_head_needs_a_residual_body_and_a_stride():
    function = {"ROI_MASK_HEAD": "mask_rcnn_heads.mask_rcnn_fcn_head_v0up"}
    assert "MRCNN needs a residual body" in _read_mask({**function, **C4_MASKS}, VGG16)[1][0]
    _, refusals = _read_mask({**function, **C4_MASKS, "ROI_XFORM_RESOLUTION": 6})
    assert refusals == ["MRCNN.ROI_XFORM_RESOLUTION: 6; a res5 head needs at least 7"]


def test_outputs_of_masks():
    values = {"ROI_MASK_HEAD": "mask_rcnn_heads.mask_rcnn_fcn_head_v1up", **FPN_MASKS, "RESOLUTION": 56}
    head, refusals = _read_mask(
        {**values, "UPSAMPLE_RATIO": 2, "USE_FC_OUTPUT": True, "CLS_SPECIFIC_MASK": False, "DIM_REDUCED": 32}
    )
    assert (head.dense, head.upsample, head.num_masks, head.channels) == (True, 2, 1, 32)
    assert not refusals


def test_keypoint_heads():
    head, refusals = _read_keypoints({**POSE, "NUM_STACKED_CONVS": 4, "CONV_HEAD_DIM": 64})
    assert head.trunk == ConvChain("conv_fcn", 4, Kernel(3, pad=1), 64)
    assert (head.pooled, head.count, head.size, head.deconv_channels) == ("_[pose]_roi_feat", 17, 56, None)
    assert not refusals
    function = "keypoint_rcnn_heads.add_ResNet_roi_conv5_head_for_keypoints"
    head, refusals = _read_keypoints({**POSE, "ROI_KEYPOINTS_HEAD": function, "USE_DECONV": True, "DECONV_DIM": 32})
    assert head.trunk == RoiStage("_[pose]_res5", BODY, stride=2, dilation=1)
    assert (head.pooled, head.size, head.deconv_channels) == ("_[pose]_pool5", 56, 32)
    assert not refusals


def test_oks_nms_of_other_keypoints_is_refused():
    _, refusals = _read_keypoints({**POSE, "NUM_KEYPOINTS": 5, "NMS_OKS": True})
    assert refusals == ["KRCNN.NMS_OKS: True; defined for 17 keypoints, KRCNN.NUM_KEYPOINTS is 5"]


def test_rules_for_the_host():
    masks = _config("MRCNN", {"RESOLUTION": 28, "THRESH_BINARIZE": 0.4})
    assert mask_rules_from_config(masks) == MaskRules(resolution=28, threshold=0.4)
    keypoints = _config(
        "KRCNN", {**POSE, "INFERENCE_MIN_SIZE": 3, "KEYPOINT_CONFIDENCE": "logit", "NMS_OKS": True}, classes=2
    )
    assert keypoint_rules_from_config(keypoints) == KeypointRules(17, 3, "logit", nms_oks=True)
