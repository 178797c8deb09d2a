"""The region proposal network that a configuration describes."""

from __future__ import annotations

from roiline.export.architecture import RpnLevel, RpnRules
from roiline.export.detectron.bodies import BodyPlan
from roiline.export.detectron.config import DetectronConfig
from roiline.export.detectron.refusals import Refusals
from roiline.ops.anchors import generate_anchors


def read_rpn(config: DetectronConfig, plan: BodyPlan, refusals: Refusals) -> RpnRules:
    """Returns the RPN on all levels of a pyramid, or on the one feature map that there is."""
    multilevel = config["FPN.FPN_ON"]
    if multilevel and not config["FPN.MULTILEVEL_RPN"]:
        refusals.add("FPN.MULTILEVEL_RPN", False, "an RPN on a pyramid has a part on every level: set it to True")
    return RpnRules(
        levels=_place_pyramid_anchors(config) if multilevel else (_place_anchors(config, plan),),
        pre_nms_top_n=config["TEST.RPN_PRE_NMS_TOP_N"],
        post_nms_top_n=config["TEST.RPN_POST_NMS_TOP_N"],
        nms_thresh=config["TEST.RPN_NMS_THRESH"],
        min_size=float(config["TEST.RPN_MIN_SIZE"]),
        multilevel=multilevel,
        native=config["TEST.GENERATE_PROPOSALS_ON_GPU"],
    )


def _place_anchors(config: DetectronConfig, plan: BodyPlan) -> RpnLevel:
    stride = 1 / plan.scale
    return RpnLevel(plan.level, stride, generate_anchors(stride, config["RPN.SIZES"], config["RPN.ASPECT_RATIOS"]))


def _place_pyramid_anchors(config: DetectronConfig) -> tuple[RpnLevel, ...]:
    first = config["FPN.RPN_MIN_LEVEL"]
    levels = []
    for level in range(first, config["FPN.RPN_MAX_LEVEL"] + 1):
        growth = config["FPN.RPN_ANCHOR_SIZE_INCREASE"] ** (level - first)
        size = config["FPN.RPN_ANCHOR_START_SIZE"] * growth
        levels.append(
            RpnLevel(level, 2.0**level, generate_anchors(2.0**level, (size,), config["FPN.RPN_ASPECT_RATIOS"]))
        )
    return tuple(levels)
