"""A Detectron configuration as the plan of a reference network."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

import numpy as np

from roiline.checks.verify.plan import (
    AnchorLevel,
    BoxPlan,
    Chain,
    Convs,
    DensePlan,
    KeypointPlan,
    LastStage,
    MaskPlan,
    NetworkPlan,
    Norm,
    Perceptron,
    Pooling,
    PyramidPlan,
    ReferenceSource,
    Residual,
    RpnPlan,
    Step,
)
from roiline.core.errors import ConfigError
from roiline.core.spec import Conventions, DetectionRules, ImageRules
from roiline.core.structures import Float32
from roiline.export.detectron.config import DetectronConfig, load_config
from roiline.export.detectron.weights import read_weights
from roiline.ops.anchors import generate_anchors

_DEPTHS = {"50": (3, 4, 6, 3), "101": (3, 4, 23, 3), "152": (3, 8, 36, 3)}
_FIXED = re.compile(r"(?:ResNet(?P<depth>50|101)|(?P<vgg>VGG16|VGG_CNN_M_1024))_(?P<kind>\w+?)(?:_frozen_features)?")
_VGG16 = Chain(
    tuple(
        step
        for stage, convs in enumerate((2, 2, 3, 3, 3), start=1)
        for step in (
            *(Step("conv", f"conv{stage}_{index}", pad=1) for index in range(1, convs + 1)),
            *([Step("pool", f"pool{stage}", 2, 2)] if stage < 5 else []),
        )
    ),
    level=4,
)
_VGG_M = Chain(
    (
        Step("conv", "conv1", 7, 2),
        Step("norm", "norm1"),
        Step("pool", "pool1", 3, 2),
        Step("conv", "conv2", 5, 2),
        Step("norm", "norm2"),
        Step("pool", "pool2", 3, 2),
        *(Step("conv", f"conv{index}", pad=1) for index in (3, 4, 5)),
    ),
    level=4,
)
_VGG_RESOLUTION = {"VGG16": 7, "VGG_CNN_M_1024": 6}


def read_detectron_source(
    cfg: Path, weights: Path, overrides: tuple[tuple[str, str], ...] = (), *, proposals_only: bool = False
) -> ReferenceSource:
    """Returns the reference's source for Detectron's files.

    Raises:
        ConfigError: the configuration cannot be read, or asks for what the reference does not know.
        WeightError: the weights cannot be read.
    """
    stored = read_weights(weights)
    config = load_config(cfg, overrides, cfg_in_weights=stored.cfg_text)
    plan = plan_from_config(config, proposals_only=proposals_only)

    def find(name: str) -> Float32 | None:
        found = stored.blobs.get(name)
        if found is None and "]_" in name:  # the original fills such a parameter from the one after the bracket
            found = stored.blobs.get(name.partition("]_")[2])
        return found

    return ReferenceSource("detectron", plan, find, stored.sha256, stored.notes)


def plan_from_config(config: DetectronConfig, *, proposals_only: bool = False) -> NetworkPlan:
    """Returns the network that a configuration describes.

    Raises:
        ConfigError: it asks for what the reference does not know.
    """
    body, level, scale = _read_body(config)
    pyramid = _read_pyramid(config)
    images = _read_images(config, padded=pyramid is not None)
    conventions = _read_conventions(config)
    if config["MODEL.CLASSIFICATION"]:
        hidden = len(config["CLASSIFICATION.MLP_HEADS_DIM"])
        return NetworkPlan(images, conventions, None, body, pyramid, hidden=hidden)
    if config["RETINANET.RETINANET_ON"]:
        rules = _read_dense_rules(config)
        return NetworkPlan(images, conventions, rules, body, pyramid, dense=_read_dense(config))
    has_rpn = config["MODEL.RPN_ONLY"] or config["MODEL.FASTER_RCNN"]
    rpn = _read_rpn(config, level, scale) if has_rpn else None
    if proposals_only or config["MODEL.RPN_ONLY"]:
        return NetworkPlan(images, conventions, None, body, pyramid, rpn=rpn)
    boxes = _read_boxes(config, level, scale)
    return NetworkPlan(
        images,
        conventions,
        _read_rules(config, boxes),
        body,
        pyramid,
        rpn=rpn,
        boxes=boxes,
        masks=_read_masks(config, level, scale) if config["MODEL.MASK_ON"] else None,
        keypoints=_read_keypoints(config, level, scale) if config["MODEL.KEYPOINTS_ON"] else None,
        tracked=config["MODEL.TRACKING_ON"],
    )


# --- pictures and boxes ----------------------------------------------------------------------------------------------


def _read_images(config: DetectronConfig, *, padded: bool) -> ImageRules:
    blue, green, red = (float(mean) for mean in config["PIXEL_MEANS"].reshape(-1))
    stretched = config["MODEL.CLASSIFICATION"] and "MODEL.ATTENTIONAL_TRANSITION" not in config.set_keys
    return ImageRules(
        channel_order="BGR",
        means=(blue, green, red),
        stds=(1.0, 1.0, 1.0),
        scale=config["TEST.SCALE"],
        max_size=config["TEST.MAX_SIZE"],
        resize="detectron_stretch" if stretched else "detectron",
        pad_multiple=config["FPN.COARSEST_STRIDE"] if config["FPN.FPN_ON"] or padded else 1,
        exif="apply",
    )


def _read_conventions(config: DetectronConfig) -> Conventions:
    return Conventions("detectron", True, True, False, float(config["BBOX_XFORM_CLIP"]), ties="later")


def _read_rules(config: DetectronConfig, boxes: BoxPlan) -> DetectionRules:
    weights = boxes.stages[-1] if len(boxes.stages) > 1 else _four(config["MODEL.BBOX_REG_WEIGHTS"])
    return DetectionRules(
        score_thresh=config["TEST.SCORE_THRESH"],
        nms_thresh=config["TEST.NMS"],
        max_dets=config["TEST.DETECTIONS_PER_IM"],
        class_agnostic=config["MODEL.CLS_AGNOSTIC_BBOX_REG"],
        bbox_reg_weights=weights,
        regress=config["TEST.BBOX_REG"],
    )


def _read_dense_rules(config: DetectronConfig) -> DetectionRules:
    return DetectionRules(
        score_thresh=config["RETINANET.INFERENCE_TH"],
        nms_thresh=config["TEST.NMS"],
        max_dets=config["TEST.DETECTIONS_PER_IM"],
        class_agnostic=True,
        bbox_reg_weights=(1.0, 1.0, 1.0, 1.0),
        regress=config["TEST.BBOX_REG"],
    )


def _four(weights: tuple[float, ...]) -> tuple[float, float, float, float]:
    dx, dy, dw, dh = (float(weight) for weight in weights)
    return dx, dy, dw, dh


# --- body ------------------------------------------------------------------------------------------------------------


def _read_body(config: DetectronConfig) -> tuple[Residual | Chain, int, float]:
    """Returns the body, the level of its last map and cells a pixel there, as declared."""
    name = config.function("MODEL.CONV_BODY") or ""
    fixed = _FIXED.fullmatch(config["MODEL.TYPE"])
    if fixed and fixed["vgg"]:
        name = f"{fixed['vgg']}.add_{fixed['vgg']}_conv5_body"
    elif fixed:
        name = f"ResNet.add_ResNet{fixed['depth']}_conv{5 if fixed['kind'] == 'rfcn' else 4}_body"
    if name.startswith("VGG"):
        return (_VGG16 if name.startswith("VGG16") else _VGG_M), 4, 1 / 16
    found = re.fullmatch(r"(?:ResNet|FPN)\.add_(fpn_)?ResNet(50|101|152)_conv([45])_(?:P2only_)?body", name)
    if found is None:
        raise ConfigError(f"{config.source}: MODEL.CONV_BODY: the reference does not know {name!r}")
    last = int(found[3])
    body = _read_residual(config, _DEPTHS[found[2]], last)
    return body, last, (1 / 16 if last == 4 else body.dilation / 32)


def _read_residual(config: DetectronConfig, blocks: tuple[int, ...], last: int) -> Residual:
    norm = _read_norm(config)
    return Residual(
        blocks=blocks[: last - 1],
        groups=config["RESNETS.NUM_GROUPS"],
        stride_in_1x1=config["RESNETS.STRIDE_1X1"],
        last=last,
        stem=norm if config["RESNETS.STEM_FUNC"] == "basic_gn_stem" else None,
        block=norm if config["RESNETS.TRANS_FUNC"] == "bottleneck_gn_transformation" else None,
        shortcut=norm if config["RESNETS.SHORTCUT_FUNC"] == "basic_gn_shortcut" else None,
        dilation=config["RESNETS.RES5_DILATION"] if last == 5 else 1,
    )


def _read_norm(config: DetectronConfig) -> Norm:
    return Norm(config["GROUP_NORM.NUM_GROUPS"], config["GROUP_NORM.DIM_PER_GP"], config["GROUP_NORM.EPSILON"])


def _read_pyramid(config: DetectronConfig) -> PyramidPlan | None:
    name = config.function("MODEL.CONV_BODY") or ""
    if not name.startswith("FPN."):
        return None
    norm = _read_norm(config) if config["FPN.USE_GN"] else None
    if "P2only" in name:
        return PyramidPlan(2, 2, norm, "pooled")
    ranges = [
        (config[f"FPN.{kind}_MIN_LEVEL"], config[f"FPN.{kind}_MAX_LEVEL"])
        for kind in ("RPN", "ROI")
        if config["FPN.MULTILEVEL_RPN" if kind == "RPN" else "FPN.MULTILEVEL_ROIS"]
    ] or [(2, 5)]
    low, high = min(one for one, _ in ranges), max(other for _, other in ranges)
    return PyramidPlan(low, high, norm, "body" if config["FPN.EXTRA_CONV_LEVELS"] else "pooled")


# --- proposals and dense heads ---------------------------------------------------------------------------------------


def _read_rpn(config: DetectronConfig, level: int, scale: float) -> RpnPlan:
    several = config["FPN.FPN_ON"]
    if several:
        first, last = config["FPN.RPN_MIN_LEVEL"], config["FPN.RPN_MAX_LEVEL"]
        start, growth = config["FPN.RPN_ANCHOR_START_SIZE"], config["FPN.RPN_ANCHOR_SIZE_INCREASE"]
        levels = tuple(
            AnchorLevel(
                number,
                2.0**number,
                generate_anchors(2.0**number, (start * growth ** (number - first),), config["FPN.RPN_ASPECT_RATIOS"]),
            )
            for number in range(first, last + 1)
        )
    else:
        if config["MODEL.CONV_BODY"].startswith("FPN"):
            level, scale = 2, 0.25
        anchors = generate_anchors(1 / scale, config["RPN.SIZES"], config["RPN.ASPECT_RATIOS"])
        levels = (AnchorLevel(level, 1 / scale, anchors),)
    return RpnPlan(
        levels=levels,
        suffixed=several,
        before_nms=config["TEST.RPN_PRE_NMS_TOP_N"],
        after_nms=config["TEST.RPN_POST_NMS_TOP_N"],
        nms=config["TEST.RPN_NMS_THRESH"],
        min_size=float(config["TEST.RPN_MIN_SIZE"]),
        native=config["TEST.GENERATE_PROPOSALS_ON_GPU"],
    )


def _read_dense(config: DetectronConfig) -> DensePlan:
    first, last = config["FPN.RPN_MIN_LEVEL"], config["FPN.RPN_MAX_LEVEL"]
    octaves, ratios = config["RETINANET.SCALES_PER_OCTAVE"], config["RETINANET.ASPECT_RATIOS"]
    anchors = []
    for level in range(first, last + 1):
        sizes = [2.0**level * 2 ** (step / octaves) * config["RETINANET.ANCHOR_SCALE"] for step in range(octaves)]
        rows = [generate_anchors(2.0**level, (size,), (ratio,)) for size in sizes for ratio in ratios]
        anchors.append(np.concatenate(rows))
    return DensePlan(
        low=first,
        anchors=tuple(anchors),
        classes=config["MODEL.NUM_CLASSES"],
        convs=config["RETINANET.NUM_CONVS"],
        shared=config["RETINANET.SHARE_CLS_BBOX_TOWER"],
        softmax=config["RETINANET.SOFTMAX"],
        before_nms=config["RETINANET.PRE_NMS_TOP_N"],
    )


# --- heads -----------------------------------------------------------------------------------------------------------


def _read_pooling(
    config: DetectronConfig, section: str, level: int, scale: float, resolution: int | None = None
) -> Pooling:
    several = config["FPN.FPN_ON"]
    low, high = (config["FPN.ROI_MIN_LEVEL"], config["FPN.ROI_MAX_LEVEL"]) if several else (level, level)
    pooled = config[f"{section}.ROI_XFORM_METHOD"] == "RoIPoolF"
    if _read_pyramid(config) is not None and not several:  # the finest level alone
        low = high = 2
        scale = 0.25
    return Pooling(
        method="max" if pooled else "align",
        resolution=resolution or config[f"{section}.ROI_XFORM_RESOLUTION"],
        sampling=config[f"{section}.ROI_XFORM_SAMPLING_RATIO"],
        low=low,
        high=high,
        finest_scale=2.0**-low if several else scale,
        half_pixel=False,
        canonical_level=config["FPN.ROI_CANONICAL_LEVEL"],
        canonical_scale=float(config["FPN.ROI_CANONICAL_SCALE"]),
    )


def _read_boxes(config: DetectronConfig, level: int, scale: float) -> BoxPlan:
    fixed = _FIXED.fullmatch(config["MODEL.TYPE"])
    outputs: Literal["mixed", "softmax"] = "mixed" if config["MODEL.WEIGHTED_LOSS"] else "softmax"
    agnostic = config["MODEL.CLS_AGNOSTIC_BBOX_REG"]
    votes = None
    is_rfcn = config["MODEL.TYPE"].startswith("rfcn") or (fixed is not None and fixed["kind"] == "rfcn")
    if is_rfcn or config["MODEL.FR_FUSED"]:
        pooling = _read_pooling(config, "FAST_RCNN", level, scale, config["RFCN.PS_GRID_SIZE"])
        votes = Pooling(
            "votes",
            pooling.resolution,
            0,
            pooling.low,
            pooling.high,
            pooling.finest_scale,
            False,
            pooling.canonical_level,
            pooling.canonical_scale,
        )
    if is_rfcn:
        reduced = (fixed is not None or bool(config["RFCN.ROI_BOX_HEAD"])) and not config["FPN.FPN_ON"]
        return BoxPlan(outputs, agnostic, None, "", None, votes=votes, reduced=reduced)
    name = config.function("FAST_RCNN.ROI_BOX_HEAD") or ""
    if fixed:
        name = f"{fixed['vgg']}.fc_head" if fixed["vgg"] else "ResNet.add_ResNet_roi_conv5_head"
    family = name.partition(".")[0]
    pooling = _read_pooling(config, "FAST_RCNN", level, scale, _VGG_RESOLUTION.get(family))
    own = family in ("ResNet", *_VGG_RESOLUTION)
    plan = BoxPlan(
        outputs=outputs,
        agnostic=agnostic,
        pooling=pooling,
        pooled="pool5" if own else "roi_feat",
        trunk=_read_trunk(config, name, pooling.resolution),
        votes=votes,
        join=config["FR_FUSED.RULE"] if config["MODEL.FR_FUSED"] else "",
    )
    return _read_cascade(config, plan) if config["MODEL.CASCADE_ON"] and not config["MODEL.FR_FUSED"] else plan


def _read_trunk(config: DetectronConfig, name: str, resolution: int) -> Perceptron | LastStage:
    if name.startswith("ResNet."):
        return LastStage("res5", _read_residual(config, _DEPTHS["50"], 5), 3, resolution // 7)
    if "Xconv1fc" in name:
        norm = _read_norm(config) if name.endswith("_gn_head") else None
        return Perceptron(1, config["FAST_RCNN.NUM_STACKED_CONVS"], norm)
    return Perceptron(2)


def _read_cascade(config: DetectronConfig, first: BoxPlan) -> BoxPlan:
    last = config["CASCADE_RCNN.TEST_STAGE"]
    last = last if last > 0 else config["CASCADE_RCNN.NUM_STAGE"]
    weights = tuple(_four(one) for one in config["CASCADE_RCNN.BBOX_REG_WEIGHTS"])[:last]
    name = config.function("CASCADE_RCNN.ROI_BOX_HEAD") or ""
    later = _read_trunk(config, name, 0)
    return BoxPlan(
        outputs=first.outputs,
        agnostic=first.agnostic,
        pooling=first.pooling,
        pooled=first.pooled,
        trunk=first.trunk,
        stages=weights,
        later=later if isinstance(later, Perceptron) else None,
        mean="last boxes" if config["CASCADE_RCNN.TEST_ENSEMBLE"] else "none",
    )


def _read_masks(config: DetectronConfig, level: int, scale: float) -> MaskPlan:
    name = config.function("MRCNN.ROI_MASK_HEAD") or ""
    pad = config["MRCNN.DILATION"]
    pooling = _read_pooling(config, "MRCNN", level, scale)
    trunk: Convs | LastStage
    if "v0up" in name:
        stage = _read_residual(config, _DEPTHS["50"], 5)
        trunk = LastStage("_[mask]_res5", stage, 3, config["MRCNN.ROI_XFORM_RESOLUTION"] // 7, pad)
    elif name.endswith("_gn"):
        trunk = Convs("_mask_fcn", 4, 3, pad, 1, _read_norm(config))
    else:
        trunk = Convs("_[mask]_fcn", 4 if "4convs" in name else 2, 3, pad, pad)
    stem = "_mask_" if name.endswith("_gn") else "_[mask]_"
    return MaskPlan(
        pooling=pooling,
        pooled=stem + ("pool5" if isinstance(trunk, LastStage) else "roi_feat"),
        trunk=trunk,
        size=config["MRCNN.RESOLUTION"],
        agnostic=not config["MRCNN.CLS_SPECIFIC_MASK"],
        dense=config["MRCNN.USE_FC_OUTPUT"],
        enlarged=1 if config["MRCNN.USE_FC_OUTPUT"] else max(config["MRCNN.UPSAMPLE_RATIO"], 1),
    )


def _read_keypoints(config: DetectronConfig, level: int, scale: float) -> KeypointPlan:
    name = config.function("KRCNN.ROI_KEYPOINTS_HEAD") or ""
    trunk: Convs | LastStage
    if "pose_head_v1convX" in name:
        size = config["KRCNN.CONV_HEAD_KERNEL"]
        trunk = Convs("conv_fcn", config["KRCNN.NUM_STACKED_CONVS"], size, size // 2)
    else:
        stage = _read_residual(config, _DEPTHS["50"], 5)
        resolution = config["KRCNN.ROI_XFORM_RESOLUTION"]
        trunk = LastStage("_[pose]_res5", stage, 3, resolution // 7, config["KRCNN.DILATION"])
    return KeypointPlan(
        pooling=_read_pooling(config, "KRCNN", level, scale),
        pooled="_[pose]_pool5" if isinstance(trunk, LastStage) else "_[pose]_roi_feat",
        trunk=trunk,
        doubled=config["KRCNN.USE_DECONV"],
        transposed=config["KRCNN.USE_DECONV_OUTPUT"],
        kernel=config["KRCNN.DECONV_KERNEL"],
        enlarged=max(config["KRCNN.UP_SCALE"], 1),
    )
