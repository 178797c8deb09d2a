"""The detection head that a configuration describes: Fast R-CNN, R-FCN, both fused, or a cascade."""

from __future__ import annotations

from typing import Literal

from roiline.export.architecture import (
    BoxHead,
    BoxOutputs,
    CascadeHead,
    ConvFeatures,
    DetectionHead,
    FusedHead,
    HeadFeatures,
    MlpFeatures,
    Res5Features,
    RfcnHead,
    RoiTransform,
)
from roiline.export.detectron.bodies import BodyPlan, read_group_norm, read_resnet
from roiline.export.detectron.config import DetectronConfig
from roiline.export.detectron.model_types import FIXED_MODELS, plain_type
from roiline.export.detectron.refusals import Refusals

_RES5_HEAD = "ResNet.add_ResNet_roi_conv5_head"
_VGG_HEADS = {
    "VGG16.add_VGG16_roi_fc_head": 7,
    "VGG_CNN_M_1024.add_VGG_CNN_M_1024_roi_fc_head": 6,
}
"""Heads with a resolution of their own, whatever FAST_RCNN.ROI_XFORM_RESOLUTION says."""
_PERCEPTRON = "add_roi_2mlp_head"
_CONV_HEADS = {"add_roi_Xconv1fc_head": False, "add_roi_Xconv1fc_gn_head": True}
_KNOWN = (
    _RES5_HEAD,
    *_VGG_HEADS,
    f"fast_rcnn_heads.{_PERCEPTRON}",
    *(f"fast_rcnn_heads.{name}" for name in _CONV_HEADS),
)
_REDUCED = 1024


def read_head(config: DetectronConfig, plan: BodyPlan, refusals: Refusals) -> DetectionHead:
    """Returns the head that follows the RoIs."""
    if config["FPN.FPN_ON"] and not config["FPN.MULTILEVEL_ROIS"]:
        refusals.add("FPN.MULTILEVEL_ROIS", False, "heads on a pyramid take every RoI from its level: set it to True")
    if is_rfcn(config):
        return _read_rfcn(config, plan, refusals)
    if config["MODEL.FR_FUSED"]:
        return _read_fused(config, plan, refusals)
    return (
        _read_cascade(config, plan, refusals) if config["MODEL.CASCADE_ON"] else _read_box_head(config, plan, refusals)
    )


def is_rfcn(config: DetectronConfig) -> bool:
    """Returns whether the model is an R-FCN."""
    kind = plain_type(config["MODEL.TYPE"])
    return kind == "rfcn" or (kind in FIXED_MODELS and FIXED_MODELS[kind].rfcn)


def read_transform(
    config: DetectronConfig, plan: BodyPlan, section: str = "FAST_RCNN", resolution: int | None = None
) -> RoiTransform:
    """Returns how RoIs take their features by the ROI_XFORM keys of a section: from the levels of a pyramid, or from the one map."""
    low, high = (
        (config["FPN.ROI_MIN_LEVEL"], config["FPN.ROI_MAX_LEVEL"]) if config["FPN.FPN_ON"] else (plan.level,) * 2
    )
    method: Literal["align", "max"] = "max" if config[f"{section}.ROI_XFORM_METHOD"] == "RoIPoolF" else "align"
    return RoiTransform(
        resolution=resolution or config[f"{section}.ROI_XFORM_RESOLUTION"],
        sampling_ratio=config[f"{section}.ROI_XFORM_SAMPLING_RATIO"],
        min_level=low,
        max_level=high,
        canonical_level=config["FPN.ROI_CANONICAL_LEVEL"],
        canonical_scale=float(config["FPN.ROI_CANONICAL_SCALE"]),
        finest_scale=2.0**-low if config["FPN.FPN_ON"] else plan.scale,
        method=method,
    )


def _read_outputs(config: DetectronConfig) -> BoxOutputs:
    return BoxOutputs(
        num_classes=config["MODEL.NUM_CLASSES"],
        class_agnostic=config["MODEL.CLS_AGNOSTIC_BBOX_REG"],
        mixed=config["MODEL.WEIGHTED_LOSS"],
    )


def _read_box_head(config: DetectronConfig, plan: BodyPlan, refusals: Refusals) -> BoxHead:
    fixed = FIXED_MODELS.get(plain_type(config["MODEL.TYPE"]))
    function = fixed.box_head if fixed else config.function("FAST_RCNN.ROI_BOX_HEAD") or ""
    features = _read_features(config, function, refusals)
    own = function == _RES5_HEAD or function in _VGG_HEADS
    return BoxHead(
        transform=read_transform(config, plan, resolution=_VGG_HEADS.get(function)),
        features=features,
        outputs=_read_outputs(config),
        pooled="pool5" if own else "roi_feat",
    )


def _read_features(config: DetectronConfig, function: str, refusals: Refusals) -> HeadFeatures:
    if function == _RES5_HEAD:
        return _read_res5(config, refusals)
    if function in _VGG_HEADS:
        return MlpFeatures(width=None)
    name = function.removeprefix("fast_rcnn_heads.")
    if name in _CONV_HEADS:
        return _read_convs(config, normed=_CONV_HEADS[name])
    if name != _PERCEPTRON:
        refusals.add_unknown("FAST_RCNN.ROI_BOX_HEAD", function, _KNOWN)
    return MlpFeatures(width=config["FAST_RCNN.MLP_HEAD_DIM"])


def _read_convs(config: DetectronConfig, *, normed: bool) -> ConvFeatures:
    return ConvFeatures(
        count=config["FAST_RCNN.NUM_STACKED_CONVS"],
        channels=config["FAST_RCNN.CONV_HEAD_DIM"],
        width=config["FAST_RCNN.MLP_HEAD_DIM"],
        norm=read_group_norm(config) if normed else None,
    )


def _read_res5(config: DetectronConfig, refusals: Refusals) -> Res5Features:
    resolution = config["FAST_RCNN.ROI_XFORM_RESOLUTION"]
    stride = resolution // 7
    if stride < 1 or (resolution - 1) // stride + 1 != 7:
        refusals.add("FAST_RCNN.ROI_XFORM_RESOLUTION", resolution, "res5 must come out 7 x 7: 7, 13, 14, 20, 21, ..")
    return Res5Features(body=read_resnet(config), stride=max(stride, 1))


def _read_rfcn(config: DetectronConfig, plan: BodyPlan, refusals: Refusals) -> RfcnHead:
    forked = bool(config["RFCN.ROI_BOX_HEAD"])
    if config["MODEL.FASTER_RCNN"] and not forked:
        refusals.add(
            "MODEL.FASTER_RCNN",
            True,
            "Detectron's R-FCN builds no RPN: set it to False, or RFCN.ROI_BOX_HEAD for the fork whose R-FCN has one",
        )
    if config["FPN.FPN_ON"] and not forked:
        refusals.add(
            "FPN.FPN_ON", True, "Detectron's R-FCN knows no pyramid; the fork that does sets RFCN.ROI_BOX_HEAD"
        )
    reduced = forked or plain_type(config["MODEL.TYPE"]) in FIXED_MODELS
    return _read_votes(config, plan, reduced=_REDUCED if reduced and not config["FPN.FPN_ON"] else None)


def _read_votes(config: DetectronConfig, plan: BodyPlan, *, reduced: int | None) -> RfcnHead:
    return RfcnHead(
        transform=read_transform(config, plan, resolution=config["RFCN.PS_GRID_SIZE"]),
        outputs=_read_outputs(config),
        reduced=reduced,
        multilevel=config["FPN.FPN_ON"],
    )


def _read_fused(config: DetectronConfig, plan: BodyPlan, refusals: Refusals) -> FusedHead:
    rule = config["FR_FUSED.RULE"]
    if not rule:
        refusals.add(
            "FR_FUSED.RULE",
            rule,
            "how MODEL.FR_FUSED joins its two heads stands in no file: set it to sum, mean or concat, as the model was trained",
        )
    return FusedHead(
        fast=_read_box_head(config, plan, refusals),
        rfcn=_read_votes(config, plan, reduced=None),
        rule=rule or "sum",
    )


def _read_cascade(config: DetectronConfig, plan: BodyPlan, refusals: Refusals) -> CascadeHead:
    if not config["MODEL.FASTER_RCNN"]:
        refusals.add(
            "MODEL.FASTER_RCNN", False, "a cascade on given proposals decodes against the wrong boxes: set it to True"
        )
    stage = config["CASCADE_RCNN.TEST_STAGE"]
    function = config.function("CASCADE_RCNN.ROI_BOX_HEAD") or ""
    name = function.removeprefix("cascade_rcnn_heads.")
    known = (_PERCEPTRON, "add_roi_Xconv1fc_gn_head")
    if name not in known:
        refusals.add_unknown("CASCADE_RCNN.ROI_BOX_HEAD", function, (f"cascade_rcnn_heads.{one}" for one in known))
    later = _read_convs(config, normed=True) if name in _CONV_HEADS else MlpFeatures(config["FAST_RCNN.MLP_HEAD_DIM"])
    return CascadeHead(
        first=_read_box_head(config, plan, refusals),
        later=later,
        bbox_reg_weights=tuple(four_weights(weights) for weights in config["CASCADE_RCNN.BBOX_REG_WEIGHTS"]),
        stage=stage if stage > 0 else config["CASCADE_RCNN.NUM_STAGE"],
        ensemble=config["CASCADE_RCNN.TEST_ENSEMBLE"],
    )


def four_weights(weights: tuple[float, ...]) -> tuple[float, float, float, float]:
    """Returns the weights of (dx, dy, dw, dh) as floats."""
    dx, dy, dw, dh = (float(weight) for weight in weights)
    return dx, dy, dw, dh
