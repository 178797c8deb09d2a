"""Holds every key of Detectron's configuration and of its forks: default value, and what an export does with it.

Data only. The forks are CASC (Cascade R-CNN), DA (domain adaptation), PEST and DPEST (classification, fused heads,
attention) and TRK (tracking); a key without a fork is Detectron's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np


class Use(Enum):
    """Says what an export does with a key."""

    TAKEN = "taken"  # decides what the model computes
    IRRELEVANT = "irrelevant"  # training, scheduling, paths, evaluation: read, kept, without effect


@dataclass(frozen=True, slots=True)
class Key:
    """Describes one key of the configuration."""

    name: str
    default: Any
    use: Use
    fork: str = ""


PEST_FORKS = ("PEST", "DPEST", "PEST, DPEST")
"""The forks whose FPN.ROI_CANONICAL_LEVEL is 5 by default (Detectron: 4)."""

PEST_CANONICAL_LEVEL = 5

_KEYS: list[Key] = []


def _add(section: str, use: Use, keys: Mapping[str, Any], fork: str = "") -> None:
    prefix = f"{section}." if section else ""
    _KEYS.extend(Key(prefix + name, default, use, fork) for name, default in keys.items())


_PIXEL_MEANS = np.array([[[102.9801, 115.9465, 122.7717]]])  # BGR, 0..255; nothing is ever divided
_PIXEL_MEANS.flags.writeable = False

_add(
    "MODEL",
    Use.TAKEN,
    {
        "TYPE": "",
        "CONV_BODY": "",
        "NUM_CLASSES": -1,  # with background
        "CLS_AGNOSTIC_BBOX_REG": False,
        "BBOX_REG_WEIGHTS": (10.0, 10.0, 5.0, 5.0),
        "FASTER_RCNN": False,
        "MASK_ON": False,
        "KEYPOINTS_ON": False,
        "RPN_ONLY": False,
    },
)
_add("MODEL", Use.IRRELEVANT, {"EXECUTION_TYPE": "dag"})
_add("MODEL", Use.TAKEN, {"CASCADE_ON": False}, "CASC, PEST")
_add("MODEL", Use.TAKEN, {"BACKBONE_NAME": "", "CLASSIFICATION": False}, "PEST, DPEST")
_add("MODEL", Use.TAKEN, {"FR_FUSED": False, "WEIGHTED_LOSS": False, "GAM": False}, "PEST")
_add("MODEL", Use.TAKEN, {"ATTENTIONAL_TRANSITION": False}, "DPEST")
_add("FR_FUSED", Use.TAKEN, {"RULE": ""}, "PEST")  # roiline's own: no published file says how the heads are joined
_add("MODEL", Use.TAKEN, {"TRACKING_ON": False, "SIBLING_BACKBONE_ON": False}, "TRK")
_add("MODEL", Use.IRRELEVANT, {"FORWARD_ONLY": False}, "TRK")

_add(
    "RETINANET",
    Use.TAKEN,
    {
        "RETINANET_ON": False,
        "ASPECT_RATIOS": (0.5, 1.0, 2.0),  # the order decides the channel layout
        "SCALES_PER_OCTAVE": 3,
        "ANCHOR_SCALE": 4,
        "NUM_CONVS": 4,
        "PRE_NMS_TOP_N": 1000,
        "SHARE_CLS_BBOX_TOWER": False,
        "CLASS_SPECIFIC_BBOX": False,
        "SOFTMAX": False,
        "INFERENCE_TH": 0.05,
    },
)
_add(
    "RETINANET",
    Use.IRRELEVANT,
    {
        "PRIOR_PROB": 0.01,
        "LOSS_ALPHA": 0.25,
        "LOSS_GAMMA": 2.0,
        "BBOX_REG_WEIGHT": 1.0,
        "BBOX_REG_BETA": 0.11,
        "POSITIVE_OVERLAP": 0.5,
        "NEGATIVE_OVERLAP": 0.4,
    },
)

_add(
    "FAST_RCNN",
    Use.TAKEN,
    {
        "ROI_BOX_HEAD": "",
        "MLP_HEAD_DIM": 1024,
        "CONV_HEAD_DIM": 256,
        "NUM_STACKED_CONVS": 4,
        "ROI_XFORM_METHOD": "RoIPoolF",
        "ROI_XFORM_SAMPLING_RATIO": 0,
        "ROI_XFORM_RESOLUTION": 14,
    },
)
_add("FAST_RCNN", Use.IRRELEVANT, {"LOSS_ON": True}, "TRK")

_add(
    "RPN",
    Use.TAKEN,
    {"RPN_ON": False, "SIZES": (64, 128, 256, 512), "ASPECT_RATIOS": (0.5, 1, 2)},
)
_add("RPN", Use.IRRELEVANT, {"STRIDE": 16})  # the network's stride is that of its body
_add("RPN", Use.IRRELEVANT, {"LOSS_ON": True}, "TRK")

_add(
    "FPN",
    Use.TAKEN,
    {
        "FPN_ON": False,
        "DIM": 256,
        "COARSEST_STRIDE": 32,
        "MULTILEVEL_ROIS": False,
        "MULTILEVEL_RPN": False,
        "ROI_CANONICAL_SCALE": 224,
        "ROI_CANONICAL_LEVEL": 4,
        "ROI_MIN_LEVEL": 2,
        "ROI_MAX_LEVEL": 5,
        "RPN_MIN_LEVEL": 2,
        "RPN_MAX_LEVEL": 6,
        "RPN_ASPECT_RATIOS": (0.5, 1, 2),
        "RPN_ANCHOR_START_SIZE": 32,
        "EXTRA_CONV_LEVELS": False,
        "USE_GN": False,
    },
)
_add("FPN", Use.IRRELEVANT, {"ZERO_INIT_LATERAL": False})
_add("FPN", Use.TAKEN, {"FINEST_LEVEL_SCALE": 0.25, "RPN_ANCHOR_SIZE_INCREASE": 2.0}, "PEST, DPEST")

_add(
    "MRCNN",
    Use.TAKEN,
    {
        "ROI_MASK_HEAD": "",
        "RESOLUTION": 14,
        "ROI_XFORM_METHOD": "RoIAlign",
        "ROI_XFORM_RESOLUTION": 7,
        "ROI_XFORM_SAMPLING_RATIO": 0,
        "DIM_REDUCED": 256,
        "DILATION": 2,
        "UPSAMPLE_RATIO": 1,
        "USE_FC_OUTPUT": False,
        "CLS_SPECIFIC_MASK": True,
        "THRESH_BINARIZE": 0.5,
    },
)
_add("MRCNN", Use.IRRELEVANT, {"CONV_INIT": "GaussianFill", "WEIGHT_LOSS_MASK": 1.0})
_add("MRCNN", Use.IRRELEVANT, {"AT_STAGE": 1}, "CASC, PEST")

_add(
    "KRCNN",
    Use.TAKEN,
    {
        "ROI_KEYPOINTS_HEAD": "",
        "HEATMAP_SIZE": -1,
        "UP_SCALE": -1,
        "USE_DECONV": False,
        "DECONV_DIM": 256,
        "USE_DECONV_OUTPUT": False,
        "DECONV_KERNEL": 4,
        "DILATION": 1,
        "NUM_KEYPOINTS": -1,
        "NUM_STACKED_CONVS": 8,
        "CONV_HEAD_DIM": 256,
        "CONV_HEAD_KERNEL": 3,
        "NMS_OKS": False,
        "KEYPOINT_CONFIDENCE": "bbox",
        "ROI_XFORM_METHOD": "RoIAlign",
        "ROI_XFORM_RESOLUTION": 7,
        "ROI_XFORM_SAMPLING_RATIO": 0,
        "INFERENCE_MIN_SIZE": 0,
    },
)
_add(
    "KRCNN",
    Use.IRRELEVANT,
    {
        "CONV_INIT": "GaussianFill",
        "MIN_KEYPOINT_COUNT_FOR_VALID_MINIBATCH": 20,
        "LOSS_WEIGHT": 1.0,
        "NORMALIZE_BY_VISIBLE_KEYPOINTS": True,
    },
)
_add("KRCNN", Use.IRRELEVANT, {"AT_STAGE": 1}, "CASC, PEST")

_add("RFCN", Use.TAKEN, {"PS_GRID_SIZE": 3})
_add("RFCN", Use.TAKEN, {"ROI_BOX_HEAD": ""}, "PEST")
_add(
    "RESNETS",
    Use.TAKEN,
    {
        "NUM_GROUPS": 1,
        "WIDTH_PER_GROUP": 64,
        "STRIDE_1X1": True,
        "TRANS_FUNC": "bottleneck_transformation",
        "STEM_FUNC": "basic_bn_stem",
        "SHORTCUT_FUNC": "basic_bn_shortcut",
        "RES5_DILATION": 1,
    },
)
_add("GROUP_NORM", Use.TAKEN, {"DIM_PER_GP": -1, "NUM_GROUPS": 32, "EPSILON": 1e-5})

_add(
    "CASCADE_RCNN",
    Use.TAKEN,
    {
        "ROI_BOX_HEAD": "",
        "NUM_STAGE": 3,
        "TEST_STAGE": 0,
        "TEST_ENSEMBLE": True,
        "BBOX_REG_WEIGHTS": ((10.0, 10.0, 5.0, 5.0), (20.0, 20.0, 10.0, 10.0), (30.0, 30.0, 15.0, 15.0)),
    },
    "CASC, PEST",
)
_add(
    "CASCADE_RCNN",
    Use.IRRELEVANT,
    {
        "FG_THRESHS": (0.5, 0.6, 0.7),
        "BG_THRESHS_HI": (0.5, 0.6, 0.7),
        "BG_THRESHS_LO": (0.0, 0.0, 0.0),
        "SCALE_LOSS": True,
        "SCALE_GRAD": False,
        "STAGE_WEIGHTS": (1.0, 0.5, 0.25),
    },
    "CASC, PEST",
)
_add(
    "CLASSIFICATION",
    Use.TAKEN,
    {"MLP_HEAD": "", "MLP_HEADS_DIM": [1024, 1024]},
    "PEST, DPEST",
)
_add("CLASSIFICATION", Use.IRRELEVANT, {"FINAL_AVG_KERNEL": 7, "DROPOUT_RATE": 0.85}, "PEST, DPEST")
_add(
    "TRCNN",
    Use.TAKEN,
    {
        "ROI_TRACKING_HEAD": "",
        "MLP_HEAD_ON": True,
        "MLP_HEAD_DIM": 256,
        "MLP_HIDDEN_DIM": 512,
        "ROI_XFORM_METHOD": "RoIAlign",
        "ROI_XFORM_RESOLUTION": 7,
        "ROI_XFORM_SAMPLING_RATIO": 0,
        "OUTPUT": "MatchNet",
        "DETECTION_THRESH": 0.8,
    },
    "TRK",
)
_add(
    "TRCNN",
    Use.IRRELEVANT,
    {"LOSS_WEIGHT": 1.0, "LOSS": "L2", "FRAME_DIST_MAX": 1.5, "MAX_BACK_TRACK": 0},
    "TRK",
)
_add("SIBLING", Use.TAKEN, {"FORK_AT": 2, "PREFFIX": "sib", "HEADS": []}, "TRK")

_add(
    "TEST",
    Use.TAKEN,
    {
        "SCALE": 600,
        "MAX_SIZE": 1000,
        "NMS": 0.3,
        "BBOX_REG": True,
        "PROPOSAL_LIMIT": 2000,
        "GENERATE_PROPOSALS_ON_GPU": False,
        "RPN_NMS_THRESH": 0.7,
        "RPN_PRE_NMS_TOP_N": 12000,
        "RPN_POST_NMS_TOP_N": 2000,
        "RPN_MIN_SIZE": 0,
        "DETECTIONS_PER_IM": 100,
        "SCORE_THRESH": 0.05,
        "PRECOMPUTED_PROPOSALS": True,
    },
)
_add(
    "TEST",
    Use.IRRELEVANT,
    {
        "WEIGHTS": "",
        "DATASETS": (),
        "PROPOSAL_FILES": (),
        "COMPETITION_MODE": True,
        "FORCE_JSON_DATASET_EVAL": False,
        "CLASS_SPECIFIC_AR": False,
    },
)
_add(
    "TEST",
    Use.IRRELEVANT,
    {"CITYSCAPES_EVALUATOR": False, "COCO_EVALUATOR": True, "VOC_EVALUATOR": False},
    "PEST, DPEST",
)
_add("TEST.SOFT_NMS", Use.TAKEN, {"ENABLED": False, "METHOD": "linear", "SIGMA": 0.5})
_add("TEST.BBOX_VOTE", Use.TAKEN, {"ENABLED": False, "VOTE_TH": 0.8, "SCORING_METHOD": "ID"})
_add("TEST.BBOX_VOTE", Use.IRRELEVANT, {"SCORING_METHOD_BETA": 1.0})  # never reaches the voting function
_AUGMENTATION = {
    "ENABLED": False,
    "H_FLIP": False,
    "SCALES": (),
    "MAX_SIZE": 4000,
    "SCALE_H_FLIP": False,
    "SCALE_SIZE_DEP": False,
    "ASPECT_RATIOS": (),
    "ASPECT_RATIO_H_FLIP": False,
}
_add("TEST.BBOX_AUG", Use.TAKEN, {**_AUGMENTATION, "SCORE_HEUR": "UNION", "COORD_HEUR": "UNION"})
_add("TEST.BBOX_AUG", Use.IRRELEVANT, {"AREA_TH_LO": 50**2, "AREA_TH_HI": 180**2})
_add("TEST.MASK_AUG", Use.TAKEN, {**_AUGMENTATION, "HEUR": "SOFT_AVG"})
_add("TEST.MASK_AUG", Use.IRRELEVANT, {"AREA_TH": 180**2})
_add("TEST.KPS_AUG", Use.TAKEN, {**_AUGMENTATION, "HEUR": "HM_AVG", "AREA_TH": 180**2})

_add(
    "TRAIN",
    Use.IRRELEVANT,
    {
        "WEIGHTS": "",
        "DATASETS": (),
        "PROPOSAL_FILES": (),
        "SCALES": (600,),
        "IMS_PER_BATCH": 2,
        "BATCH_SIZE_PER_IM": 64,
        "FG_FRACTION": 0.25,
        "FG_THRESH": 0.5,
        "BG_THRESH_HI": 0.5,
        "BG_THRESH_LO": 0.0,
        "USE_FLIPPED": True,
        "BBOX_THRESH": 0.5,
        "SNAPSHOT_ITERS": 80000,
        "ASPECT_GROUPING": True,
        "RPN_POSITIVE_OVERLAP": 0.7,
        "RPN_NEGATIVE_OVERLAP": 0.3,
        "RPN_FG_FRACTION": 0.5,
        "RPN_BATCH_SIZE_PER_IM": 256,
        "RPN_NMS_THRESH": 0.7,
        "RPN_PRE_NMS_TOP_N": 12000,
        "RPN_POST_NMS_TOP_N": 2000,
        "RPN_STRADDLE_THRESH": 0,
        "RPN_MIN_SIZE": 0,
        "GENERATE_PROPOSALS_ON_GPU": False,
        "CROWD_FILTER_THRESH": 0.7,
        "GT_MIN_AREA": -1,
        "FREEZE_CONV_BODY": False,
        "FREEZE_AT": 2,
        "AUTO_RESUME": True,
        "COPY_WEIGHTS": False,
    },
)
_add("TRAIN", Use.TAKEN, {"MAX_SIZE": 1000})  # sizes the field of anchors, at inference too
_add(
    "TRAIN",
    Use.IRRELEVANT,
    {
        "DOMAIN_ADAPTATION": False,
        "DA_IMG_GRL_WEIGHT": 0.1,
        "DA_INS_GRL_WEIGHT": 0.1,
        "SOURCE_DATASETS": (),
        "TARGET_DATASETS": (),
        "SOURCE_PROPOSAL_FILES": (),
        "TARGET_PROPOSAL_FILES": (),
    },
    "DA",
)
_add("TRAIN", Use.IRRELEVANT, {"USE_CROPPED": False, "CROPPED_SIZE": 2, "ENHANCE_STRATEGY": False}, "PEST")
_add("TRAIN", Use.IRRELEVANT, {"EPOCH_PERIOD": 20, "FREEZE_BLOBS": []}, "TRK")
_add(
    "SOLVER",
    Use.IRRELEVANT,
    {
        "BASE_LR": 0.001,
        "LR_POLICY": "step",
        "GAMMA": 0.1,
        "STEP_SIZE": 30000,
        "STEPS": [],
        "LRS": [],
        "MAX_ITER": 40000,
        "MOMENTUM": 0.9,
        "WEIGHT_DECAY": 0.0005,
        "WEIGHT_DECAY_GN": 0.0,
        "WARM_UP_ITERS": 500,
        "WARM_UP_FACTOR": 1.0 / 3.0,
        "WARM_UP_METHOD": "linear",
        "SCALE_MOMENTUM": True,
        "SCALE_MOMENTUM_THRESHOLD": 1.1,
        "LOG_LR_CHANGE_THRESHOLD": 1.1,
    },
)
_add("SOLVER", Use.IRRELEVANT, {"MAX_EPOCH": -1}, "PEST")
_add("DATA_LOADER", Use.IRRELEVANT, {"NUM_THREADS": 4, "MINIBATCH_QUEUE_SIZE": 64, "BLOBS_QUEUE_CAPACITY": 8})
_add("DATA_LOADER", Use.IRRELEVANT, {"EXTRA_BLOBS": ()}, "TRK")
_add("CLUSTER", Use.IRRELEVANT, {"ON_CLUSTER": False})
_add(
    "",
    Use.TAKEN,
    {
        "PIXEL_MEANS": _PIXEL_MEANS,
        "BBOX_XFORM_CLIP": np.log(1000.0 / 16.0),
        "DEDUP_BOXES": 1.0 / 16.0,
    },
)
_add(
    "",
    Use.IRRELEVANT,
    {
        "NUM_GPUS": 1,
        "USE_NCCL": False,
        "RNG_SEED": 3,
        "EPS": 1e-14,
        "ROOT_DIR": "",  # the original's are paths of the machine that runs it
        "OUTPUT_DIR": "",
        "DOWNLOAD_CACHE": "",
        "MATLAB": "matlab",
        "VIS": False,
        "VIS_TH": 0.9,
        "EXPECTED_RESULTS": [],
        "EXPECTED_RESULTS_RTOL": 0.1,
        "EXPECTED_RESULTS_ATOL": 0.005,
        "EXPECTED_RESULTS_SIGMA_TOL": 4,
        "EXPECTED_RESULTS_EMAIL": "",
        "MEMONGER": True,
        "MEMONGER_SHARE_ACTIVATIONS": False,
    },
)
_add("", Use.IRRELEVANT, {"VIS_NET": False, "CONTINUE_ON_ERROR": False, "SKIP_EXISTING_WEIGHTS": False}, "TRK")

KEYS: Mapping[str, Key] = {key.name: key for key in _KEYS}
"""Every key, by its dotted name."""

SECTIONS: frozenset[str] = frozenset(
    ".".join(parts[:length]) for parts in (name.split(".") for name in KEYS) for length in range(1, len(parts))
)
"""Every name that holds keys ("TEST", "TEST.SOFT_NMS")."""

DEPRECATED: frozenset[str] = frozenset(
    {
        "FINAL_MSG",
        "MODEL.DILATION",
        "ROOT_GPU_ID",
        "RPN.ON",
        "TRAIN.BBOX_NORMALIZE_TARGETS_PRECOMPUTED",
        "TRAIN.DROPOUT",
        "USE_GPU_NMS",
        "TEST.NUM_TEST_IMAGES",
    }
)
"""Keys of old configurations that have no effect: ignored with a warning."""

RENAMED: Mapping[str, tuple[str, str]] = {
    "MODEL.PS_GRID_SIZE": ("RFCN.PS_GRID_SIZE", ""),
    "MODEL.ROI_HEAD": ("FAST_RCNN.ROI_BOX_HEAD", ""),
    "MRCNN.MASK_HEAD_NAME": ("MRCNN.ROI_MASK_HEAD", ""),
    "TRAIN.DATASET": ("TRAIN.DATASETS", "and is a tuple, ('name',), no longer names joined by colons"),
    "TRAIN.PROPOSAL_FILE": ("TRAIN.PROPOSAL_FILES", "and is a tuple, ('path',), no longer paths joined by colons"),
    "TEST.SCALES": ("TEST.SCALE", "and is one number, 600, no longer a tuple"),
    "TEST.DATASET": ("TEST.DATASETS", "and is a tuple, ('name',), no longer one name"),
    "TEST.PROPOSAL_FILE": ("TEST.PROPOSAL_FILES", "and is a tuple, ('path',), no longer one path"),
}
"""Old names: the new name, and how the value changed."""

_MASK_HEADS = ("v1up4convs", "v1up", "v0upshare", "v0up")
RENAMED_FUNCTIONS: Mapping[str, str] = {
    "head_builder.add_roi_2mlp_head": "fast_rcnn_heads.add_roi_2mlp_head",
    **{
        f"mask_rcnn_heads.ResNet_mask_rcnn_fcn_head_{head}": f"mask_rcnn_heads.mask_rcnn_fcn_head_{head}"
        for head in _MASK_HEADS
    },
}
"""Old names of builder functions, which stand as values."""

CHOICES: Mapping[str, tuple[Any, ...]] = {
    "FR_FUSED.RULE": ("", "sum", "mean", "concat"),
    "FAST_RCNN.ROI_XFORM_METHOD": ("RoIPoolF", "RoIAlign"),
    "MRCNN.ROI_XFORM_METHOD": ("RoIPoolF", "RoIAlign"),
    "KRCNN.ROI_XFORM_METHOD": ("RoIPoolF", "RoIAlign"),
    "KRCNN.KEYPOINT_CONFIDENCE": ("bbox", "logit", "prob"),
    "RESNETS.TRANS_FUNC": ("bottleneck_transformation", "bottleneck_gn_transformation"),
    "RESNETS.STEM_FUNC": ("basic_bn_stem", "basic_gn_stem"),
    "RESNETS.SHORTCUT_FUNC": ("basic_bn_shortcut", "basic_gn_shortcut"),
    "TEST.SOFT_NMS.METHOD": ("hard", "linear", "gaussian"),
    "TEST.BBOX_VOTE.SCORING_METHOD": ("ID", "TEMP_AVG", "AVG", "IOU_AVG", "GENERALIZED_AVG", "QUASI_SUM"),
    "TEST.BBOX_AUG.SCORE_HEUR": ("UNION", "ID", "AVG"),
    "TEST.BBOX_AUG.COORD_HEUR": ("UNION", "ID", "AVG"),
    "TEST.BBOX_AUG.SCALE_SIZE_DEP": (False,),  # the original refuses True
    "TEST.MASK_AUG.HEUR": ("SOFT_AVG", "SOFT_MAX", "LOGIT_AVG"),
    "TEST.MASK_AUG.SCALE_SIZE_DEP": (False,),  # the original refuses True
    "TEST.KPS_AUG.HEUR": ("HM_AVG", "HM_MAX"),
}
"""The values that are understood, where only some are; any other is refused."""
