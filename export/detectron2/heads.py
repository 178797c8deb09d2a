"""The proposal network and the heads that a detectron2 configuration describes, with their layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from roiline.core.structures import Float64
from roiline.export.architecture import (
    BoxHead,
    BoxOutputs,
    CascadeHead,
    ConvFeatures,
    DetectionHead,
    HeadFeatures,
    Res5Features,
    RoiTransform,
    RpnLevel,
    RpnRules,
)
from roiline.export.detectron.refusals import Refusals
from roiline.export.detectron2.bodies import HEAD_BLOCKS, BodyPlan, group_norm, head_stage_body, read_norm
from roiline.export.detectron2.config import Detectron2Config
from roiline.export.detectron2.layers import (
    Layer,
    Norm,
    ResidualStage,
    list_box_outputs,
    list_chain,
    list_retinanet,
    list_rpn,
    list_stage,
)
from roiline.export.layers import Kernel
from roiline.export.map_heads import ConvChain, KeypointHead, MaskHead, RoiStage, Trunk
from roiline.export.one_stage import RetinaNet
from roiline.ops.anchors.plain import generate_plain_anchors

RES5_HEADS, STANDARD_HEADS, CASCADE_HEADS = "Res5ROIHeads", "StandardROIHeads", "CascadeROIHeads"
_HEADS = (RES5_HEADS, STANDARD_HEADS, CASCADE_HEADS)
_BOX = "MODEL.ROI_BOX_HEAD"
_MASK = "MODEL.ROI_MASK_HEAD"
_KEYPOINT = "MODEL.ROI_KEYPOINT_HEAD"
_POOLERS: Mapping[str, tuple[Literal["align", "max"], bool | None]] = {
    "ROIAlignV2": ("align", True),
    "ROIAlign": ("align", False),
    "ROIPool": ("max", None),
}
_CANONICAL_LEVEL, _CANONICAL_SCALE = 4, 224.0
_SAME = Kernel(3, pad=1)
_TINY = float(np.finfo(np.float32).tiny)


class HeadPlan(NamedTuple):
    """Is a head, None where a refusal says why there is none, and its layers."""

    head: DetectionHead | None
    layers: tuple[Layer, ...]


# --- proposals -------------------------------------------------------------------------------------------------------


def read_anchors(config: Detectron2Config, plan: BodyPlan, names: Sequence[str], refusals: Refusals) -> list[Float64]:
    """Returns the anchors (A, 4) of the first cell of every named feature map."""
    if config["MODEL.ANCHOR_GENERATOR.NAME"] != "DefaultAnchorGenerator":
        refusals.add_unknown(
            "MODEL.ANCHOR_GENERATOR.NAME", config["MODEL.ANCHOR_GENERATOR.NAME"], ("DefaultAnchorGenerator",)
        )
    sizes, ratios = (
        _spread(config, f"MODEL.ANCHOR_GENERATOR.{key}", names, refusals) for key in ("SIZES", "ASPECT_RATIOS")
    )
    offset = config["MODEL.ANCHOR_GENERATOR.OFFSET"]
    if not 0 <= offset < 1:
        refusals.add("MODEL.ANCHOR_GENERATOR.OFFSET", offset, "it is a part of a cell, at least 0 and below 1")
    anchors = [
        generate_plain_anchors(size, ratio) + offset * plan.strides.get(name, 1)
        for name, size, ratio in zip(names, sizes, ratios, strict=True)
    ]
    if len({len(one) for one in anchors}) > 1:
        counts = [len(one) for one in anchors]
        refusals.add("MODEL.ANCHOR_GENERATOR.SIZES", counts, "every feature map needs as many anchors as the others")
    return anchors


def _spread(config: Detectron2Config, key: str, names: Sequence[str], refusals: Refusals) -> list[Sequence[float]]:
    """Returns the numbers for every feature map; one list serves all of them."""
    given = config[key]
    rows = list(given) * len(names) if len(given) == 1 else list(given)
    numbers: list[Sequence[float]] = [
        row
        for row in rows
        if isinstance(row, list | tuple) and row and all(type(one) in (int, float) and one > 0 for one in row)
    ]
    if len(numbers) != len(rows) or len(rows) != len(names):
        refusals.add(key, given, f"expected a list of positive numbers for each of {', '.join(names)}, or one for all")
        return [[1.0]] * len(names)
    return numbers


def find_features(key: str, names: Sequence[str], plan: BodyPlan, refusals: Refusals) -> list[str]:
    """Returns the feature maps that a key names, finest first; they must be there, and neighbours."""
    unknown = [name for name in names if name not in plan.strides]
    if unknown or not names:
        refusals.add(key, list(names), f"the feature maps are {', '.join(plan.strides)}")
        return [next(iter(plan.strides))]
    levels = [plan.levels[name] for name in names]
    if levels != list(range(levels[0], levels[0] + len(levels))):
        refusals.add(key, list(names), "feature maps must be neighbours, finest first")
    return list(names)


def read_rpn(config: Detectron2Config, plan: BodyPlan, refusals: Refusals) -> tuple[RpnRules, tuple[Layer, ...]]:
    """Returns the region proposal network."""
    if config["MODEL.RPN.HEAD_NAME"] != "StandardRPNHead":
        refusals.add_unknown("MODEL.RPN.HEAD_NAME", config["MODEL.RPN.HEAD_NAME"], ("StandardRPNHead",))
    for key in ("MODEL.RPN.PRE_NMS_TOPK_TEST", "MODEL.RPN.POST_NMS_TOPK_TEST"):
        if config[key] < 1:
            refusals.add(key, config[key], "at least 1")
    names = find_features("MODEL.RPN.IN_FEATURES", config["MODEL.RPN.IN_FEATURES"], plan, refusals)
    anchors = read_anchors(config, plan, names, refusals)
    widths = tuple(config["MODEL.RPN.CONV_DIMS"])
    if not widths or any(width != -1 and width < 1 for width in widths):
        refusals.add("MODEL.RPN.CONV_DIMS", list(widths), "expected widths, or -1 for as many channels as come in")
    multilevel = plan.pyramid is not None
    rules = RpnRules(
        levels=tuple(
            RpnLevel(plan.levels[name], float(plan.strides[name]), one)
            for name, one in zip(names, anchors, strict=True)
        ),
        pre_nms_top_n=config["MODEL.RPN.PRE_NMS_TOPK_TEST"],
        post_nms_top_n=config["MODEL.RPN.POST_NMS_TOPK_TEST"],
        nms_thresh=config["MODEL.RPN.NMS_THRESH"],
        min_size=0.0,
        multilevel=multilevel,
        native=True,
        depth=max(len(widths), 1),
        widths=tuple(max(width, 0) for width in widths),
        scored_by_logit=True,
        min_side=_least_side(config["MODEL.PROPOSAL_GENERATOR.MIN_SIZE"]),
    )
    level = f"_fpn{plan.levels[names[0]]}" if multilevel else ""
    weights = _four_weights(config, "MODEL.RPN.BBOX_REG_WEIGHTS", refusals)
    return rules, tuple(list_rpn(rules.depth, level, weights))


def _least_side(minimum: float) -> float:
    """Returns the least side of a box whose sides exceed `minimum`, as a float32."""
    return float(np.nextafter(np.float32(minimum), np.float32(np.inf))) if minimum > 0 else _TINY


def _four_weights(config: Detectron2Config, key: str, refusals: Refusals) -> tuple[float, float, float, float]:
    return _check_weights(config[key], key, refusals)


def _check_weights(given: object, key: str, refusals: Refusals) -> tuple[float, float, float, float]:
    if (
        isinstance(given, list | tuple)
        and len(given) == 4
        and all(type(one) in (int, float) and one > 0 for one in given)
    ):
        dx, dy, dw, dh = (float(one) for one in given)
        return dx, dy, dw, dh
    refusals.add(key, given, "expected four positive numbers")
    return 1.0, 1.0, 1.0, 1.0


# --- box heads -------------------------------------------------------------------------------------------------------


def read_head(config: Detectron2Config, plan: BodyPlan, refusals: Refusals) -> HeadPlan:
    """Returns the box head."""
    kind = config["MODEL.ROI_HEADS.NAME"]
    if kind == RES5_HEADS:
        return _read_res5_head(config, plan, refusals)
    if kind == STANDARD_HEADS:
        return _read_standard_head(config, plan, refusals)
    if kind == CASCADE_HEADS:
        return _read_cascade(config, plan, refusals)
    refusals.add_unknown("MODEL.ROI_HEADS.NAME", kind, _HEADS)
    return HeadPlan(None, ())


def read_transform(config: Detectron2Config, plan: BodyPlan, section: str, refusals: Refusals) -> RoiTransform:
    """Returns how RoIs take their features by the POOLER keys of a section."""
    names = find_features("MODEL.ROI_HEADS.IN_FEATURES", config["MODEL.ROI_HEADS.IN_FEATURES"], plan, refusals)
    kind = config[f"{section}.POOLER_TYPE"]
    if kind not in _POOLERS:
        refusals.add_unknown(f"{section}.POOLER_TYPE", kind, _POOLERS)
    resolution = config[f"{section}.POOLER_RESOLUTION"]
    if resolution < 1:
        refusals.add(f"{section}.POOLER_RESOLUTION", resolution, "at least 1")
    method, half_pixel = _POOLERS.get(kind, _POOLERS["ROIAlignV2"])
    return RoiTransform(
        resolution=resolution,
        sampling_ratio=max(config[f"{section}.POOLER_SAMPLING_RATIO"], 0),
        min_level=plan.levels[names[0]],
        max_level=plan.levels[names[-1]],
        canonical_level=_CANONICAL_LEVEL,
        canonical_scale=_CANONICAL_SCALE,
        finest_scale=1 / plan.strides[names[0]],
        method=method,
        half_pixel=half_pixel,
    )


def _read_outputs(config: Detectron2Config, refusals: Refusals) -> BoxOutputs:
    classes = config["MODEL.ROI_HEADS.NUM_CLASSES"]
    if classes < 1:
        refusals.add("MODEL.ROI_HEADS.NUM_CLASSES", classes, "at least 1 beside the background")
    return BoxOutputs(
        num_classes=classes + 1,
        class_agnostic=config[f"{_BOX}.CLS_AGNOSTIC_BBOX_REG"],
        independent=config[f"{_BOX}.USE_SIGMOID_CE"],
    )


def _read_res5_head(config: Detectron2Config, plan: BodyPlan, refusals: Refusals) -> HeadPlan:
    if plan.pyramid is not None:
        value = config["MODEL.BACKBONE.NAME"]
        refusals.add("MODEL.BACKBONE.NAME", value, f"{RES5_HEADS} wants one feature map, not a pyramid")
    body = head_stage_body(plan.body)
    head = BoxHead(
        transform=read_transform(config, plan, _BOX, refusals),
        features=Res5Features(body, stride=2),
        outputs=_read_outputs(config, refusals),
        pooled="pool5",
    )
    norm = read_norm(config, "MODEL.RESNETS.NORM", refusals)
    stage = ResidualStage("res5", "roi_heads.res5", HEAD_BLOCKS, 3, projected=True)
    return HeadPlan(head, (*list_stage(stage, norm), *list_box_outputs("roi_heads.box_predictor")))


def _read_standard_head(config: Detectron2Config, plan: BodyPlan, refusals: Refusals) -> HeadPlan:
    features, norm = _read_features(config, refusals)
    head = BoxHead(
        transform=read_transform(config, plan, _BOX, refusals),
        features=features,
        outputs=_read_outputs(config, refusals),
    )
    layers = _list_features(config, "roi_heads.box_head", norm)
    return HeadPlan(head, (*layers, *list_box_outputs("roi_heads.box_predictor")))


def _read_features(config: Detectron2Config, refusals: Refusals) -> tuple[HeadFeatures, Norm]:
    name = config[f"{_BOX}.NAME"]
    if name != "FastRCNNConvFCHead":
        refusals.add_unknown(f"{_BOX}.NAME", name, ("FastRCNNConvFCHead",))
    convs, hidden = config[f"{_BOX}.NUM_CONV"], config[f"{_BOX}.NUM_FC"]
    if convs < 0 or hidden < 0 or convs + hidden < 1:
        refusals.add(f"{_BOX}.NUM_FC", hidden, f"with NUM_CONV {convs} the head has no layers")
    norm = read_norm(config, f"{_BOX}.NORM", refusals)
    features = ConvFeatures(
        count=convs,
        channels=config[f"{_BOX}.CONV_DIM"],
        width=config[f"{_BOX}.FC_DIM"],
        norm=group_norm(norm),
        hidden=hidden,
    )
    return features, norm


def _list_features(config: Detectron2Config, path: str, norm: Norm, suffix: str = "") -> list[Layer]:
    layers = [
        Layer(f"{layer.blob}{suffix}", layer.path, norm, biased=layer.biased)
        for layer in list_chain("head_conv", f"{path}.conv", config[f"{_BOX}.NUM_CONV"], norm)
    ]
    for index in range(config[f"{_BOX}.NUM_FC"]):
        layers.append(Layer(f"fc{6 + index}{suffix}", f"{path}.fc{index + 1}"))
    return layers


def _read_cascade(config: Detectron2Config, plan: BodyPlan, refusals: Refusals) -> HeadPlan:
    key = "MODEL.ROI_BOX_CASCADE_HEAD"
    stages = len(config[f"{key}.IOUS"])
    weights = config[f"{key}.BBOX_REG_WEIGHTS"]
    if not config[f"{_BOX}.CLS_AGNOSTIC_BBOX_REG"]:
        refusals.add(f"{_BOX}.CLS_AGNOSTIC_BBOX_REG", False, f"{CASCADE_HEADS} needs it to be True")
    if stages < 1 or len(weights) != stages:
        refusals.add(
            f"{key}.BBOX_REG_WEIGHTS", weights, f"expected four numbers for each of the {stages} stages of IOUS"
        )
    features, norm = _read_features(config, refusals)
    first = BoxHead(
        transform=read_transform(config, plan, _BOX, refusals),
        features=features,
        outputs=_read_outputs(config, refusals),
    )
    head = CascadeHead(
        first=first,
        later=features,
        bbox_reg_weights=tuple(_check_weights(one, f"{key}.BBOX_REG_WEIGHTS", refusals) for one in weights),
        stage=max(stages, 1),
        ensemble=True,
        own_boxes=True,
        clipped=True,
    )
    layers: list[Layer] = []
    for stage in range(stages):
        suffix = f"_{stage + 1}" if stage else ""
        layers += _list_features(config, f"roi_heads.box_head.{stage}", norm, suffix)
        layers += list_box_outputs(f"roi_heads.box_predictor.{stage}", suffix)
    return HeadPlan(head, tuple(layers))


# --- heads that make maps --------------------------------------------------------------------------------------------


def read_mask_head(config: Detectron2Config, plan: BodyPlan, refusals: Refusals) -> tuple[MaskHead, tuple[Layer, ...]]:
    """Returns the mask head; on a res5 of the heads it takes its RoIs as the box head does."""
    if config[f"{_MASK}.NAME"] != "MaskRCNNConvUpsampleHead":
        refusals.add_unknown(f"{_MASK}.NAME", config[f"{_MASK}.NAME"], ("MaskRCNNConvUpsampleHead",))
    norm, convs = read_norm(config, f"{_MASK}.NORM", refusals), config[f"{_MASK}.NUM_CONV"]
    chain = ConvChain("_[mask]_fcn", convs, _SAME, config[f"{_MASK}.CONV_DIM"], group_norm(norm))
    on_res5 = config["MODEL.ROI_HEADS.NAME"] == RES5_HEADS
    trunk: Trunk = chain
    if on_res5:
        trunk = RoiStage("_[mask]_res5", head_stage_body(plan.body), stride=2, dilation=1, then=chain)
    transform = read_transform(config, plan, _BOX if on_res5 else _MASK, refusals)
    agnostic = config[f"{_MASK}.CLS_AGNOSTIC_MASK"]
    head = MaskHead(
        transform=transform,
        pooled="_[mask]_pool5" if on_res5 else "_[mask]_roi_feat",
        trunk=trunk,
        channels=config[f"{_MASK}.CONV_DIM"],
        num_masks=1 if agnostic else config["MODEL.ROI_HEADS.NUM_CLASSES"] + 1,
        size=2 * trunk.size(transform.resolution),
    )
    path = "roi_heads.mask_head"
    layers = (
        *list_chain("_[mask]_fcn", f"{path}.mask_fcn", convs, norm),
        Layer("conv5_mask", f"{path}.deconv"),
        Layer("mask_fcn_logits", f"{path}.predictor", rows="plain" if agnostic else "masks"),
    )
    return head, layers


def read_keypoint_head(
    config: Detectron2Config, plan: BodyPlan, refusals: Refusals
) -> tuple[KeypointHead, tuple[Layer, ...]]:
    """Returns the keypoint head."""
    if config[f"{_KEYPOINT}.NAME"] != "KRCNNConvDeconvUpsampleHead":
        refusals.add_unknown(f"{_KEYPOINT}.NAME", config[f"{_KEYPOINT}.NAME"], ("KRCNNConvDeconvUpsampleHead",))
    if config["MODEL.ROI_HEADS.NAME"] == RES5_HEADS:
        refusals.add("MODEL.KEYPOINT_ON", True, f"{RES5_HEADS} has no keypoint head")
    convs = len(config[f"{_KEYPOINT}.CONV_DIMS"])
    head = KeypointHead(
        transform=read_transform(config, plan, _KEYPOINT, refusals),
        pooled="_[pose]_roi_feat",
        trunk=ConvChain("conv_fcn", convs, _SAME, None),
        count=config[f"{_KEYPOINT}.NUM_KEYPOINTS"],
        deconv_channels=None,
        deconv_output=True,
        deconv_size=4,
        upsample=2,
        resized=True,
    )
    path = "roi_heads.keypoint_head"
    layers = (
        *list_chain("conv_fcn", f"{path}.conv_fcn", convs, "none"),
        Layer("kps_score_lowres", f"{path}.score_lowres"),
    )
    return head, layers


# --- one stage -------------------------------------------------------------------------------------------------------


def read_retinanet(config: Detectron2Config, plan: BodyPlan, refusals: Refusals) -> tuple[RetinaNet, tuple[Layer, ...]]:
    """Returns the RetinaNet head."""
    key = "MODEL.RETINANET"
    names = find_features(f"{key}.IN_FEATURES", config[f"{key}.IN_FEATURES"], plan, refusals)
    if plan.pyramid is None:
        refusals.add("MODEL.BACKBONE.NAME", config["MODEL.BACKBONE.NAME"], "a RetinaNet needs a pyramid")
    for part in ("NUM_CLASSES", "NUM_CONVS", "TOPK_CANDIDATES_TEST"):
        if config[f"{key}.{part}"] < 1:
            refusals.add(f"{key}.{part}", config[f"{key}.{part}"], "at least 1")
    norm = read_norm(config, f"{key}.NORM", refusals)
    own_towers = config[f"{key}.NORM"] in ("BN", "SyncBN")
    anchors = read_anchors(config, plan, names, refusals)
    first = plan.levels[names[0]]
    head = RetinaNet(
        min_level=first,
        anchors=tuple(anchors),
        num_classes=config[f"{key}.NUM_CLASSES"] + 1,
        num_convs=config[f"{key}.NUM_CONVS"],
        shared_tower=False,
        softmax=False,
        pre_nms_top_n=config[f"{key}.TOPK_CANDIDATES_TEST"],
        norm=group_norm(norm),
        biased=norm == "group",
        own_towers=own_towers,
    )
    weights = _four_weights(config, f"{key}.BBOX_REG_WEIGHTS", refusals)
    layers = list_retinanet(head.num_convs, head.levels, norm, weights, own_towers=own_towers)
    return head, tuple(layers)


def stage_weights(
    config: Detectron2Config, head: DetectionHead, refusals: Refusals
) -> tuple[float, float, float, float]:
    """Returns what the deltas that make final boxes are divided by."""
    if isinstance(head, CascadeHead):
        return head.bbox_reg_weights[-1] if head.bbox_reg_weights else (1.0, 1.0, 1.0, 1.0)
    return _four_weights(config, f"{_BOX}.BBOX_REG_WEIGHTS", refusals)
