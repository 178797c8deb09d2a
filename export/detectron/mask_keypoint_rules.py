"""The mask and keypoint sections of a Detectron configuration (MRCNN, KRCNN) as heads, and as rules for what is left to the host."""

from __future__ import annotations

from collections.abc import Mapping

from roiline.core.spec import KeypointRules, MaskRules
from roiline.export.architecture import Body, ResNet, RoiTransform
from roiline.export.detectron.bodies import read_group_norm
from roiline.export.detectron.config import DetectronConfig
from roiline.export.detectron.refusals import Refusals
from roiline.export.layers import Kernel
from roiline.export.map_heads import ConvChain, KeypointHead, MaskHead, RoiStage, Trunk
from roiline.ops.oks_nms import COCO_SIGMAS

_MASK_CONVS: Mapping[str, int] = {
    "mask_rcnn_heads.mask_rcnn_fcn_head_v1up": 2,
    "mask_rcnn_heads.mask_rcnn_fcn_head_v1up4convs": 4,
    "mask_rcnn_heads.mask_rcnn_fcn_head_v1up4convs_gn": 4,
}
_MASK_STAGES = (
    "mask_rcnn_heads.mask_rcnn_fcn_head_v0up",
    "mask_rcnn_heads.mask_rcnn_fcn_head_v0upshare",
)
_POSE_CONVS = "keypoint_rcnn_heads.add_roi_pose_head_v1convX"
_POSE_STAGE = "keypoint_rcnn_heads.add_ResNet_roi_conv5_head_for_keypoints"
_KEYS_OF_SIZE = ("MRCNN.ROI_XFORM_RESOLUTION", "MRCNN.DILATION", "MRCNN.UPSAMPLE_RATIO")
_CELLS_OF_RES5 = 7
"""Cells a side that a res5 of RoIs is meant to have: its stride is the RoI resolution divided by this, rounded down."""


def read_mask_head(config: DetectronConfig, transform: RoiTransform, body: Body, refusals: Refusals) -> MaskHead | None:
    """Returns the mask head of section MRCNN on RoI features of `transform`, or None where `refusals` say why there is none."""
    function = config.function("MRCNN.ROI_MASK_HEAD") or ""
    normed = function.endswith("_gn")
    if function in _MASK_CONVS:
        trunk: Trunk | None = _read_mask_convs(config, _MASK_CONVS[function], normed=normed)
    elif function in _MASK_STAGES:
        trunk = _read_stage(config, "MRCNN", "_[mask]_res5", body, refusals)
    else:
        trunk = None
        refusals.add_unknown("MRCNN.ROI_MASK_HEAD", function, (*_MASK_CONVS, *_MASK_STAGES))
    if trunk is None:
        return None
    stem = "_mask_" if normed else "_[mask]_"
    head = MaskHead(
        transform=transform,
        pooled=stem + ("pool5" if isinstance(trunk, RoiStage) else "roi_feat"),
        trunk=trunk,
        channels=config["MRCNN.DIM_REDUCED"],
        num_masks=config["MODEL.NUM_CLASSES"] if config["MRCNN.CLS_SPECIFIC_MASK"] else 1,
        size=config["MRCNN.RESOLUTION"],
        dense=config["MRCNN.USE_FC_OUTPUT"],
        upsample=max(config["MRCNN.UPSAMPLE_RATIO"], 1),
    )
    if head.made != head.size:
        settings = ", ".join(f"{key} {config[key]}" for key in _KEYS_OF_SIZE)
        refusals.add(
            "MRCNN.RESOLUTION", head.size, f"the head makes masks of {head.made} x {head.made} cells ({settings})"
        )
    return head


def read_keypoint_head(
    config: DetectronConfig, transform: RoiTransform, body: Body, refusals: Refusals
) -> KeypointHead | None:
    """Returns the keypoint head of section KRCNN on RoI features of `transform`, or None where `refusals` say why there is none."""
    function = config.function("KRCNN.ROI_KEYPOINTS_HEAD") or ""
    if function == _POSE_CONVS:
        size = config["KRCNN.CONV_HEAD_KERNEL"]
        kernel = Kernel(size, pad=size // 2)
        trunk: Trunk | None = ConvChain(
            "conv_fcn", config["KRCNN.NUM_STACKED_CONVS"], kernel, config["KRCNN.CONV_HEAD_DIM"]
        )
    elif function == _POSE_STAGE:
        trunk = _read_stage(config, "KRCNN", "_[pose]_res5", body, refusals)
    else:
        trunk = None
        refusals.add_unknown("KRCNN.ROI_KEYPOINTS_HEAD", function, (_POSE_CONVS, _POSE_STAGE))
    if config["KRCNN.NMS_OKS"] and config["KRCNN.NUM_KEYPOINTS"] != len(COCO_SIGMAS):
        count = config["KRCNN.NUM_KEYPOINTS"]
        refusals.add("KRCNN.NMS_OKS", True, f"defined for {len(COCO_SIGMAS)} keypoints, KRCNN.NUM_KEYPOINTS is {count}")
    if trunk is None:
        return None
    return KeypointHead(
        transform=transform,
        pooled="_[pose]_pool5" if isinstance(trunk, RoiStage) else "_[pose]_roi_feat",
        trunk=trunk,
        count=config["KRCNN.NUM_KEYPOINTS"],
        deconv_channels=config["KRCNN.DECONV_DIM"] if config["KRCNN.USE_DECONV"] else None,
        deconv_output=config["KRCNN.USE_DECONV_OUTPUT"],
        deconv_size=config["KRCNN.DECONV_KERNEL"],
        upsample=max(config["KRCNN.UP_SCALE"], 1),
    )


def mask_rules_from_config(config: DetectronConfig) -> MaskRules:
    """Returns how class-selected probabilities become masks."""
    return MaskRules(resolution=config["MRCNN.RESOLUTION"], threshold=config["MRCNN.THRESH_BINARIZE"])


def keypoint_rules_from_config(config: DetectronConfig) -> KeypointRules:
    """Returns how heatmaps become keypoints, and how those are scored and suppressed."""
    return KeypointRules(
        count=config["KRCNN.NUM_KEYPOINTS"],
        min_size=config["KRCNN.INFERENCE_MIN_SIZE"],
        confidence=config["KRCNN.KEYPOINT_CONFIDENCE"],
        nms_oks=config["KRCNN.NMS_OKS"],
    )


def _read_mask_convs(config: DetectronConfig, count: int, *, normed: bool) -> ConvChain:
    """Returns the convolutions of a mask head; those of the normed one are padded by the dilation and yet not dilated, as trained."""
    pad = config["MRCNN.DILATION"]
    if not normed:
        return ConvChain("_[mask]_fcn", count, Kernel(3, pad=pad, dilation=pad), config["MRCNN.DIM_REDUCED"])
    return ConvChain("_mask_fcn", count, Kernel(3, pad=pad), config["MRCNN.DIM_REDUCED"], read_group_norm(config))


def _read_stage(config: DetectronConfig, section: str, prefix: str, body: Body, refusals: Refusals) -> RoiStage | None:
    key = f"{section}.ROI_XFORM_RESOLUTION"
    stride = config[key] // _CELLS_OF_RES5
    if not isinstance(body, ResNet):
        refusals.add("MODEL.CONV_BODY", config["MODEL.CONV_BODY"], f"the res5 head of {section} needs a residual body")
        return None
    if stride < 1:
        refusals.add(key, config[key], f"a res5 head needs at least {_CELLS_OF_RES5}")
        return None
    return RoiStage(prefix, body, stride, config[f"{section}.DILATION"])
