"""The RETINANET section of a Detectron configuration as a head, and as the rules for its detections."""

from __future__ import annotations

from roiline.core.spec import DetectionRules
from roiline.export.detectron.config import DetectronConfig
from roiline.export.detectron.refusals import Refusals
from roiline.export.one_stage import RetinaNet
from roiline.ops.anchors.retinanet import generate_retinanet_anchors


def read_retinanet(config: DetectronConfig, refusals: Refusals) -> RetinaNet:
    """Returns the head on the levels of the pyramid's RPN range; what cannot be exported is added to `refusals`, by key."""
    _refuse_unsupported(config, refusals)
    _refuse_out_of_range(config, refusals)
    first, last = config["FPN.RPN_MIN_LEVEL"], config["FPN.RPN_MAX_LEVEL"]
    anchors = tuple(
        generate_retinanet_anchors(
            level,
            config["RETINANET.ASPECT_RATIOS"],
            max(config["RETINANET.SCALES_PER_OCTAVE"], 1),
            config["RETINANET.ANCHOR_SCALE"],
        )
        for level in range(first, last + 1)
    )
    return RetinaNet(
        min_level=first,
        anchors=anchors,
        num_classes=config["MODEL.NUM_CLASSES"],
        num_convs=config["RETINANET.NUM_CONVS"],
        shared_tower=config["RETINANET.SHARE_CLS_BBOX_TOWER"],
        softmax=config["RETINANET.SOFTMAX"],
        pre_nms_top_n=config["RETINANET.PRE_NMS_TOP_N"],
    )


def retinanet_rules_from_config(config: DetectronConfig) -> DetectionRules:
    """Returns how candidates become detections. TEST.SCORE_THRESH and MODEL.BBOX_REG_WEIGHTS play no part in a RetinaNet."""
    return DetectionRules(
        score_thresh=config["RETINANET.INFERENCE_TH"],
        nms_thresh=config["TEST.NMS"],
        max_dets=config["TEST.DETECTIONS_PER_IM"],
        class_agnostic=True,
        bbox_reg_weights=(1.0, 1.0, 1.0, 1.0),
        regress=config["TEST.BBOX_REG"],
    )


def _refuse_unsupported(config: DetectronConfig, refusals: Refusals) -> None:
    for key, needed, reason in (
        ("RETINANET.RETINANET_ON", True, "the original tests a model of type retinanet as one only with it"),
        ("MODEL.TYPE", "retinanet", "RETINANET.RETINANET_ON needs it"),
        ("FPN.FPN_ON", True, "a RetinaNet needs a pyramid"),
        ("FPN.MULTILEVEL_RPN", True, "the head is on the levels that FPN.RPN_MIN_LEVEL and RPN_MAX_LEVEL give"),
        (
            "RETINANET.CLASS_SPECIFIC_BBOX",
            False,
            "the original decodes boxes of a class from channels that its head does not have, so no answer is right",
        ),
        ("MODEL.MASK_ON", False, "a RetinaNet has no RoIs for a mask head"),
        ("MODEL.KEYPOINTS_ON", False, "a RetinaNet has no RoIs for a keypoint head"),
    ):
        if config[key] != needed:
            refusals.add(key, config[key], f"{reason}; only {needed} can be exported")


def _refuse_out_of_range(config: DetectronConfig, refusals: Refusals) -> None:
    for key, least, reason in (
        ("RETINANET.SCALES_PER_OCTAVE", 1, "it is how many sizes the anchors of a cell have"),
        ("RETINANET.NUM_CONVS", 0, "it is the depth of a tower"),
        ("RETINANET.PRE_NMS_TOP_N", 0, "it is how many candidates a level keeps, 0 for all"),
        ("TEST.DETECTIONS_PER_IM", 1, "a RetinaNet keeps exactly that many, never all"),
    ):
        if config[key] < least:
            refusals.add(key, config[key], f"{reason}; at least {least}")
    first, last = config["FPN.RPN_MIN_LEVEL"], config["FPN.RPN_MAX_LEVEL"]
    if last < first:
        refusals.add("FPN.RPN_MAX_LEVEL", last, f"below FPN.RPN_MIN_LEVEL, {first}, there is no level")
    if config["RETINANET.ANCHOR_SCALE"] <= 0:
        refusals.add("RETINANET.ANCHOR_SCALE", config["RETINANET.ANCHOR_SCALE"], "it multiplies anchors; above 0")
