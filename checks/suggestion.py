"""From names and shapes of weights to what they were trained as: Detectron's settings, torchvision's constructor.

What leaves no trace in weights (strides, sampling, sizes of pictures and anchors, thresholds) is not guessed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from roiline.export.detectron.weights import Structure, derive_structure

Arrays: TypeAlias = Mapping[str, NDArray[Any]]
Settings: TypeAlias = dict[str, Any]

_BOX = 4
_LAYER_RANKS = (2, 4)
_STAGE_OUTPUT = {4: "res4_0_branch2c_w", 5: "res5_0_branch2c_w"}


def suggest_settings(blobs: Arrays) -> Settings:
    """Returns keys of Detectron's configuration with the values that the blobs show."""
    blobs = _keep_layers(blobs)
    structure = derive_structure(blobs)
    return {
        **_read_model(blobs),
        **_read_body(blobs, structure),
        **(_read_pyramid(blobs) if structure.has_fpn else {}),
        **_read_box_head(blobs, structure),
        **_read_map_heads(blobs),
        **_read_forks(blobs),
    }


def count_classes(blobs: Arrays) -> int | None:
    """Returns how many classes the weights have, background included; None for an RPN, a body, or where nothing tells.

    A RetinaNet is taken for one with a sigmoid, which has no column for the background, as all published ones are.
    """
    blobs = _keep_layers(blobs)
    for name in ("cls_score_w", "cls_score_2_w", "logits_w"):
        if name in blobs:
            return int(blobs[name].shape[0])
    scores, deltas = (_find(blobs, rf"retnet_{kind}_pred_fpn\d+_w") for kind in ("cls", "bbox"))
    if scores is not None and deltas is not None and deltas.shape[0] >= _BOX:
        return int(scores.shape[0] // (deltas.shape[0] // _BOX)) + 1
    return None


def _keep_layers(blobs: Arrays) -> Arrays:
    """Returns the blobs without weights that have no shape of a layer, which show nothing."""
    return {name: blob for name, blob in blobs.items() if not name.endswith("_w") or blob.ndim in _LAYER_RANKS}


def _find(blobs: Arrays, pattern: str) -> NDArray[Any] | None:
    return next((blob for name, blob in blobs.items() if re.fullmatch(pattern, name)), None)


def _read_model(blobs: Arrays) -> Settings:
    has_rpn = any(name.startswith("rpn_cls_logits") for name in blobs)
    has_boxes = any(re.fullmatch(r"(cls_score(_\d+)?|conv_cls)_w", name) for name in blobs)
    retinanet = any(name.startswith("retnet_") for name in blobs)
    settings: Settings = {
        "MODEL.TYPE": "retinanet" if retinanet else "rfcn" if "conv_cls_w" in blobs else "generalized_rcnn"
    }
    classes = count_classes(blobs)
    if classes is not None:
        settings["MODEL.NUM_CLASSES"] = classes
    if retinanet:
        return settings | {"RETINANET.RETINANET_ON": True}
    if has_rpn:
        settings["MODEL.FASTER_RCNN" if has_boxes else "MODEL.RPN_ONLY"] = True
    deltas = blobs.get("bbox_pred_w")
    if deltas is not None and classes is not None and deltas.shape[0] == 8 and classes != 2:
        settings["MODEL.CLS_AGNOSTIC_BBOX_REG"] = True
    return settings


def _read_body(blobs: Arrays, structure: Structure) -> Settings:
    if structure.family == "VGG16":
        return {"MODEL.CONV_BODY": "VGG16.add_VGG16_conv5_body"}
    if structure.family == "VGG_CNN_M_1024":
        return {"MODEL.CONV_BODY": "VGG_CNN_M_1024.add_VGG_CNN_M_1024_conv5_body"}
    if structure.family is None or structure.depth is None:
        return {}
    name = f"ResNet{structure.depth}"
    body = f"FPN.add_fpn_{name}_conv5_body" if structure.has_fpn else f"ResNet.add_{name}_conv{_last_stage(blobs)}_body"
    settings: Settings = {"MODEL.CONV_BODY": body}
    if structure.groups is not None and structure.groups > 1:
        settings |= {"RESNETS.NUM_GROUPS": structure.groups, "RESNETS.WIDTH_PER_GROUP": structure.width_per_group}
    if structure.norm == "gn":
        settings |= {
            "RESNETS.STEM_FUNC": "basic_gn_stem",
            "RESNETS.SHORTCUT_FUNC": "basic_gn_shortcut",
            "RESNETS.TRANS_FUNC": "bottleneck_gn_transformation",
        }
    return settings


def _last_stage(blobs: Arrays) -> int:
    """Returns the stage that the first layer after a single-scale body sees; res5 is the head's where that sees res4."""
    if "res5_0_branch2a_w" not in blobs:
        return 4
    seen = next(
        (blobs[name].shape[1] for name in ("conv_rpn_w", "conv_dim_reduce_w", "conv_cls_w") if name in blobs), None
    )
    if seen is None:
        return 5 if any(name in blobs for name in ("fc6_w", "logits_w")) else 4
    outputs = {stage: blobs[name].shape[0] for stage, name in _STAGE_OUTPUT.items() if name in blobs}
    if outputs.get(4) == outputs.get(5):  # of a model that was made thin
        return 5 if any(name in blobs for name in ("fc6_w", "conv_cls_w")) else 4
    return 4 if seen == outputs.get(4) else 5


def _read_pyramid(blobs: Arrays) -> Settings:
    settings: Settings = {"FPN.FPN_ON": True}
    if "rpn_cls_logits_fpn2_w" in blobs:
        settings["FPN.MULTILEVEL_RPN"] = True
    if any(re.fullmatch(r"(cls_score(_\d+)?|conv_cls_fpn\d+)_w", name) for name in blobs):
        settings["FPN.MULTILEVEL_ROIS"] = True
    outputs = [blob.shape[0] for name, blob in blobs.items() if re.fullmatch(r"fpn_inner_res5_\d+_sum_w", name)]
    if outputs and outputs[0] != 256:
        settings["FPN.DIM"] = int(outputs[0])
    if any(name.startswith("fpn_") and name.endswith("_gn_s") for name in blobs):
        settings["FPN.USE_GN"] = True
    if "fpn_6_w" in blobs:
        settings |= {"FPN.EXTRA_CONV_LEVELS": True}
    return settings


def _read_box_head(blobs: Arrays, structure: Structure) -> Settings:
    if not any(re.fullmatch(r"cls_score(_\d+)?_w", name) for name in blobs):
        return {}
    if structure.family in ("VGG16", "VGG_CNN_M_1024"):
        return {"FAST_RCNN.ROI_BOX_HEAD": f"{structure.family}.add_{structure.family}_roi_fc_head"}
    if "fc6_w" not in blobs:
        return {"FAST_RCNN.ROI_BOX_HEAD": "ResNet.add_ResNet_roi_conv5_head"}
    convs = sum(re.fullmatch(r"head_conv\d+_w", name) is not None for name in blobs)
    settings: Settings = {"FAST_RCNN.ROI_BOX_HEAD": "fast_rcnn_heads.add_roi_2mlp_head"}
    if convs:
        kind = "_gn" if "head_conv1_gn_s" in blobs else ""
        settings = {
            "FAST_RCNN.ROI_BOX_HEAD": f"fast_rcnn_heads.add_roi_Xconv1fc{kind}_head",
            "FAST_RCNN.NUM_STACKED_CONVS": convs,
            "FAST_RCNN.CONV_HEAD_DIM": int(blobs["head_conv1_w"].shape[0]),
        }
    settings["FAST_RCNN.MLP_HEAD_DIM"] = int(blobs["fc6_w"].shape[0])
    channels = settings.get("FAST_RCNN.CONV_HEAD_DIM") or _count_pyramid_channels(blobs)
    side = math.isqrt(blobs["fc6_w"].shape[1] // channels) if channels and blobs["fc6_w"].ndim == 2 else 0
    if side and channels and side * side * channels == blobs["fc6_w"].shape[1]:
        settings["FAST_RCNN.ROI_XFORM_RESOLUTION"] = side
    return settings


def _count_pyramid_channels(blobs: Arrays) -> int | None:
    return next((int(blob.shape[0]) for name, blob in blobs.items() if re.fullmatch(r"fpn_res2_\d+_sum_w", name)), None)


def _read_map_heads(blobs: Arrays) -> Settings:
    settings: Settings = {}
    if any(name.startswith("mask_fcn_logits") for name in blobs):
        settings["MODEL.MASK_ON"] = True
    maps = next((blobs[name] for name in ("kps_score_lowres_w", "kps_score_w") if name in blobs), None)
    if maps is not None:
        deconvolved = "kps_score_lowres_w" in blobs
        settings |= {"MODEL.KEYPOINTS_ON": True, "KRCNN.NUM_KEYPOINTS": int(maps.shape[1 if deconvolved else 0])}
    return settings


def _read_forks(blobs: Arrays) -> Settings:
    settings: Settings = {}
    stages = {int(found[1]) for name in blobs if (found := re.fullmatch(r"cls_score_(\d+)_w", name))}
    if stages:
        settings |= {"MODEL.CASCADE_ON": True, "CASCADE_RCNN.NUM_STAGE": max(stages)}
    if "logits_w" in blobs:
        widths = sorted(
            (int(found[1]), int(blob.shape[0]))
            for name, blob in blobs.items()
            if (found := re.fullmatch(r"fc(\d+)_w", name))
        )
        settings |= {"MODEL.CLASSIFICATION": True, "CLASSIFICATION.MLP_HEADS_DIM": [width for _, width in widths]}
    if "track_fc_w" in blobs:
        settings |= {"MODEL.TRACKING_ON": True, "TRCNN.MLP_HEAD_DIM": int(blobs["track_fc_w"].shape[0])}
        settings["TRCNN.OUTPUT"] = "MatchNet" if "track_score_w" in blobs else "Cosine"
    return settings


def name_torchvision_model(tensors: Arrays) -> str | None:
    """Returns the constructor of torchvision that a state dict is of; None where it is of none that can be exported."""
    if not is_torchvision(tensors):
        return None
    mobile = "backbone.body.0.0.weight" in tensors
    if any(name.startswith("head.classification_head.") for name in tensors):
        normed = any(re.match(r"head\.classification_head\.conv\.0\.1\.", name) for name in tensors)
        return None if mobile else "retinanet_resnet50_fpn" + ("_v2" if normed else "")
    deep = any(name.startswith("rpn.head.conv.1.") for name in tensors)
    if mobile:
        return "fasterrcnn_mobilenet_v3_large_fpn"
    if any(name.startswith("roi_heads.keypoint_") for name in tensors):
        return "keypointrcnn_resnet50_fpn"
    kind = "mask" if any(name.startswith("roi_heads.mask_") for name in tensors) else "faster"
    return f"{kind}rcnn_resnet50_fpn" + ("_v2" if deep else "")


def is_torchvision(tensors: Arrays) -> bool:
    """Returns whether a state dict has the names of a torchvision detector."""
    return any(name.startswith(("backbone.body.", "roi_heads.box_predictor.cls_score")) for name in tensors) and any(
        name.startswith(("rpn.head.", "head.classification_head.")) for name in tensors
    )


def count_values(tensors: Arrays) -> int:
    """Returns how many numbers all arrays hold."""
    return int(np.sum([array.size for array in tensors.values()], dtype=np.int64))
