"""A detectron2 configuration as an architecture with its layers, and as the rules of a model's specification."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from roiline.core.spec import Conventions, DetectionRules, GivenProposals, ImageRules, KeypointRules, MaskRules
from roiline.export.architecture import Architecture, DetectionHead
from roiline.export.detectron.refusals import Refusals
from roiline.export.detectron2.bodies import BodyPlan, read_body
from roiline.export.detectron2.config import Detectron2Config
from roiline.export.detectron2.heads import CASCADE_HEADS, read_head, stage_weights
from roiline.export.detectron2.layers import Layer
from roiline.export.detectron2.map_heads import read_keypoint_head, read_mask_head
from roiline.export.detectron2.one_stage import read_retinanet
from roiline.export.detectron2.proposals import read_rpn
from roiline.export.map_heads import KeypointHead, MaskHead

_TWO_STAGES, _PROPOSALS, _ONE_STAGE = "GeneralizedRCNN", "ProposalNetwork", "RetinaNet"
_KNOWN = (_TWO_STAGES, _PROPOSALS, _ONE_STAGE)
_GIVEN = "PrecomputedProposals"
_DELTA_CLIP = math.log(1000.0 / 16)
_LEVEL_EPSILON = 1e-8
_MASK_THRESHOLD = 0.5


@dataclass(frozen=True, slots=True)
class Detectron2Source:
    """Is a model read: what it is made of, its layers, and what sides of pictures are padded to multiples of."""

    architecture: Architecture
    layers: tuple[Layer, ...]
    pad_multiple: int


def source_from_config(config: Detectron2Config, *, proposals_only: bool) -> Detectron2Source:
    """Returns the network that a configuration describes, without its heads where only proposals are wanted.

    Raises:
        ConfigError: it asks for parts that are not supported; all of them are listed with their keys.
    """
    refusals = Refusals()
    kind = config["MODEL.META_ARCHITECTURE"]
    if kind not in _KNOWN:
        refusals.add_unknown("MODEL.META_ARCHITECTURE", kind, _KNOWN)
        refusals.raise_if_any(config.source)
    if config["TEST.AUG.ENABLED"]:
        refusals.add(
            "TEST.AUG.ENABLED", True, "augmentation wraps the model in detectron2, it is no part of it: set it to False"
        )
    if kind == _ONE_STAGE:
        return _read_one_stage(config, refusals, proposals_only=proposals_only)
    return _read_two_stages(config, refusals, ends_at_proposals=kind == _PROPOSALS, proposals_only=proposals_only)


def _read_two_stages(
    config: Detectron2Config, refusals: Refusals, *, ends_at_proposals: bool, proposals_only: bool
) -> Detectron2Source:
    generator = config["MODEL.PROPOSAL_GENERATOR.NAME"]
    given = generator == _GIVEN
    if not given and generator != "RPN":
        refusals.add_unknown("MODEL.PROPOSAL_GENERATOR.NAME", generator, ("RPN", _GIVEN))
    if given and (proposals_only or ends_at_proposals):
        refusals.add("MODEL.PROPOSAL_GENERATOR.NAME", _GIVEN, "the model makes no proposals")
    bare = ends_at_proposals or proposals_only
    used = [] if given else list(config["MODEL.RPN.IN_FEATURES"])
    used += [] if bare else config["MODEL.ROI_HEADS.IN_FEATURES"]
    plan = read_body(config, refusals, used)
    rpn, layers = (None, ()) if given else read_rpn(config, plan, refusals)
    head, head_layers = (None, ()) if bare else read_head(config, plan, refusals)
    rules = None if head is None else _detection_rules(config, head, refusals)
    mask_head, keypoint_head, map_layers = _read_map_heads(config, plan, refusals, wanted=head is not None)
    refusals.raise_if_any(config.source)
    architecture = Architecture(
        name=f"{_name_family(config, bare=bare, given=given)}_{plan.name}",
        body=plan.body,
        pyramid=plan.pyramid,
        rpn=rpn,
        head=head,
        detection=rules,
        conventions=_conventions(),
        mask_head=mask_head,
        keypoint_head=keypoint_head,
    )
    return Detectron2Source(architecture, (*plan.layers, *layers, *head_layers, *map_layers), plan.pad_multiple)


def _read_map_heads(
    config: Detectron2Config, plan: BodyPlan, refusals: Refusals, *, wanted: bool
) -> tuple[MaskHead | None, KeypointHead | None, tuple[Layer, ...]]:
    mask_head, keypoint_head = None, None
    mask_layers: tuple[Layer, ...] = ()
    keypoint_layers: tuple[Layer, ...] = ()
    if wanted and config["MODEL.MASK_ON"]:
        mask_head, mask_layers = read_mask_head(config, plan, refusals)
    if wanted and config["MODEL.KEYPOINT_ON"]:
        keypoint_head, keypoint_layers = read_keypoint_head(config, plan, refusals)
    return mask_head, keypoint_head, (*mask_layers, *keypoint_layers)


def _read_one_stage(config: Detectron2Config, refusals: Refusals, *, proposals_only: bool) -> Detectron2Source:
    if proposals_only:
        refusals.add("MODEL.META_ARCHITECTURE", _ONE_STAGE, "the model has no RPN: it makes no proposals")
    plan = read_body(config, refusals, config["MODEL.RETINANET.IN_FEATURES"])
    retinanet, layers = read_retinanet(config, plan, refusals)
    if config["TEST.DETECTIONS_PER_IMAGE"] < 1:
        value = config["TEST.DETECTIONS_PER_IMAGE"]
        refusals.add("TEST.DETECTIONS_PER_IMAGE", value, "a RetinaNet keeps at least 1")
    refusals.raise_if_any(config.source)
    architecture = Architecture(
        name=f"retinanet_{plan.name}",
        body=plan.body,
        pyramid=plan.pyramid,
        rpn=None,
        head=None,
        detection=DetectionRules(
            score_thresh=config["MODEL.RETINANET.SCORE_THRESH_TEST"],
            nms_thresh=config["MODEL.RETINANET.NMS_THRESH_TEST"],
            max_dets=config["TEST.DETECTIONS_PER_IMAGE"],
            class_agnostic=True,
            bbox_reg_weights=(1.0, 1.0, 1.0, 1.0),
            coarsest_score_thresh=None,
        ),
        conventions=_conventions(),
        retinanet=retinanet,
    )
    return Detectron2Source(architecture, (*plan.layers, *layers), plan.pad_multiple)


def _name_family(config: Detectron2Config, *, bare: bool, given: bool) -> str:
    if bare:
        return "rpn"
    parts = ["cascade"] if config["MODEL.ROI_HEADS.NAME"] == CASCADE_HEADS else []
    parts += [part for part, key in (("mask", "MODEL.MASK_ON"), ("keypoint", "MODEL.KEYPOINT_ON")) if config[key]]
    parts += ["fast"] if given else []
    return "_".join([*parts, "rcnn"]) if parts else "faster_rcnn"


# --- rules -----------------------------------------------------------------------------------------------------------


def _conventions() -> Conventions:
    """Returns detectron2's way with boxes."""
    return Conventions(
        name="detectron2",
        plus_one=False,
        nms_inclusive=False,
        roi_half_pixel=True,
        delta_clip=_DELTA_CLIP,
        network_frame=True,
        ranked=True,
        epsilon=_LEVEL_EPSILON,
        final_clip=True,
    )


def _detection_rules(config: Detectron2Config, head: DetectionHead, refusals: Refusals) -> DetectionRules:
    limit = config["TEST.DETECTIONS_PER_IMAGE"]
    if limit == 0:
        refusals.add("TEST.DETECTIONS_PER_IMAGE", 0, "no detection is ever kept; below 0 all are")
    return DetectionRules(
        score_thresh=config["MODEL.ROI_HEADS.SCORE_THRESH_TEST"],
        nms_thresh=config["MODEL.ROI_HEADS.NMS_THRESH_TEST"],
        max_dets=limit,
        class_agnostic=config["MODEL.ROI_BOX_HEAD.CLS_AGNOSTIC_BBOX_REG"],
        bbox_reg_weights=stage_weights(config, head, refusals),
    )


def image_rules_from_config(config: Detectron2Config, pad_multiple: int) -> ImageRules:
    """Returns how detectron2 prepares a picture, which it reads upright.

    Raises:
        ConfigError: the format is not one of colours, or means and deviations are not three numbers each.
    """
    refusals = Refusals()
    order = config["INPUT.FORMAT"]
    channel_order: Literal["BGR", "RGB"] = "RGB" if order == "RGB" else "BGR"
    if order not in ("BGR", "RGB"):
        refusals.add_unknown("INPUT.FORMAT", order, ("BGR", "RGB"))
    if config["INPUT.MIN_SIZE_TEST"] < 0 or config["INPUT.MAX_SIZE_TEST"] < 1:
        refusals.add(
            "INPUT.MIN_SIZE_TEST", config["INPUT.MIN_SIZE_TEST"], "0 (no resizing) or more; MAX_SIZE_TEST 1 or more"
        )
    means = _three_numbers(config, "MODEL.PIXEL_MEAN", refusals)
    stds = _three_numbers(config, "MODEL.PIXEL_STD", refusals)
    if 0.0 in stds:
        refusals.add("MODEL.PIXEL_STD", stds, "pixels are divided by it")
    refusals.raise_if_any(config.source)
    return ImageRules(
        channel_order=channel_order,
        means=means,
        stds=stds,
        scale=config["INPUT.MIN_SIZE_TEST"],
        max_size=config["INPUT.MAX_SIZE_TEST"],
        resize="detectron2",
        pad_multiple=pad_multiple,
        exif="apply",
        extent="resized",
    )


def _three_numbers(config: Detectron2Config, key: str, refusals: Refusals) -> tuple[float, float, float]:
    given = config[key]
    if len(given) != 3 or any(type(one) not in (int, float) for one in given):
        refusals.add(key, given, "expected three numbers, one a channel")
        return 1.0, 1.0, 1.0
    first, second, third = (float(one) for one in given)
    return first, second, third


def mask_rules_from_architecture(architecture: Architecture) -> MaskRules | None:
    """Returns how class-selected probabilities become masks."""
    head = architecture.mask_head
    return None if head is None else MaskRules(head.size, _MASK_THRESHOLD, paste="detectron2")


def keypoint_rules_from_architecture(architecture: Architecture) -> KeypointRules | None:
    """Returns how heatmaps become keypoints."""
    head = architecture.keypoint_head
    if head is None:
        return None
    return KeypointRules(
        count=head.count, min_size=0, confidence="bbox", nms_oks=False, network_frame=True, map_normalised=True
    )


def given_proposals_from_config(config: Detectron2Config) -> GivenProposals:
    """Returns how proposals from a file become RoIs."""
    return GivenProposals(limit=config["DATASETS.PRECOMPUTED_PROPOSAL_TOPK_TEST"], dedup=0.0, network_frame=True)
