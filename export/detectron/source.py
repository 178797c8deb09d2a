"""A Detectron configuration as an architecture: which parts the network has."""

from __future__ import annotations

from collections.abc import Mapping

from roiline.export.architecture import (
    Architecture,
    CascadeHead,
    ClassificationHead,
    DetectionHead,
    FusedHead,
    RfcnHead,
)
from roiline.export.detectron.bodies import BodyPlan, read_body
from roiline.export.detectron.config import DetectronConfig
from roiline.export.detectron.heads import read_head, read_transform
from roiline.export.detectron.mask_keypoint_rules import read_keypoint_head, read_mask_head
from roiline.export.detectron.model_types import FIXED_MODELS, GENERAL_TYPES, plain_type
from roiline.export.detectron.proposals import read_rpn
from roiline.export.detectron.refusals import Refusals
from roiline.export.detectron.retinanet_rules import read_retinanet, retinanet_rules_from_config
from roiline.export.detectron.rules import (
    conventions_from_config,
    detection_rules_from_config,
    image_rules_from_config,
)
from roiline.export.detectron.track_rules import read_track_head
from roiline.export.map_heads import KeypointHead, MaskHead

__all__ = [
    "architecture_from_config",
    "conventions_from_config",
    "detection_rules_from_config",
    "image_rules_from_config",
]

_CLASSIFIER = "classification_heads.add_Xmlp_head"
_UNSUPPORTED: Mapping[str, str] = {
    "MODEL.GAM": "which features its attention sees stands in no file",
    "MODEL.ATTENTIONAL_TRANSITION": "which features its attention sees stands in no file",
    "MODEL.SIBLING_BACKBONE_ON": "a second body is for tracking; set it to False to export the detector",
}
"""Switches that must be off, and why."""


def architecture_from_config(config: DetectronConfig, *, proposals_only: bool) -> Architecture:
    """Returns the network that a configuration describes, without its heads where only proposals are wanted.

    Raises:
        ConfigError: it asks for parts that are not supported; all of them are listed with their keys.
    """
    refusals = Refusals()
    _refuse_unsupported(config, refusals)
    plan = read_body(config, refusals)
    if config["MODEL.CLASSIFICATION"]:
        return _read_classifier(config, plan, refusals)
    if config["RETINANET.RETINANET_ON"] or plain_type(config["MODEL.TYPE"]) == "retinanet":
        return _read_one_stage(config, plan, refusals, proposals_only=proposals_only)
    has_rpn = config["MODEL.RPN_ONLY"] or config["MODEL.FASTER_RCNN"]
    if proposals_only and not has_rpn:
        refusals.add("MODEL.FASTER_RCNN", False, "the model has no RPN: it makes no proposals")
    rpn = read_rpn(config, plan, refusals) if has_rpn else None
    head, mask_head, keypoint_head, track_head = None, None, None, None
    if not (proposals_only or config["MODEL.RPN_ONLY"]):
        head = read_head(config, plan, refusals)
        mask_head, keypoint_head = _read_map_heads(config, plan, refusals)
        track_head = read_track_head(config, plan, refusals) if config["MODEL.TRACKING_ON"] else None
    refusals.raise_if_any(config.source)
    return Architecture(
        name=f"{_name_family(config, head, has_rpn=has_rpn)}_{plan.name}",
        body=plan.body,
        pyramid=plan.pyramid,
        rpn=rpn,
        head=head,
        detection=None if head is None else detection_rules_from_config(config, head),
        conventions=conventions_from_config(config),
        mask_head=mask_head,
        keypoint_head=keypoint_head,
        track_head=track_head,
    )


def _read_map_heads(
    config: DetectronConfig, plan: BodyPlan, refusals: Refusals
) -> tuple[MaskHead | None, KeypointHead | None]:
    mask_head, keypoint_head = None, None
    if config["MODEL.MASK_ON"]:
        mask_head = read_mask_head(config, read_transform(config, plan, "MRCNN"), plan.body, refusals)
    if config["MODEL.KEYPOINTS_ON"]:
        keypoint_head = read_keypoint_head(config, read_transform(config, plan, "KRCNN"), plan.body, refusals)
    return mask_head, keypoint_head


def _read_one_stage(
    config: DetectronConfig, plan: BodyPlan, refusals: Refusals, *, proposals_only: bool
) -> Architecture:
    if proposals_only:
        refusals.add("RETINANET.RETINANET_ON", True, "the model has no RPN: it makes no proposals")
    retinanet = read_retinanet(config, refusals)
    refusals.raise_if_any(config.source)
    return Architecture(
        name=f"retinanet_{plan.name}",
        body=plan.body,
        pyramid=plan.pyramid,
        rpn=None,
        head=None,
        detection=retinanet_rules_from_config(config),
        conventions=conventions_from_config(config),
        retinanet=retinanet,
    )


def _refuse_unsupported(config: DetectronConfig, refusals: Refusals) -> None:
    kind = plain_type(config["MODEL.TYPE"])
    if kind not in GENERAL_TYPES and kind not in FIXED_MODELS:
        refusals.add_unknown("MODEL.TYPE", kind, (*GENERAL_TYPES, *FIXED_MODELS))
    for key, reason in _UNSUPPORTED.items():
        if config[key]:
            refusals.add(key, True, reason)


def _name_family(config: DetectronConfig, head: DetectionHead | None, *, has_rpn: bool) -> str:
    if head is None:
        return "rpn"
    parts = ["mask"] * config["MODEL.MASK_ON"] + ["keypoint"] * config["MODEL.KEYPOINTS_ON"]
    if isinstance(head, RfcnHead):
        return "_".join(["rfcn", *parts])
    kinds: dict[type, list[str]] = {CascadeHead: ["cascade"], FusedHead: ["fused"]}
    parts = [*kinds.get(type(head), []), *parts, *([] if has_rpn else ["fast"])]
    return "_".join([*(parts or ["faster"]), "rcnn"])


def _read_classifier(config: DetectronConfig, plan: BodyPlan, refusals: Refusals) -> Architecture:
    if plan.pyramid is not None:
        refusals.add("MODEL.CONV_BODY", plan.name, "a classifier needs a body with one feature map")
    if config["CLASSIFICATION.MLP_HEAD"] != _CLASSIFIER:
        refusals.add_unknown("CLASSIFICATION.MLP_HEAD", config["CLASSIFICATION.MLP_HEAD"], (_CLASSIFIER,))
    refusals.raise_if_any(config.source)
    widths = tuple(config["CLASSIFICATION.MLP_HEADS_DIM"])
    return Architecture(
        name=f"classifier_{plan.name}",
        body=plan.body,
        pyramid=None,
        rpn=None,
        head=None,
        detection=None,
        conventions=conventions_from_config(config),
        classification=ClassificationHead(widths, config["MODEL.NUM_CLASSES"]),
    )
