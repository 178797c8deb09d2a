"""The body that a configuration describes, and where on it RoIs and anchors lie."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from roiline.export.architecture import Body, PlainBody, Pyramid, ResNet
from roiline.export.detectron.conditions import count_fpn_levels
from roiline.export.detectron.config import DetectronConfig
from roiline.export.detectron.model_types import FIXED_MODELS, plain_type
from roiline.export.detectron.refusals import Refusals
from roiline.export.layers import GroupNorm
from roiline.export.plain_body import VGG16, VGG_CNN_M_1024

_BLOCKS: Mapping[str, tuple[int, int, int, int]] = {"50": (3, 4, 6, 3), "101": (3, 4, 23, 3), "152": (3, 8, 36, 3)}
_PLAIN: Mapping[str, tuple[PlainBody, str]] = {
    "VGG16.add_VGG16_conv5_body": (VGG16, "VGG16"),
    "VGG_CNN_M_1024.add_VGG_CNN_M_1024_conv5_body": (VGG_CNN_M_1024, "VGG_CNN_M_1024"),
}
_RESNET = re.compile(
    r"ResNet\.add_ResNet(?P<plain>50|101|152)_conv(?P<last>[45])_body"
    r"|FPN\.add_fpn_ResNet(?P<fpn>50|101|152)_conv5(?P<finest>_P2only)?_body"
)
_KNOWN = (
    "ResNet.add_ResNet{50,101,152}_conv{4,5}_body",
    "FPN.add_fpn_ResNet{50,101,152}_conv5[_P2only]_body",
    *_PLAIN,
)


@dataclass(frozen=True, slots=True)
class BodyPlan:
    """Is a body with its pyramid, and its short name.

    Where it gives one feature map only, `level` is the map's key and `scale` its cells per network-input pixel, as declared.
    """

    body: Body
    pyramid: Pyramid | None
    name: str
    level: int
    scale: float


def read_body(config: DetectronConfig, refusals: Refusals) -> BodyPlan:
    """Returns the body that MODEL.CONV_BODY, or a fixed MODEL.TYPE, names."""
    function = body_function(config)
    if function in _PLAIN:
        body, name = _PLAIN[function]
        return BodyPlan(body, None, name, body.level, 2.0**-body.level)
    match = _RESNET.fullmatch(function)
    if match is None:
        refusals.add_unknown("MODEL.CONV_BODY", function, _KNOWN)
        return BodyPlan(VGG16, None, "?", VGG16.level, 2.0**-VGG16.level)
    depth = match["plain"] or match["fpn"]
    last: Literal[4, 5] = 4 if match["last"] == "4" else 5
    resnet = read_resnet(config, depth, last)
    name = f"{'X' if resnet.groups > 1 else 'R'}-{depth}{'-GN' if resnet.block_norm else ''}"
    if match["fpn"] is None:
        return _plan_single_scale(resnet, name)
    if resnet.res5_dilation != 1:
        refusals.add(
            "RESNETS.RES5_DILATION", resnet.res5_dilation, "a pyramid needs a res5 of half res4's size: only 1"
        )
    pyramid = _read_pyramid(config, refusals, finest_only=match["finest"] is not None)
    return BodyPlan(resnet, pyramid, f"{name}-{'P2' if match['finest'] else 'FPN'}", 2, 0.25)


def body_function(config: DetectronConfig) -> str:
    """Returns the builder function of the body."""
    fixed = FIXED_MODELS.get(plain_type(config["MODEL.TYPE"]))
    return fixed.body if fixed else config.function("MODEL.CONV_BODY") or ""


def read_resnet(config: DetectronConfig, depth: str = "50", last_stage: Literal[4, 5] = 5) -> ResNet:
    """Returns a residual body with the RESNETS settings; heads that have a res5 of their own are built by the same ones."""
    norm = read_group_norm(config)
    return ResNet(
        blocks=_BLOCKS[depth],
        groups=config["RESNETS.NUM_GROUPS"],
        stride_in_1x1=config["RESNETS.STRIDE_1X1"],
        stem_norm=norm if config["RESNETS.STEM_FUNC"] == "basic_gn_stem" else None,
        block_norm=norm if config["RESNETS.TRANS_FUNC"] == "bottleneck_gn_transformation" else None,
        shortcut_norm=norm if config["RESNETS.SHORTCUT_FUNC"] == "basic_gn_shortcut" else None,
        last_stage=last_stage,
        res5_dilation=config["RESNETS.RES5_DILATION"] if last_stage == 5 else 1,
    )


def read_group_norm(config: DetectronConfig) -> GroupNorm:
    """Returns how layers with group normalisation divide their channels."""
    size = config["GROUP_NORM.DIM_PER_GP"]
    return GroupNorm(
        groups=config["GROUP_NORM.NUM_GROUPS"],
        epsilon=config["GROUP_NORM.EPSILON"],
        group_size=size if size > 0 else 0,
    )


def _plan_single_scale(resnet: ResNet, name: str) -> BodyPlan:
    if resnet.last_stage == 4:
        return BodyPlan(resnet, None, f"{name}-C4", 4, 1 / 16)
    return BodyPlan(resnet, None, f"{name}-C5", 5, resnet.res5_dilation / 32)


def _read_pyramid(config: DetectronConfig, refusals: Refusals, *, finest_only: bool) -> Pyramid:
    low, high = (2, 2) if finest_only else count_fpn_levels(config.values)
    extra = config["FPN.EXTRA_CONV_LEVELS"] and not finest_only
    if low < 2:
        refusals.add("FPN.RPN_MIN_LEVEL or ROI_MIN_LEVEL", low, "the finest level is 2")
    if high > 6 and not extra:
        refusals.add(
            "FPN.RPN_MAX_LEVEL or ROI_MAX_LEVEL", high, "levels above 6 need FPN.EXTRA_CONV_LEVELS, which is False"
        )
    if config["FPN.FINEST_LEVEL_SCALE"] != 0.25:
        refusals.add("FPN.FINEST_LEVEL_SCALE", config["FPN.FINEST_LEVEL_SCALE"], "level 2 has a quarter of the size")
    return Pyramid(
        min_level=low,
        max_level=high,
        channels=config["FPN.DIM"],
        norm=read_group_norm(config) if config["FPN.USE_GN"] else None,
        extra_convs=extra,
    )
