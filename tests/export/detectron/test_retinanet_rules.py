from __future__ import annotations

import numpy as np
import pytest

from roiline.core.errors import ConfigError
from roiline.export.detectron.config import config_from_text
from roiline.export.detectron.refusals import Refusals
from roiline.export.detectron.retinanet_rules import read_retinanet, retinanet_rules_from_config

RETINANET = """
MODEL: {TYPE: retinanet, CONV_BODY: FPN.add_fpn_ResNet50_conv5_body, NUM_CLASSES: 81}
FPN: {FPN_ON: True, MULTILEVEL_RPN: True, RPN_MIN_LEVEL: 3, RPN_MAX_LEVEL: 7, EXTRA_CONV_LEVELS: True}
RETINANET: {RETINANET_ON: True, ASPECT_RATIOS: "(1.0, 2.0, 0.5)"}
TEST: {NMS: 0.5}
"""


def _read(*overrides: tuple[str, str]):
    refusals = Refusals()
    head = read_retinanet(config_from_text(RETINANET, overrides, check=False), refusals)
    try:
        refusals.raise_if_any("x.yaml")
    except ConfigError as error:
        return head, [line.strip() for line in str(error).splitlines()[1:]]
    return head, []


def test_the_published_head():
    head, refusals = _read()
    assert refusals == []
    assert head.levels == range(3, 8)
    assert [anchors.shape for anchors in head.anchors] == [(9, 4)] * 5
    np.testing.assert_allclose(head.anchors[0][:2], [(-12, -12, 19, 19), (-8, -20, 15, 27)])
    np.testing.assert_allclose(head.anchors[4][1], (-118, -300, 245, 427))
    assert (head.num_classes, head.num_convs, head.pre_nms_top_n) == (81, 4, 1000)
    assert not head.shared_tower
    assert not head.softmax


def test_the_section_decides():
    head, refusals = _read(
        ("RETINANET.SCALES_PER_OCTAVE", "2"),
        ("RETINANET.ANCHOR_SCALE", "3"),
        ("RETINANET.NUM_CONVS", "1"),
        ("RETINANET.SHARE_CLS_BBOX_TOWER", "True"),
        ("RETINANET.SOFTMAX", "True"),
        ("RETINANET.PRE_NMS_TOP_N", "7"),
        ("FPN.RPN_MIN_LEVEL", "4"),
        ("FPN.RPN_MAX_LEVEL", "5"),
    )
    assert refusals == []
    assert [anchors.shape for anchors in head.anchors] == [(6, 4)] * 2
    assert head.anchors[1][0, 2] - head.anchors[1][0, 0] + 1 == 32 * 3
    assert (head.num_convs, head.pre_nms_top_n, head.shared_tower, head.softmax) == (1, 7, True, True)


def test_rules_are_those_of_a_retinanet():
    overrides = (("RETINANET.INFERENCE_TH", "0.1"), ("TEST.SCORE_THRESH", "0.7"), ("TEST.DETECTIONS_PER_IM", "30"))
    rules = retinanet_rules_from_config(config_from_text(RETINANET, overrides))
    assert (rules.score_thresh, rules.nms_thresh, rules.max_dets) == (0.1, 0.5, 30)
    assert rules.bbox_reg_weights == (1.0, 1.0, 1.0, 1.0)
    assert rules.regress
    assert not retinanet_rules_from_config(config_from_text(RETINANET, [("TEST.BBOX_REG", "False")])).regress


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("RETINANET.CLASS_SPECIFIC_BBOX", "True", "the original decodes boxes of a class from channels"),
        ("RETINANET.RETINANET_ON", "False", "only True can be exported"),
        ("MODEL.TYPE", "generalized_rcnn", "only retinanet can be exported"),
        ("FPN.FPN_ON", "False", "needs a pyramid"),
        ("FPN.MULTILEVEL_RPN", "False", "only True can be exported"),
        ("MODEL.MASK_ON", "True", "no RoIs for a mask head"),
        ("MODEL.KEYPOINTS_ON", "True", "no RoIs for a keypoint head"),
        ("RETINANET.SCALES_PER_OCTAVE", "0", "at least 1"),
        ("RETINANET.NUM_CONVS", "-1", "at least 0"),
        ("RETINANET.PRE_NMS_TOP_N", "-1", "at least 0"),
        ("RETINANET.ANCHOR_SCALE", "0", "above 0"),
        ("TEST.DETECTIONS_PER_IM", "0", "keeps exactly that many"),
        ("FPN.RPN_MAX_LEVEL", "2", "there is no level"),
    ],
)
def test_what_cannot_be_exported_is_refused_by_key_and_reason(key, value, reason):
    _, refusals = _read((key, value))
    assert len(refusals) == 1
    assert refusals[0].startswith(f"{key}: {value}; ")
    assert reason in refusals[0]


def test_all_refusals_are_said_at_once():
    _, refusals = _read(("MODEL.MASK_ON", "True"), ("RETINANET.CLASS_SPECIFIC_BBOX", "True"), ("MODEL.TYPE", "rfcn"))
    assert [line.split(":")[0] for line in refusals] == ["MODEL.TYPE", "RETINANET.CLASS_SPECIFIC_BBOX", "MODEL.MASK_ON"]
