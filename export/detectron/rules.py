"""The rules that a configuration sets for everything around the network: pictures, detections, given proposals, host options."""

from __future__ import annotations

from roiline.core.errors import ConfigError
from roiline.core.spec import (
    Augmentation,
    BoxAugmentation,
    Conventions,
    DetectionRules,
    GivenProposals,
    ImageRules,
    KeypointAugmentation,
    MaskAugmentation,
    SoftNmsRules,
    TestOptions,
    VotingRules,
)
from roiline.export.architecture import CascadeHead, DetectionHead
from roiline.export.detectron.config import DetectronConfig
from roiline.export.detectron.heads import four_weights


def conventions_from_config(config: DetectronConfig) -> Conventions:
    """Returns Detectron's way with boxes.

    Equal scores are common where proposals that are one RoI share a row, and where RoIs are pooled from the same whole cells: there the
    original's own sort decides; elsewhere they are rare.
    """
    given = not config["MODEL.FASTER_RCNN"] and config["DEDUP_BOXES"] > 0
    pooled = config["FAST_RCNN.ROI_XFORM_METHOD"] == "RoIPoolF"
    return Conventions(
        name="detectron",
        plus_one=True,
        nms_inclusive=True,
        roi_half_pixel=False,
        delta_clip=float(config["BBOX_XFORM_CLIP"]),
        ties="quicksort" if given or pooled else "later",
    )


def image_rules_from_config(config: DetectronConfig, *, padded: bool | None = None) -> ImageRules:
    """Returns how Detectron prepares a picture; cv2.imread, which it reads with, turns JPEGs upright.

    `padded` says whether the body needs sides that are multiples of FPN.COARSEST_STRIDE (default: as FPN.FPN_ON says).
    """
    means = tuple(float(mean) for mean in config["PIXEL_MEANS"].reshape(-1))
    if len(means) != 3:
        raise ConfigError(f"{config.source}: PIXEL_MEANS: expected 3 values, got {len(means)}")
    return ImageRules(
        channel_order="BGR",
        means=(means[0], means[1], means[2]),
        stds=(1.0, 1.0, 1.0),
        scale=config["TEST.SCALE"],
        max_size=config["TEST.MAX_SIZE"],
        resize="detectron_stretch" if stretches_pictures(config) else "detectron",
        pad_multiple=config["FPN.COARSEST_STRIDE"] if config["FPN.FPN_ON"] or padded else 1,
        exif="apply",
    )


def stretches_pictures(config: DetectronConfig) -> bool:
    """Returns whether pictures are stretched to one size: PEST's classification does, DPEST's (which knows a key of its own) does not."""
    return bool(config["MODEL.CLASSIFICATION"]) and "MODEL.ATTENTIONAL_TRANSITION" not in config.set_keys


def detection_rules_from_config(config: DetectronConfig, head: DetectionHead | None = None) -> DetectionRules:
    """Returns how raw scores and boxes become detections; the last stage of a cascade has weights of its own."""
    weights = four_weights(config["MODEL.BBOX_REG_WEIGHTS"])
    if isinstance(head, CascadeHead) and head.stage > 1:
        weights = head.bbox_reg_weights[head.stage - 1]
    return DetectionRules(
        score_thresh=config["TEST.SCORE_THRESH"],
        nms_thresh=config["TEST.NMS"],
        max_dets=config["TEST.DETECTIONS_PER_IM"],
        class_agnostic=config["MODEL.CLS_AGNOSTIC_BBOX_REG"],
        bbox_reg_weights=weights,
        regress=config["TEST.BBOX_REG"],
    )


def given_proposals_from_config(config: DetectronConfig) -> GivenProposals:
    """Returns how proposals from a file become RoIs."""
    return GivenProposals(limit=config["TEST.PROPOSAL_LIMIT"], dedup=float(config["DEDUP_BOXES"]))


def test_options_from_config(config: DetectronConfig, *, one_stage: bool) -> TestOptions:
    """Returns what the configuration asks a run to do beside the network; a one-stage model only knows soft-NMS."""
    soft = SoftNmsRules(config["TEST.SOFT_NMS.METHOD"], float(config["TEST.SOFT_NMS.SIGMA"]))
    voting = VotingRules(config["TEST.BBOX_VOTE.VOTE_TH"], config["TEST.BBOX_VOTE.SCORING_METHOD"])
    if one_stage:
        return TestOptions(soft_nms=soft if config["TEST.SOFT_NMS.ENABLED"] else None)
    boxes, masks, maps = (f"TEST.{kind}_AUG" for kind in ("BBOX", "MASK", "KPS"))
    return TestOptions(
        soft_nms=soft if config["TEST.SOFT_NMS.ENABLED"] else None,
        voting=voting if config["TEST.BBOX_VOTE.ENABLED"] else None,
        box_augmentation=BoxAugmentation(
            _read_passes(config, boxes), config[f"{boxes}.SCORE_HEUR"], config[f"{boxes}.COORD_HEUR"]
        )
        if config[f"{boxes}.ENABLED"]
        else None,
        mask_augmentation=MaskAugmentation(_read_passes(config, masks), config[f"{masks}.HEUR"])
        if config[f"{masks}.ENABLED"] and config["MODEL.MASK_ON"]
        else None,
        keypoint_augmentation=KeypointAugmentation(
            _read_passes(config, maps),
            config[f"{maps}.HEUR"],
            by_size=config[f"{maps}.SCALE_SIZE_DEP"],
            area_thresh=config[f"{maps}.AREA_TH"],
        )
        if config[f"{maps}.ENABLED"] and config["MODEL.KEYPOINTS_ON"]
        else None,
    )


def _read_passes(config: DetectronConfig, section: str) -> Augmentation:
    return Augmentation(
        h_flip=config[f"{section}.H_FLIP"],
        scales=tuple(config[f"{section}.SCALES"]),
        max_size=config[f"{section}.MAX_SIZE"],
        scale_h_flip=config[f"{section}.SCALE_H_FLIP"],
        aspect_ratios=tuple(float(ratio) for ratio in config[f"{section}.ASPECT_RATIOS"]),
        aspect_ratio_h_flip=config[f"{section}.ASPECT_RATIO_H_FLIP"],
    )
