"""A detectron2 configuration as the plan of a reference network."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Literal

import numpy as np

from roiline.checks.verify.detectron2_names import Detectron2Names
from roiline.checks.verify.plan import (
    AnchorLevel,
    BoxPlan,
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
)
from roiline.core.errors import ConfigError
from roiline.core.spec import Conventions, DetectionRules, ImageRules
from roiline.export.detectron2.config import Detectron2Config, load_config
from roiline.export.detectron2.weights import read_parameters
from roiline.ops.anchors.plain import generate_plain_anchors

_DEPTHS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
_GROUP_NORM = Norm(32)
_HEADS = "MODEL.ROI_HEADS"
_BOX, _MASK, _KEYPOINT = (f"MODEL.ROI_{part}_HEAD" for part in ("BOX", "MASK", "KEYPOINT"))


def read_detectron2_source(
    cfg: Path, weights: Path, overrides: tuple[tuple[str, str], ...] = (), *, proposals_only: bool = False
) -> ReferenceSource:
    """Returns the reference's source for detectron2's files.

    Raises:
        ConfigError: the configuration cannot be read, or asks for what the reference does not know.
        WeightError: the checkpoint cannot be read.
    """
    config, stored = load_config(cfg, overrides), read_parameters(weights)
    plan = _read_plan(config, proposals_only=proposals_only)
    names = Detectron2Names(
        tensors=stored.tensors,
        pyramid=plan.pyramid is not None,
        head_res5=plan.boxes is not None and isinstance(plan.boxes.trunk, LastStage),
        stages=len(plan.boxes.stages) if plan.boxes else 0,
        rpn_depth=plan.rpn.depth if plan.rpn else 1,
        tower_step=2 if not config["MODEL.RETINANET.NORM"] else 3,
        agnostic_masks=config[f"{_MASK}.CLS_AGNOSTIC_MASK"],
        rpn_weights=config["MODEL.RPN.BBOX_REG_WEIGHTS"],
        dense_weights=config["MODEL.RETINANET.BBOX_REG_WEIGHTS"],
    )
    return ReferenceSource("detectron2", plan, names.find, stored.sha256, stored.notes)


def _read_plan(config: Detectron2Config, *, proposals_only: bool) -> NetworkPlan:
    body, pyramid, strides = _read_body(config)
    images = _read_images(config, padded=pyramid is not None)
    conventions = Conventions(
        "detectron2",
        plus_one=False,
        nms_inclusive=False,
        roi_half_pixel=True,
        delta_clip=math.log(1000.0 / 16),
        network_frame=True,
        ranked=True,
        epsilon=1e-8,
        final_clip=True,
    )
    kind = config["MODEL.META_ARCHITECTURE"]
    if kind == "RetinaNet":
        dense = _read_dense(config, strides)
        return NetworkPlan(images, conventions, _read_dense_rules(config), body, pyramid, dense=dense)
    given = config["MODEL.PROPOSAL_GENERATOR.NAME"] == "PrecomputedProposals"
    rpn = None if given else _read_rpn(config, strides, several=pyramid is not None)
    if proposals_only or kind == "ProposalNetwork":
        return NetworkPlan(images, conventions, None, body, pyramid, rpn=rpn)
    boxes = _read_boxes(config, strides)
    return NetworkPlan(
        images,
        conventions,
        _read_rules(config, boxes),
        body,
        pyramid,
        rpn=rpn,
        boxes=boxes,
        masks=_read_masks(config, strides) if config["MODEL.MASK_ON"] else None,
        keypoints=_read_keypoints(config, strides) if config["MODEL.KEYPOINT_ON"] else None,
    )


def _norm(config: Detectron2Config, key: str) -> Norm | None:
    """Returns group normalisation; other norms go into weights."""
    return _GROUP_NORM if config[key] == "GN" else None


def _read_images(config: Detectron2Config, *, padded: bool) -> ImageRules:
    first, second, third = (float(mean) for mean in config["MODEL.PIXEL_MEAN"])
    one, two, three = (float(std) for std in config["MODEL.PIXEL_STD"])
    return ImageRules(
        channel_order="RGB" if config["INPUT.FORMAT"] == "RGB" else "BGR",
        means=(first, second, third),
        stds=(one, two, three),
        scale=config["INPUT.MIN_SIZE_TEST"],
        max_size=config["INPUT.MAX_SIZE_TEST"],
        resize="detectron2",
        pad_multiple=32 if padded else 1,
        exif="apply",
        extent="resized",
    )


def _read_body(config: Detectron2Config) -> tuple[Residual, PyramidPlan | None, dict[str, int]]:
    """Returns the body, its pyramid, and the stride of every feature map by name."""
    key, name = "MODEL.RESNETS", config["MODEL.BACKBONE.NAME"]
    last = max(int(stage[-1]) for stage in config[f"{key}.OUT_FEATURES"])
    dilation = config[f"{key}.RES5_DILATION"] if last == 5 else 1
    norm = _norm(config, f"{key}.NORM")
    body = Residual(
        blocks=_DEPTHS[config[f"{key}.DEPTH"]][: last - 1],
        groups=config[f"{key}.NUM_GROUPS"],
        stride_in_1x1=config[f"{key}.STRIDE_IN_1X1"],
        last=last,
        stem=norm,
        block=norm,
        shortcut=norm,
        dilation=dilation,
        basic=config[f"{key}.DEPTH"] < 50,
    )
    if name == "build_resnet_backbone":
        return body, None, {f"res{last}": 16 if dilation > 1 else 2**last}
    dense = name == "build_retinanet_resnet_fpn_backbone"
    low = min(int(stage[-1]) for stage in config["MODEL.FPN.IN_FEATURES"])
    used = config["MODEL.RETINANET.IN_FEATURES"] if dense else config["MODEL.RPN.IN_FEATURES"]
    given = config["MODEL.PROPOSAL_GENERATOR.NAME"] == "PrecomputedProposals" and not dense
    high = 5 if given else max(5, *(int(level[1:]) for level in used))
    pyramid = PyramidPlan(
        low,
        high,
        _norm(config, "MODEL.FPN.NORM"),
        "body" if dense else "pooled",
        averaged=config["MODEL.FPN.FUSE_TYPE"] == "avg",
    )
    return body, pyramid, {f"p{level}": 2**level for level in range(low, high + 1)}


def _read_anchors(config: Detectron2Config, names: list[str], strides: dict[str, int]) -> list[Any]:
    key = "MODEL.ANCHOR_GENERATOR"
    spread = [
        rows * len(names) if len(rows) == 1 else rows
        for rows in (config[f"{key}.SIZES"], config[f"{key}.ASPECT_RATIOS"])
    ]
    return [
        generate_plain_anchors(sizes, ratios) + config[f"{key}.OFFSET"] * strides[name]
        for name, sizes, ratios in zip(names, *map(list, spread), strict=True)
    ]


def _read_rpn(config: Detectron2Config, strides: dict[str, int], *, several: bool) -> RpnPlan:
    names = list(config["MODEL.RPN.IN_FEATURES"])
    least = config["MODEL.PROPOSAL_GENERATOR.MIN_SIZE"]
    anchors = _read_anchors(config, names, strides)
    return RpnPlan(
        levels=tuple(
            AnchorLevel(int(name[-1]), float(strides[name]), one) for name, one in zip(names, anchors, strict=True)
        ),
        suffixed=several,
        before_nms=config["MODEL.RPN.PRE_NMS_TOPK_TEST"],
        after_nms=config["MODEL.RPN.POST_NMS_TOPK_TEST"],
        nms=config["MODEL.RPN.NMS_THRESH"],
        native=True,
        by_logit=True,
        min_side=float(np.nextafter(np.float32(least), np.float32(np.inf)))
        if least > 0
        else float(np.finfo(np.float32).tiny),
        depth=len(config["MODEL.RPN.CONV_DIMS"]),
    )


def _read_pooling(config: Detectron2Config, section: str, strides: dict[str, int]) -> Pooling:
    names = config[f"{_HEADS}.IN_FEATURES"]
    kind = config[f"{section}.POOLER_TYPE"]
    return Pooling(
        method="max" if kind == "ROIPool" else "align",
        resolution=config[f"{section}.POOLER_RESOLUTION"],
        sampling=max(config[f"{section}.POOLER_SAMPLING_RATIO"], 0),
        low=int(names[0][-1]),
        high=int(names[-1][-1]),
        finest_scale=1 / strides[names[0]],
        half_pixel=kind == "ROIAlignV2",
    )


def _head_stage(config: Detectron2Config, prefix: str, then: Convs | None = None) -> LastStage:
    """Returns the res5 of the heads: three bottlenecks, whatever the body."""
    norm = _norm(config, "MODEL.RESNETS.NORM")
    body = Residual(
        blocks=(3,),
        groups=config["MODEL.RESNETS.NUM_GROUPS"],
        stride_in_1x1=config["MODEL.RESNETS.STRIDE_IN_1X1"],
        last=5,
        block=norm,
        shortcut=norm,
    )
    return LastStage(prefix, body, 3, 2, then=then)


def _read_boxes(config: Detectron2Config, strides: dict[str, int]) -> BoxPlan:
    kind = config[f"{_HEADS}.NAME"]
    outputs: Literal["sigmoid", "softmax"] = "sigmoid" if config[f"{_BOX}.USE_SIGMOID_CE"] else "softmax"
    pooling, agnostic = _read_pooling(config, _BOX, strides), config[f"{_BOX}.CLS_AGNOSTIC_BBOX_REG"]
    if kind == "Res5ROIHeads":
        return BoxPlan(outputs, agnostic, pooling, "pool5", _head_stage(config, "res5"))
    layers = Perceptron(config[f"{_BOX}.NUM_FC"], config[f"{_BOX}.NUM_CONV"], _norm(config, f"{_BOX}.NORM"))
    if kind == "StandardROIHeads":
        return BoxPlan(outputs, agnostic, pooling, "roi_feat", layers)
    if kind != "CascadeROIHeads":
        raise ConfigError(f"{config.source}: MODEL.ROI_HEADS.NAME: the reference does not know {kind!r}")
    weights = tuple(_four(one) for one in config["MODEL.ROI_BOX_CASCADE_HEAD.BBOX_REG_WEIGHTS"])
    return BoxPlan(
        outputs, agnostic, pooling, "roi_feat", layers, stages=weights, later=layers, mean="own boxes", clipped=True
    )


def _four(weights: Any) -> tuple[float, float, float, float]:
    dx, dy, dw, dh = (float(weight) for weight in weights)
    return dx, dy, dw, dh


def _read_rules(config: Detectron2Config, boxes: BoxPlan) -> DetectionRules:
    return DetectionRules(
        score_thresh=config[f"{_HEADS}.SCORE_THRESH_TEST"],
        nms_thresh=config[f"{_HEADS}.NMS_THRESH_TEST"],
        max_dets=config["TEST.DETECTIONS_PER_IMAGE"],
        class_agnostic=boxes.agnostic,
        bbox_reg_weights=boxes.stages[-1] if boxes.stages else _four(config[f"{_BOX}.BBOX_REG_WEIGHTS"]),
    )


def _read_masks(config: Detectron2Config, strides: dict[str, int]) -> MaskPlan:
    convs = Convs("_[mask]_fcn", config[f"{_MASK}.NUM_CONV"], norm=_norm(config, f"{_MASK}.NORM"))
    agnostic = config[f"{_MASK}.CLS_AGNOSTIC_MASK"]
    if config[f"{_HEADS}.NAME"] == "Res5ROIHeads":
        pooling = _read_pooling(config, _BOX, strides)
        size = 2 * ((pooling.resolution - 1) // 2 + 1)
        return MaskPlan(pooling, "_[mask]_pool5", _head_stage(config, "_[mask]_res5", convs), size, agnostic)
    pooling = _read_pooling(config, _MASK, strides)
    return MaskPlan(pooling, "_[mask]_roi_feat", convs, 2 * pooling.resolution, agnostic)


def _read_keypoints(config: Detectron2Config, strides: dict[str, int]) -> KeypointPlan:
    return KeypointPlan(
        pooling=_read_pooling(config, _KEYPOINT, strides),
        pooled="_[pose]_roi_feat",
        trunk=Convs("conv_fcn", len(config[f"{_KEYPOINT}.CONV_DIMS"])),
        doubled=False,
        transposed=True,
        kernel=4,
        enlarged=2,
        weightless=True,
    )


def _read_dense(config: Detectron2Config, strides: dict[str, int]) -> DensePlan:
    key = "MODEL.RETINANET"
    if config[f"{key}.NORM"] not in ("", "GN"):
        raise ConfigError(f"{config.source}: {key}.NORM: the reference knows '' and GN, not {config[f'{key}.NORM']!r}")
    names = list(config[f"{key}.IN_FEATURES"])
    return DensePlan(
        low=int(names[0][1:]),
        anchors=tuple(_read_anchors(config, names, strides)),
        classes=config[f"{key}.NUM_CLASSES"] + 1,
        convs=config[f"{key}.NUM_CONVS"],
        shared=False,
        softmax=False,
        before_nms=config[f"{key}.TOPK_CANDIDATES_TEST"],
        norm=_norm(config, f"{key}.NORM"),
    )


def _read_dense_rules(config: Detectron2Config) -> DetectionRules:
    return DetectionRules(
        score_thresh=config["MODEL.RETINANET.SCORE_THRESH_TEST"],
        nms_thresh=config["MODEL.RETINANET.NMS_THRESH_TEST"],
        max_dets=config["TEST.DETECTIONS_PER_IMAGE"],
        class_agnostic=True,
        bbox_reg_weights=(1.0, 1.0, 1.0, 1.0),
        coarsest_score_thresh=None,
    )
