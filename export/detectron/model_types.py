"""What MODEL.TYPE names: general builders, their old names, and models whose body and head the name fixes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_VGG16 = "VGG16.add_VGG16_conv5_body", "VGG16.add_VGG16_roi_fc_head"
_VGG_M = "VGG_CNN_M_1024.add_VGG_CNN_M_1024_conv5_body", "VGG_CNN_M_1024.add_VGG_CNN_M_1024_roi_fc_head"
_C5_HEAD = "ResNet.add_ResNet_roi_conv5_head"
_FROZEN = "_frozen_features"


@dataclass(frozen=True, slots=True)
class FixedModel:
    """Is a model whose name says its parts: the functions of its body and box head ("" : none)."""

    body: str
    box_head: str
    rfcn: bool = False


FIXED_MODELS: Mapping[str, FixedModel] = {
    "VGG16_fast_rcnn": FixedModel(*_VGG16),
    "VGG_CNN_M_1024_fast_rcnn": FixedModel(*_VGG_M),
    "VGG16_rpn": FixedModel(_VGG16[0], ""),
    "VGG_CNN_M_1024_rpn": FixedModel(_VGG_M[0], ""),
    **{
        f"ResNet{depth}_{kind}": FixedModel(f"ResNet.add_ResNet{depth}_conv4_body", head)
        for depth in (50, 101)
        for kind, head in (("fast_rcnn", _C5_HEAD), ("faster_rcnn", _C5_HEAD), ("rpn_conv4", ""))
    },
    **{f"ResNet{depth}_rfcn": FixedModel(f"ResNet.add_ResNet{depth}_conv5_body", "", rfcn=True) for depth in (50, 101)},
}
"""Models that need neither MODEL.CONV_BODY nor FAST_RCNN.ROI_BOX_HEAD."""

GENERAL_TYPES: frozenset[str] = frozenset(
    {
        "generalized_rcnn",
        "fast_rcnn",
        "mask_rcnn",
        "keypoint_rcnn",
        "mask_and_keypoint_rcnn",
        "rpn",
        "fpn_rpn",
        "faster_rcnn",
        "rfcn",
        "retinanet",
    }
)
"""Builders that the rest of the configuration describes; all but three are old names of the first."""


def plain_type(model_type: str) -> str:
    """Returns MODEL.TYPE without what only training knows of (`.._frozen_features`)."""
    return model_type.removesuffix(_FROZEN)
