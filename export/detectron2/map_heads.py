"""The mask and keypoint heads that a detectron2 configuration describes, with their layers."""

from __future__ import annotations

from roiline.export.detectron.refusals import Refusals
from roiline.export.detectron2.bodies import BodyPlan, group_norm, head_stage_body, read_norm
from roiline.export.detectron2.config import Detectron2Config
from roiline.export.detectron2.heads import RES5_HEADS, read_transform
from roiline.export.detectron2.layers import Layer, list_chain
from roiline.export.layers import Kernel
from roiline.export.map_heads import ConvChain, KeypointHead, MaskHead, RoiStage, Trunk

_BOX = "MODEL.ROI_BOX_HEAD"
_MASK = "MODEL.ROI_MASK_HEAD"
_KEYPOINT = "MODEL.ROI_KEYPOINT_HEAD"
_SAME = Kernel(3, pad=1)


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
