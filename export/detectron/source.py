"""A Detectron configuration as an architecture and a specification: which parts the network has, and by which rules it runs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeAlias

from roiline.core.errors import ConfigError
from roiline.core.spec import Conventions, DetectionRules, ImageRules
from roiline.export.architecture import (
    Architecture,
    BoxHead,
    Pyramid,
    ResNet,
    RoiTransform,
    RpnLevel,
    RpnRules,
)
from roiline.export.detectron.config import DetectronConfig
from roiline.ops.anchors import generate_anchors

_BLOCKS: Mapping[str, tuple[int, int, int, int]] = {"50": (3, 4, 6, 3), "101": (3, 4, 23, 3), "152": (3, 8, 36, 3)}
_BODY = re.compile(r"FPN\.add_fpn_ResNet(50|101|152)_conv5_body")
_MODEL_TYPES = {
    "generalized_rcnn",
    "faster_rcnn",
    "fpn_rpn",
    "rpn",
}
Refusals: TypeAlias = list[str]


def architecture_from_config(config: DetectronConfig, *, proposals_only: bool) -> Architecture:
    """Returns the network that a configuration describes, without its heads where only proposals are wanted.

    Raises:
        ConfigError: it asks for parts that are not supported; all of them are listed with their keys.
    """
    refusals: Refusals = []
    body = _read_body(config, refusals)
    ends_at_proposals = proposals_only or config["MODEL.RPN_ONLY"]
    _refuse_other_families(config, refusals, ends_at_proposals=ends_at_proposals)
    if refusals:
        listing = "\n  ".join(refusals)
        raise ConfigError(f"{config.source}: this network cannot be exported:\n  {listing}")
    conventions = conventions_from_config(config)
    return Architecture(
        name=_name(config, ends_at_proposals=ends_at_proposals),
        body=body,
        pyramid=_read_pyramid(config),
        rpn=_read_rpn(config),
        box_head=None if ends_at_proposals else _read_box_head(config),
        conventions=conventions,
    )


def conventions_from_config(config: DetectronConfig) -> Conventions:
    """Returns Detectron's way with boxes."""
    return Conventions(
        name="detectron",
        plus_one=True,
        nms_inclusive=True,
        roi_half_pixel=False,
        delta_clip=float(config["BBOX_XFORM_CLIP"]),
    )


def image_rules_from_config(config: DetectronConfig) -> ImageRules:
    """Returns how Detectron prepares a picture; cv2.imread, which it reads with, turns JPEGs upright."""
    means = tuple(float(mean) for mean in config["PIXEL_MEANS"].reshape(-1))
    if len(means) != 3:
        raise ConfigError(f"{config.source}: PIXEL_MEANS: expected 3 values, got {len(means)}")
    return ImageRules(
        channel_order="BGR",
        means=(means[0], means[1], means[2]),
        stds=(1.0, 1.0, 1.0),
        scale=config["TEST.SCALE"],
        max_size=config["TEST.MAX_SIZE"],
        resize="detectron",
        pad_multiple=config["FPN.COARSEST_STRIDE"] if config["FPN.FPN_ON"] else 1,
        exif="apply",
    )


def detection_rules_from_config(config: DetectronConfig) -> DetectionRules:
    """Returns how raw scores and boxes become detections."""
    dx, dy, dw, dh = (float(weight) for weight in config["MODEL.BBOX_REG_WEIGHTS"])
    return DetectionRules(
        score_thresh=config["TEST.SCORE_THRESH"],
        nms_thresh=config["TEST.NMS"],
        max_dets=config["TEST.DETECTIONS_PER_IM"],
        class_agnostic=config["MODEL.CLS_AGNOSTIC_BBOX_REG"],
        bbox_reg_weights=(dx, dy, dw, dh),
    )


def _name(config: DetectronConfig, *, ends_at_proposals: bool) -> str:
    depth = _BODY.fullmatch(config.function("MODEL.CONV_BODY") or "")
    kind = "X" if config["RESNETS.NUM_GROUPS"] > 1 else "R"
    return f"{'rpn' if ends_at_proposals else 'faster_rcnn'}_{kind}-{depth.group(1) if depth else '?'}-FPN"


def _read_body(config: DetectronConfig, refusals: Refusals) -> ResNet:
    function = config.function("MODEL.CONV_BODY") or ""
    match = _BODY.fullmatch(function)
    if match is None:
        known = ", ".join(f"FPN.add_fpn_ResNet{depth}_conv5_body" for depth in _BLOCKS)
        refusals.append(f"MODEL.CONV_BODY: {function or 'not set'}; bodies that can be exported: {known}")
    for key, supported in (
        ("RESNETS.TRANS_FUNC", "bottleneck_transformation"),
        ("RESNETS.STEM_FUNC", "basic_bn_stem"),
        ("RESNETS.SHORTCUT_FUNC", "basic_bn_shortcut"),
        ("RESNETS.RES5_DILATION", 1),
    ):
        if config[key] != supported:
            refusals.append(f"{key}: {config[key]}; only {supported} can be exported")
    return ResNet(
        blocks=_BLOCKS[match.group(1)] if match else _BLOCKS["50"],
        groups=config["RESNETS.NUM_GROUPS"],
        stride_in_1x1=config["RESNETS.STRIDE_1X1"],
    )


def _refuse_other_families(config: DetectronConfig, refusals: Refusals, *, ends_at_proposals: bool) -> None:
    wanted: list[tuple[str, object]] = [
        ("FPN.FPN_ON", True),
        ("FPN.MULTILEVEL_RPN", True),
        ("FPN.EXTRA_CONV_LEVELS", False),
        ("FPN.USE_GN", False),
        ("RETINANET.RETINANET_ON", False),
    ]
    if not ends_at_proposals:
        wanted += [
            ("MODEL.FASTER_RCNN", True),
            ("MODEL.MASK_ON", False),
            ("MODEL.KEYPOINTS_ON", False),
            ("FPN.MULTILEVEL_ROIS", True),
            ("FAST_RCNN.ROI_BOX_HEAD", "fast_rcnn_heads.add_roi_2mlp_head"),
            ("FAST_RCNN.ROI_XFORM_METHOD", "RoIAlign"),
            ("TEST.BBOX_REG", True),
            ("TEST.SOFT_NMS.ENABLED", False),
            ("TEST.BBOX_VOTE.ENABLED", False),
            ("TEST.BBOX_AUG.ENABLED", False),
        ]
    for key, supported in wanted:
        value = config.function(key) if isinstance(supported, str) else config[key]
        if value != supported:
            refusals.append(f"{key}: {value}; only {supported} can be exported")
    if config["MODEL.TYPE"] not in _MODEL_TYPES:
        refusals.append(f"MODEL.TYPE: {config['MODEL.TYPE'] or 'not set'}; known: {', '.join(sorted(_MODEL_TYPES))}")


def _read_pyramid(config: DetectronConfig) -> Pyramid:
    ranges = []
    if config["FPN.MULTILEVEL_RPN"]:
        ranges.append((config["FPN.RPN_MIN_LEVEL"], config["FPN.RPN_MAX_LEVEL"]))
    if config["FPN.MULTILEVEL_ROIS"]:
        ranges.append((config["FPN.ROI_MIN_LEVEL"], config["FPN.ROI_MAX_LEVEL"]))
    return Pyramid(
        min_level=min(low for low, _ in ranges),
        max_level=max(high for _, high in ranges),
        channels=config["FPN.DIM"],
    )


def _read_rpn(config: DetectronConfig) -> RpnRules:
    first = config["FPN.RPN_MIN_LEVEL"]
    levels = []
    for level in range(first, config["FPN.RPN_MAX_LEVEL"] + 1):
        growth = config["FPN.RPN_ANCHOR_SIZE_INCREASE"] ** (level - first)
        size = config["FPN.RPN_ANCHOR_START_SIZE"] * growth
        anchors = generate_anchors(2.0**level, (size,), config["FPN.RPN_ASPECT_RATIOS"])
        levels.append(RpnLevel(level, 2.0**level, anchors))
    return RpnRules(
        levels=tuple(levels),
        pre_nms_top_n=config["TEST.RPN_PRE_NMS_TOP_N"],
        post_nms_top_n=config["TEST.RPN_POST_NMS_TOP_N"],
        nms_thresh=config["TEST.RPN_NMS_THRESH"],
        min_size=float(config["TEST.RPN_MIN_SIZE"]),
    )


def _read_box_head(config: DetectronConfig) -> BoxHead:
    return BoxHead(
        transform=RoiTransform(
            resolution=config["FAST_RCNN.ROI_XFORM_RESOLUTION"],
            sampling_ratio=config["FAST_RCNN.ROI_XFORM_SAMPLING_RATIO"],
            min_level=config["FPN.ROI_MIN_LEVEL"],
            max_level=config["FPN.ROI_MAX_LEVEL"],
            canonical_level=config["FPN.ROI_CANONICAL_LEVEL"],
            canonical_scale=float(config["FPN.ROI_CANONICAL_SCALE"]),
        ),
        num_classes=config["MODEL.NUM_CLASSES"],
        width=config["FAST_RCNN.MLP_HEAD_DIM"],
        rules=detection_rules_from_config(config),
    )
