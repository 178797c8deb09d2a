"""What a configuration becomes, and what is refused, by key and with the reason."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from roiline.core.errors import ConfigError
from roiline.export.architecture import CascadeHead, ConvFeatures, Res5Features
from roiline.export.detectron2.config import load_config
from roiline.export.detectron2.source import image_rules_from_config, source_from_config

FPN = """
MODEL:
  BACKBONE: {NAME: build_resnet_fpn_backbone}
  RESNETS: {OUT_FEATURES: [res2, res3, res4, res5]}
  FPN: {IN_FEATURES: [res2, res3, res4, res5]}
  ANCHOR_GENERATOR: {SIZES: [[32], [64], [128], [256], [512]]}
  RPN: {IN_FEATURES: [p2, p3, p4, p5, p6]}
  ROI_HEADS: {NAME: StandardROIHeads, IN_FEATURES: [p2, p3, p4, p5]}
  ROI_BOX_HEAD: {NAME: FastRCNNConvFCHead, NUM_FC: 2, POOLER_RESOLUTION: 7}
"""
RETINANET = """
MODEL:
  META_ARCHITECTURE: RetinaNet
  BACKBONE: {NAME: build_retinanet_resnet_fpn_backbone}
  RESNETS: {OUT_FEATURES: [res3, res4, res5]}
  FPN: {IN_FEATURES: [res3, res4, res5]}
  ANCHOR_GENERATOR: {SIZES: [[32, 40], [64, 80], [128, 160], [256, 320], [512, 640]]}
"""
C4 = "MODEL: {MASK_ON: true}\n"


def read(text: str, folder: Path, *pairs: str, proposals_only: bool = False):
    path = folder / "c.yaml"
    path.write_text(text)
    config = load_config(path, [tuple(pair.split("=", 1)) for pair in pairs])
    return source_from_config(config, proposals_only=proposals_only)


def test_pyramid_models(tmp_path):
    source = read(FPN, tmp_path, "MODEL.MASK_ON=True", "MODEL.KEYPOINT_ON=True")
    architecture = source.architecture
    assert architecture.name == "mask_keypoint_rcnn_R-50-FPN"
    assert source.pad_multiple == 32
    assert [level.stride for level in architecture.rpn.levels] == [4, 8, 16, 32, 64]
    assert architecture.pyramid.max_level == 6
    assert isinstance(architecture.head.features, ConvFeatures)
    np.testing.assert_allclose(architecture.rpn.levels[0].anchors[1], [-16, -16, 16, 16])


def test_a_pyramid_goes_no_further_than_heads_look(tmp_path):
    pairs = ("MODEL.RPN.IN_FEATURES=['p3','p4']", "MODEL.ANCHOR_GENERATOR.SIZES=[[32],[64]]")
    assert read(FPN, tmp_path, *pairs).architecture.pyramid.max_level == 5


def test_single_scale_models(tmp_path):
    source = read(C4, tmp_path)
    architecture = source.architecture
    assert architecture.name == "mask_rcnn_R-50-C4"
    assert source.pad_multiple == 1
    assert isinstance(architecture.head.features, Res5Features)
    assert len(architecture.rpn.levels[0].anchors) == 15
    assert architecture.mask_head.size == 14
    dilated = ("MODEL.RESNETS.RES5_DILATION=2", "MODEL.RESNETS.OUT_FEATURES=['res5']")
    heads = ("MODEL.RPN.IN_FEATURES=['res5']", "MODEL.ROI_HEADS.IN_FEATURES=['res5']")
    boxes = (
        "MODEL.ROI_HEADS.NAME=StandardROIHeads",
        "MODEL.ROI_BOX_HEAD.NAME=FastRCNNConvFCHead",
        "MODEL.ROI_BOX_HEAD.NUM_FC=2",
    )
    dc5 = read("", tmp_path, *dilated, *heads, *boxes).architecture
    assert dc5.name == "faster_rcnn_R-50-DC5"
    assert dc5.rpn.levels[0].stride == 16
    assert dc5.head.transform.finest_scale == 1 / 16


def test_cascades(tmp_path):
    pairs = ("MODEL.ROI_HEADS.NAME=CascadeROIHeads", "MODEL.ROI_BOX_HEAD.CLS_AGNOSTIC_BBOX_REG=True")
    architecture = read(FPN, tmp_path, *pairs).architecture
    assert isinstance(architecture.head, CascadeHead)
    assert architecture.head.stage == 3
    assert architecture.detection.bbox_reg_weights == (30, 30, 15, 15)


@pytest.mark.parametrize(("norm", "own", "biased"), [("", False, False), ("GN", False, True), ("BN", True, False)])
def test_towers_of_a_retinanet(norm, own, biased, tmp_path):
    source = read(RETINANET, tmp_path, f"MODEL.RETINANET.NORM='{norm}'")
    head = source.architecture.retinanet
    assert (head.own_towers, head.biased) == (own, biased)
    towers = [layer for layer in source.layers if layer.path.startswith("head.cls_subnet.")]
    assert len(towers) == 4 * (5 if own else 1)
    if own:
        assert towers[1].parameters["retnet_cls_conv_n0_fpn4_b"] == (
            "head.cls_subnet.1.bias",
            "head.cls_subnet.1.weight",
            "head.cls_subnet.1.bias",
            "head.cls_subnet.1.1.running_mean",
            "head.cls_subnet.1.1.running_var",
            "head.cls_subnet.0.bias",
        )


def test_proposals_alone(tmp_path):
    assert read(FPN, tmp_path, proposals_only=True).architecture.head is None
    assert read(C4, tmp_path, "MODEL.META_ARCHITECTURE=ProposalNetwork").architecture.name == "rpn_R-50-C4"


def test_given_proposals(tmp_path):
    architecture = read(FPN, tmp_path, "MODEL.PROPOSAL_GENERATOR.NAME=PrecomputedProposals").architecture
    assert architecture.name == "fast_rcnn_R-50-FPN"
    assert architecture.rpn is None


@pytest.mark.parametrize(
    ("text", "pairs", "said"),
    [
        (FPN, ["MODEL.META_ARCHITECTURE=PanopticFPN"], "MODEL.META_ARCHITECTURE: PanopticFPN"),
        (FPN, ["MODEL.BACKBONE.NAME=build_vovnet"], "MODEL.BACKBONE.NAME: build_vovnet"),
        (FPN, ["MODEL.RESNETS.DEPTH=77"], "MODEL.RESNETS.DEPTH: 77"),
        (FPN, ["MODEL.RESNETS.DEPTH=18"], "RES2_OUT_CHANNELS: 256; a ResNet-18 has 64"),
        (FPN, ["MODEL.RESNETS.DEFORM_ON_PER_STAGE=[False,True,True,True]"], "deformable"),
        (FPN, ["MODEL.RESNETS.RES5_DILATION=2"], "RES5_DILATION: 2; a pyramid"),
        (FPN, ["MODEL.RESNETS.NORM=LN"], "MODEL.RESNETS.NORM: LN"),
        (FPN, ["MODEL.RESNETS.OUT_FEATURES=['res2','res3','res4']"], "MODEL.FPN.IN_FEATURES"),
        (FPN, ["MODEL.FPN.IN_FEATURES=['res2','res4','res5']"], "neighbouring"),
        (FPN, ["MODEL.FPN.FUSE_TYPE=max"], "MODEL.FPN.FUSE_TYPE: max"),
        (FPN, ["MODEL.RPN.IN_FEATURES=['p2','p4']", "MODEL.ANCHOR_GENERATOR.SIZES=[[8],[9]]"], "neighbours"),
        (FPN, ["MODEL.RPN.IN_FEATURES=['res4']"], "feature maps are p2"),
        (FPN, ["MODEL.ANCHOR_GENERATOR.SIZES=[[8],[9]]"], "for each of p2, p3"),
        (FPN, ["MODEL.ANCHOR_GENERATOR.SIZES=[[8],[9],[9],[9],[9,10]]"], "as many anchors"),
        (FPN, ["MODEL.ANCHOR_GENERATOR.SIZES=[[8],[-9],[9],[9],[9]]"], "positive numbers"),
        (FPN, ["MODEL.ANCHOR_GENERATOR.OFFSET=1.5"], "part of a cell"),
        (FPN, ["MODEL.ANCHOR_GENERATOR.NAME=RotatedAnchorGenerator"], "ANCHOR_GENERATOR.NAME"),
        (FPN, ["MODEL.PROPOSAL_GENERATOR.NAME=RRPN"], "PROPOSAL_GENERATOR.NAME: RRPN"),
        (FPN, ["MODEL.RPN.HEAD_NAME=Mine"], "MODEL.RPN.HEAD_NAME: Mine"),
        (FPN, ["MODEL.RPN.BBOX_REG_WEIGHTS=(1.0,1.0)"], "MODEL.RPN.BBOX_REG_WEIGHTS"),
        (FPN, ["MODEL.RPN.PRE_NMS_TOPK_TEST=0"], "PRE_NMS_TOPK_TEST: 0"),
        (FPN, ["MODEL.RPN.CONV_DIMS=[0]"], "CONV_DIMS"),
        (FPN, ["MODEL.ROI_HEADS.NAME=RROIHeads"], "MODEL.ROI_HEADS.NAME: RROIHeads"),
        (FPN, ["MODEL.ROI_HEADS.NAME=Res5ROIHeads"], "wants one feature map"),
        (FPN, ["MODEL.ROI_HEADS.NAME=CascadeROIHeads"], "CLS_AGNOSTIC_BBOX_REG: False"),
        (FPN, ["MODEL.ROI_HEADS.NUM_CLASSES=0"], "NUM_CLASSES: 0"),
        (FPN, ["MODEL.ROI_BOX_HEAD.NAME=Mine"], "MODEL.ROI_BOX_HEAD.NAME: Mine"),
        (FPN, ["MODEL.ROI_BOX_HEAD.NUM_FC=0"], "no layers"),
        (FPN, ["MODEL.ROI_BOX_HEAD.POOLER_TYPE=ROIAlignRotated"], "POOLER_TYPE: ROIAlignRotated"),
        (FPN, ["MODEL.MASK_ON=True", "MODEL.ROI_MASK_HEAD.NAME=PointRend"], "MODEL.ROI_MASK_HEAD.NAME: PointRend"),
        (C4, ["MODEL.KEYPOINT_ON=True"], "has no keypoint head"),
        (FPN, ["TEST.DETECTIONS_PER_IMAGE=0"], "no detection is ever kept"),
        (FPN, ["TEST.AUG.ENABLED=True"], "TEST.AUG.ENABLED: True"),
        (RETINANET, ["TEST.DETECTIONS_PER_IMAGE=-1"], "keeps at least 1"),
        (RETINANET, ["MODEL.RETINANET.NUM_CONVS=0"], "NUM_CONVS: 0"),
    ],
)
def test_refusals(text, pairs, said, tmp_path):
    with pytest.raises(ConfigError) as failure:
        read(text, tmp_path, *pairs)
    assert said in str(failure.value)


@pytest.mark.parametrize(
    "text", [RETINANET, FPN.replace("BACKBONE", "PROPOSAL_GENERATOR: {NAME: PrecomputedProposals}\n  BACKBONE")]
)
def test_models_without_proposals_of_their_own_give_none(text, tmp_path):
    with pytest.raises(ConfigError, match="makes no proposals"):
        read(text, tmp_path, proposals_only=True)


@pytest.mark.parametrize(
    ("pair", "said"),
    [
        ("INPUT.FORMAT=L", "INPUT.FORMAT: L"),
        ("MODEL.PIXEL_MEAN=[1.0]", "three numbers"),
        ("MODEL.PIXEL_STD=[1.0, 0.0, 1.0]", "divided by it"),
        ("INPUT.MIN_SIZE_TEST=-1", "MIN_SIZE_TEST"),
    ],
)
def test_pictures_that_cannot_be_prepared(pair, said, tmp_path):
    (tmp_path / "c.yaml").write_text(FPN)
    config = load_config(tmp_path / "c.yaml", [tuple(pair.split("=", 1))])
    with pytest.raises(ConfigError, match=said):
        image_rules_from_config(config, 32)
