"""Settings that weights show against the configurations that the weights were made from."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np
import pytest
from shared_data import shared_files
from thin_models import THIN, lay_out_config

from roiline.checks.suggestion import count_classes, name_torchvision_model, suggest_settings
from roiline.export.detectron.config import DetectronConfig, config_from_text, load_config

PUBLISHED = shared_files("data/detectron-configs/*/*.yaml")
MADE_THIN = ("RESNETS.NUM_GROUPS", "RESNETS.WIDTH_PER_GROUP")
SETS = tuple(THIN.items())
PYRAMID = "FPN: {FPN_ON: True, MULTILEVEL_ROIS: True, MULTILEVEL_RPN: True}\n"

CASES = {
    "vgg16": "MODEL: {TYPE: generalized_rcnn, CONV_BODY: VGG16.add_VGG16_conv5_body, NUM_CLASSES: 21, FASTER_RCNN: True}\n"
    "FAST_RCNN: {ROI_BOX_HEAD: VGG16.add_VGG16_roi_fc_head}",
    "vgg_m": "MODEL: {TYPE: generalized_rcnn, CONV_BODY: VGG_CNN_M_1024.add_VGG_CNN_M_1024_conv5_body, NUM_CLASSES: 3}\n"
    "FAST_RCNN: {ROI_BOX_HEAD: VGG_CNN_M_1024.add_VGG_CNN_M_1024_roi_fc_head}",
    "cascade": "MODEL: {TYPE: generalized_rcnn, CONV_BODY: FPN.add_fpn_ResNet50_conv5_body, NUM_CLASSES: 5, FASTER_RCNN: True, "
    "CASCADE_ON: True, CLS_AGNOSTIC_BBOX_REG: True}\n"
    "FAST_RCNN: {ROI_BOX_HEAD: fast_rcnn_heads.add_roi_2mlp_head, ROI_XFORM_RESOLUTION: 7}\n"
    "CASCADE_RCNN: {ROI_BOX_HEAD: cascade_rcnn_heads.add_roi_2mlp_head}\n" + PYRAMID,
    "classifier": "MODEL: {TYPE: generalized_rcnn, CONV_BODY: ResNet.add_ResNet50_conv5_body, NUM_CLASSES: 5, CLASSIFICATION: True}\n"
    "CLASSIFICATION: {MLP_HEAD: classification_heads.add_Xmlp_head, MLP_HEADS_DIM: [24, 16, 8]}",
    "tracker": "MODEL: {TYPE: generalized_rcnn, CONV_BODY: ResNet.add_ResNet101_conv4_body, NUM_CLASSES: 4, FASTER_RCNN: True, "
    "TRACKING_ON: True}\n"
    "FAST_RCNN: {ROI_BOX_HEAD: ResNet.add_ResNet_roi_conv5_head, ROI_XFORM_RESOLUTION: 7}\nTRCNN: {MLP_HEAD_DIM: 40, OUTPUT: Cosine}",
    "rfcn": "MODEL: {TYPE: rfcn, CONV_BODY: ResNet.add_ResNet50_conv5_body, NUM_CLASSES: 4}\nRFCN: {PS_GRID_SIZE: 3}",
}


def _make_blobs(config: DetectronConfig) -> dict[str, np.ndarray]:
    """Returns arrays that have the shapes of a thin network, and take no memory."""
    needs = lay_out_config(config).graph.requirements
    return {need.name: np.broadcast_to(np.float32(0), need.shape) for need in needs}


def _check(config: DetectronConfig) -> None:
    shown = suggest_settings(_make_blobs(config))
    assert "MODEL.CONV_BODY" in shown
    for key, value in shown.items():
        given = (
            config.function(key)
            if isinstance(value, str) and key not in ("MODEL.TYPE", "TRCNN.OUTPUT")
            else config[key]
        )
        if key == "MODEL.TYPE" and value == "generalized_rcnn":
            assert given not in ("retinanet", "rfcn")  # all others are old names of it
        elif key not in MADE_THIN:
            assert given == value, key


@lru_cache(maxsize=1)
def _seen() -> set[tuple[object, ...]]:
    return set()


@pytest.mark.parametrize("path", PUBLISHED)
def test_the_published_configurations(path):
    config = load_config(path, SETS)
    same = tuple(sorted((key, str(config[key])) for key in suggest_settings(_make_blobs(config))))
    if same in _seen():
        return  # differs from an earlier one in what no weights show
    _seen().add(same)
    _check(config)


@pytest.mark.parametrize("name", CASES)
def test_other_families(name):
    config = config_from_text(CASES[name], SETS)
    _check(config)
    if name != "rfcn":  # whose grid hides the number of classes
        assert count_classes(_make_blobs(config)) == config["MODEL.NUM_CLASSES"]


def test_a_body_alone_shows_no_classes():
    blobs = {"res2_0_branch2b_w": np.zeros((64, 64, 3, 3), np.float32)}
    assert count_classes(blobs) is None
    assert suggest_settings(blobs) == {"MODEL.TYPE": "generalized_rcnn"}


def test_weights_of_no_layer_show_nothing():
    blobs = {
        name: np.zeros(shape, np.float32) for name, shape in {"cls_score_w": (), "fc6_w": 3, "conv_rpn_w": 5}.items()
    }
    assert count_classes(blobs) is None
    assert suggest_settings(blobs) == {"MODEL.TYPE": "generalized_rcnn"}


STATES: Mapping[str, tuple[str, ...]] = {
    "fasterrcnn_resnet50_fpn": (
        "backbone.body.conv1.weight",
        "rpn.head.conv.weight",
        "roi_heads.box_predictor.cls_score.weight",
    ),
    "maskrcnn_resnet50_fpn": (
        "backbone.body.conv1.weight",
        "rpn.head.conv.0.0.weight",
        "roi_heads.mask_head.0.0.weight",
    ),
    "maskrcnn_resnet50_fpn_v2": (
        "backbone.body.conv1.weight",
        "rpn.head.conv.1.0.weight",
        "roi_heads.mask_head.0.0.weight",
    ),
    "keypointrcnn_resnet50_fpn": (
        "backbone.body.conv1.weight",
        "rpn.head.conv.weight",
        "roi_heads.keypoint_head.0.weight",
    ),
    "fasterrcnn_mobilenet_v3_large_fpn": ("backbone.body.0.0.weight", "rpn.head.conv.0.0.weight"),
    "retinanet_resnet50_fpn": ("backbone.body.conv1.weight", "head.classification_head.conv.0.0.weight"),
    "retinanet_resnet50_fpn_v2": ("backbone.body.conv1.weight", "head.classification_head.conv.0.1.weight"),
}


@pytest.mark.parametrize("arch", STATES)
def test_the_constructor_of_a_state_dict(arch):
    assert name_torchvision_model({name: np.zeros(1) for name in STATES[arch]}) == arch


def test_a_classifier_is_no_detector():
    assert name_torchvision_model({"backbone.body.conv1.weight": np.zeros(1), "fc.weight": np.zeros(1)}) is None
