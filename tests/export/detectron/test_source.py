"""What a configuration becomes, what it is refused for, and weights that belong to another configuration."""

from __future__ import annotations

import pickle

import pytest
from thin_models import THIN, export_thin, lay_out, make_blobs

from roiline.core.errors import ConfigError, UsageError, WeightError
from roiline.export.detectron.exporter import export_detectron

BOX = "FAST_RCNN: {ROI_BOX_HEAD: fast_rcnn_heads.add_roi_2mlp_head, ROI_XFORM_METHOD: RoIAlign, ROI_XFORM_RESOLUTION: 7}\n"
FPN = (
    "MODEL: {TYPE: generalized_rcnn, CONV_BODY: FPN.add_fpn_ResNet50_conv5_body, NUM_CLASSES: 5, FASTER_RCNN: True}\n"
    "FPN: {FPN_ON: True, MULTILEVEL_ROIS: True, MULTILEVEL_RPN: True}\n" + BOX
)
C4 = (
    "MODEL: {TYPE: generalized_rcnn, CONV_BODY: ResNet.add_ResNet50_conv4_body, NUM_CLASSES: 5, FASTER_RCNN: True}\n"
    "FAST_RCNN: {ROI_BOX_HEAD: ResNet.add_ResNet_roi_conv5_head, ROI_XFORM_METHOD: RoIAlign}\n"
)
VGG = (
    "MODEL: {TYPE: generalized_rcnn, CONV_BODY: VGG16.add_VGG16_conv5_body, NUM_CLASSES: 5, FASTER_RCNN: True}\n"
    "FAST_RCNN: {ROI_BOX_HEAD: VGG16.add_VGG16_roi_fc_head}\n"
)
CASCADE = FPN.replace("FASTER_RCNN: True", "FASTER_RCNN: True, CASCADE_ON: True, CLS_AGNOSTIC_BBOX_REG: True") + (
    "CASCADE_RCNN: {ROI_BOX_HEAD: cascade_rcnn_heads.add_roi_2mlp_head}\n"
)


def _lay_out(text: str, *sets: tuple[str, str]):
    return lay_out(text, (*THIN.items(), *sets))


@pytest.mark.parametrize(
    ("text", "sets", "message"),
    [
        (FPN, [("MODEL.TYPE", "mystery")], r"MODEL\.TYPE: mystery; known: .*generalized_rcnn"),
        (
            FPN,
            [("MODEL.CONV_BODY", "FPN.add_fpn_ResNet18_conv5_body")],
            r"MODEL\.CONV_BODY: FPN.*18.*; known: FPN\.add",
        ),
        (
            FPN,
            [("FAST_RCNN.ROI_BOX_HEAD", "my.head")],
            r"FAST_RCNN\.ROI_BOX_HEAD: my\.head; known: ResNet\.add_ResNet_roi",
        ),
        (FPN, [("FPN.MULTILEVEL_RPN", "False"), ("FPN.RPN_MAX_LEVEL", "5")], r"FPN\.MULTILEVEL_RPN: False"),
        (FPN, [("FPN.MULTILEVEL_ROIS", "False")], r"FPN\.MULTILEVEL_ROIS: False"),
        (FPN, [("RESNETS.RES5_DILATION", "2")], r"RESNETS\.RES5_DILATION: 2; a pyramid needs"),
        (FPN, [("FPN.RPN_MAX_LEVEL", "7")], r"levels above 6 need FPN\.EXTRA_CONV_LEVELS"),
        (FPN, [("FPN.FINEST_LEVEL_SCALE", "0.5")], r"FPN\.FINEST_LEVEL_SCALE: 0\.5"),
        (FPN, [("MODEL.GAM", "True")], r"MODEL\.GAM: True; which features its attention sees"),
        (FPN, [("MODEL.ATTENTIONAL_TRANSITION", "True")], r"MODEL\.ATTENTIONAL_TRANSITION: True"),
        (FPN, [("MODEL.SIBLING_BACKBONE_ON", "True")], r"MODEL\.SIBLING_BACKBONE_ON: True"),
        (C4, [("FAST_RCNN.ROI_XFORM_RESOLUTION", "12")], r"ROI_XFORM_RESOLUTION: 12; res5 must come out 7 x 7"),
        (C4, [("FAST_RCNN.ROI_XFORM_RESOLUTION", "6")], r"ROI_XFORM_RESOLUTION: 6; res5 must come out 7 x 7"),
        (CASCADE, [("MODEL.FASTER_RCNN", "False")], r"MODEL\.FASTER_RCNN: False; a cascade on given proposals"),
        (
            CASCADE,
            [("CASCADE_RCNN.ROI_BOX_HEAD", "x.y")],
            r"CASCADE_RCNN\.ROI_BOX_HEAD: x\.y; known: cascade_rcnn_heads",
        ),
    ],
)
def test_what_cannot_be_exported_is_refused_by_key_and_reason(text, sets, message):
    with pytest.raises(ConfigError, match=message):
        _lay_out(text, *sets)


def test_all_refusals_are_listed_at_once():
    with pytest.raises(ConfigError, match=r"(?s)MODEL\.GAM.*MODEL\.CONV_BODY.*FAST_RCNN\.ROI_BOX_HEAD"):
        _lay_out(FPN, ("MODEL.GAM", "True"), ("MODEL.CONV_BODY", "no.body"), ("FAST_RCNN.ROI_BOX_HEAD", "no.head"))


@pytest.mark.parametrize(
    ("text", "sets", "name"),
    [
        (FPN, [], "faster_rcnn_R-50-FPN"),
        (
            FPN,
            [("RESNETS.NUM_GROUPS", "32"), ("MODEL.CONV_BODY", "FPN.add_fpn_ResNet101_conv5_body")],
            "faster_rcnn_X-101-FPN",
        ),
        (FPN, [("MODEL.FASTER_RCNN", "False")], "fast_rcnn_R-50-FPN"),
        (FPN, [("MODEL.RPN_ONLY", "True")], "rpn_R-50-FPN"),
        (C4, [], "faster_rcnn_R-50-C4"),
        (VGG, [], "faster_rcnn_VGG16"),
        (CASCADE, [], "cascade_rcnn_R-50-FPN"),
        ("MODEL: {TYPE: ResNet101_fast_rcnn, NUM_CLASSES: 3}", [], "fast_rcnn_R-101-C4"),
        ("MODEL: {TYPE: VGG16_rpn_frozen_features, NUM_CLASSES: 2, RPN_ONLY: True}", [], "rpn_VGG16"),
        ("MODEL: {TYPE: ResNet50_rfcn, NUM_CLASSES: 3}", [], "rfcn_R-50-C5"),
    ],
)
def test_networks_are_named_for_their_parts(text, sets, name):
    assert _lay_out(text, *sets).name == name


def test_dilated_res5_declares_its_scale():
    text = C4.replace("ResNet.add_ResNet50_conv4_body", "ResNet.add_ResNet50_conv5_body").replace(
        "ResNet.add_ResNet_roi_conv5_head", "fast_rcnn_heads.add_roi_2mlp_head"
    )
    for dilation, stride in (("1", 32.0), ("2", 16.0)):
        network = _lay_out(text, ("RESNETS.RES5_DILATION", dilation))
        (pool,) = (node for node in network.graph.nodes if node.op_type == "MultiLevelRoIAlign")
        (scales,) = (attribute.floats for attribute in pool.attribute if attribute.name == "spatial_scales")
        assert list(scales) == [1 / stride]


def _export_other(made_of: str, read_as: str, folder, *sets: tuple[str, str], task=None):
    blobs = make_blobs(_lay_out(made_of))
    (folder / "m.yaml").write_text(read_as)
    (folder / "m.pkl").write_bytes(pickle.dumps({"blobs": blobs}, 2))
    return export_detectron(
        folder / "m.yaml", folder / "m.pkl", folder / "m.onnx", overrides=(*THIN.items(), *sets), task=task
    )


@pytest.mark.parametrize(
    ("made_of", "read_as", "sets", "message"),
    [
        (FPN, C4, [], "The RPN is of an FPN model in the weights and single-scale in the configuration"),
        (C4, FPN, [], "the configuration is of an FPN model, the weights are of a single-scale one"),
        (VGG, C4, [], "The body is a VGG16 in the weights and a ResNet in the configuration"),
        (
            FPN,
            FPN,
            [("MODEL.CONV_BODY", "FPN.add_fpn_ResNet101_conv5_body")],
            "res4 x 6.*in the weights.*res4 x 23.*in the configuration",
        ),
        (FPN, FPN, [("MODEL.NUM_CLASSES", "9")], "The weights have 5 classes with background, the configuration 9"),
        (FPN, FPN, [("RESNETS.NUM_GROUPS", "8")], "RESNETS.NUM_GROUPS"),
        (FPN, FPN, [("FPN.USE_GN", "True")], "fpn_res2_2_sum_gn_s +missing"),
        (FPN, FPN, [("FPN.RPN_ASPECT_RATIOS", "(0.5, 1)")], "rpn_cls_logits_fpn2_w +.*FPN.RPN_ASPECT_RATIOS"),
        (FPN, FPN, [("FAST_RCNN.ROI_XFORM_RESOLUTION", "14")], "fc6_w .*FAST_RCNN.ROI_XFORM_RESOLUTION"),
        (FPN, CASCADE, [], "bbox_pred_w .*MODEL.CLS_AGNOSTIC_BBOX_REG"),
        (FPN, FPN, [("FAST_RCNN.ROI_BOX_HEAD", "fast_rcnn_heads.add_roi_Xconv1fc_head")], "head_conv1_w +missing"),
    ],
)
def test_weights_of_another_configuration_are_refused_with_evidence(made_of, read_as, sets, message, tmp_path):
    with pytest.raises(WeightError, match=f"(?s){message}"):
        _export_other(made_of, read_as, tmp_path, *sets)
    assert not (tmp_path / "m.onnx").exists()


def test_tasks_that_a_model_cannot_do_are_refused(tmp_path):
    with pytest.raises(UsageError, match="this model is for proposals, not detections"):
        _export_other(FPN, FPN.replace("FASTER_RCNN", "RPN_ONLY"), tmp_path, task="detections")
    with pytest.raises(ConfigError, match=r"MODEL\.FASTER_RCNN: False; the model has no RPN"):
        _export_other(FPN, FPN.replace("FASTER_RCNN: True", "FASTER_RCNN: False"), tmp_path, task="proposals")


def test_what_a_model_does_not_use_is_listed(tmp_path):
    report = _export_other(FPN, FPN, tmp_path, task="proposals")
    assert report.spec.tasks == ("proposals",)
    assert "not used: fc6_w (box head)" in report.leftovers
    assert "not used: cls_score_w (box outputs)" in report.leftovers


def test_adversarial_branches_are_recognised_and_dropped(tmp_path):
    blobs = make_blobs(_lay_out(VGG))
    branches = ("da_conv_1", "da_conv_2", "dc_ip1", "dc_ip2", "dc_ip3")
    blobs |= {f"{name}_{part}": blobs["fc7_b"] for name in branches for part in "wb"}
    (tmp_path / "m.yaml").write_text(VGG + "TRAIN: {DOMAIN_ADAPTATION: True}\n")
    (tmp_path / "m.pkl").write_bytes(pickle.dumps({"blobs": blobs}, 2))
    report = export_detectron(tmp_path / "m.yaml", tmp_path / "m.pkl", tmp_path / "m.onnx")
    dropped = [line for line in report.leftovers if "domain classifier, for training" in line]
    assert len(dropped) == len(report.leftovers) == 10
    assert any("TRAIN.DOMAIN_ADAPTATION was switched off" in warning for warning in report.warnings)


def test_test_options_are_data(tmp_path):
    text = FPN + (
        "TEST: {BBOX_REG: False, SOFT_NMS: {ENABLED: True, METHOD: gaussian, SIGMA: 0.4}, "
        "BBOX_VOTE: {ENABLED: True, VOTE_TH: 0.6, SCORING_METHOD: AVG}, "
        "BBOX_AUG: {ENABLED: True, H_FLIP: True, ASPECT_RATIOS: [0.8, 2]}, MASK_AUG: {ENABLED: True}}\n"
    )
    spec = export_thin(text, tmp_path).spec
    assert (spec.test.soft_nms.method, spec.test.soft_nms.sigma) == ("gaussian", 0.4)
    assert (spec.test.voting.vote_thresh, spec.test.voting.scoring_method) == (0.6, "AVG")
    assert spec.test.box_augmentation.passes.aspect_ratios == (0.8, 2.0)
    assert spec.test.box_augmentation.passes.h_flip
    assert spec.test.mask_augmentation is None, "there are no masks to augment"
    assert not spec.detection.regress
