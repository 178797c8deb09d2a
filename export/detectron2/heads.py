"""The box heads that a detectron2 configuration describes, with their layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from roiline.export.architecture import (
    BoxHead,
    BoxOutputs,
    CascadeHead,
    ConvFeatures,
    DetectionHead,
    HeadFeatures,
    Res5Features,
    RoiTransform,
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
    list_stage,
)
from roiline.export.detectron2.proposals import find_features, four_weights

RES5_HEADS, STANDARD_HEADS, CASCADE_HEADS = "Res5ROIHeads", "StandardROIHeads", "CascadeROIHeads"
_HEADS = (RES5_HEADS, STANDARD_HEADS, CASCADE_HEADS)
_BOX = "MODEL.ROI_BOX_HEAD"
_POOLERS: Mapping[str, tuple[Literal["align", "max"], bool | None]] = {
    "ROIAlignV2": ("align", True),
    "ROIAlign": ("align", False),
    "ROIPool": ("max", None),
}
_CANONICAL_LEVEL, _CANONICAL_SCALE = 4, 224.0


class HeadPlan(NamedTuple):
    """Is a head, None where a refusal says why there is none, and its layers."""

    head: DetectionHead | None
    layers: tuple[Layer, ...]


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
        bbox_reg_weights=tuple(four_weights(one, f"{key}.BBOX_REG_WEIGHTS", refusals) for one in weights),
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


def stage_weights(
    config: Detectron2Config, head: DetectionHead, refusals: Refusals
) -> tuple[float, float, float, float]:
    """Returns what the deltas that make final boxes are divided by."""
    if isinstance(head, CascadeHead):
        return head.bbox_reg_weights[-1] if head.bbox_reg_weights else (1.0, 1.0, 1.0, 1.0)
    return four_weights(config[f"{_BOX}.BBOX_REG_WEIGHTS"], f"{_BOX}.BBOX_REG_WEIGHTS", refusals)
