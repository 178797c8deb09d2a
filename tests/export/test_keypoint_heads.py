"""The keypoint head on made-up weights: blobs that it needs, sizes of its maps, and no rows."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from graph_runs import make_blobs, run_graph

from roiline.core.spec import Conventions
from roiline.export.architecture import ResNet, RoiTransform
from roiline.export.graph import GraphWriter
from roiline.export.keypoint_heads import write_keypoint_head
from roiline.export.layers import Feature, Kernel
from roiline.export.map_heads import ConvChain, KeypointHead, RoiStage

CONVENTIONS = Conventions("detectron", True, True, False, 4.135)
BODY = ResNet((3, 4, 6, 3), groups=1, stride_in_1x1=True, last_stage=4)
D, J = 4, 3
PLAIN = KeypointHead(
    transform=RoiTransform(7, 2, 4, 4, 4, 224.0, 1 / 16),
    pooled="_[pose]_roi_feat",
    trunk=ConvChain("conv_fcn", 2, Kernel(3, pad=1), 6),
    count=J,
    deconv_channels=None,
    deconv_output=True,
    deconv_size=4,
    upsample=2,
)
HEADS = {
    "baseline": (PLAIN, 28),
    "convolution": (dataclasses.replace(PLAIN, deconv_output=False), 14),
    "not enlarged": (dataclasses.replace(PLAIN, upsample=1), 14),
    "deconvolved": (dataclasses.replace(PLAIN, deconv_channels=5), 56),
    "odd kernel": (dataclasses.replace(PLAIN, deconv_size=3, upsample=1), 15),
    "even convolutions": (dataclasses.replace(PLAIN, trunk=ConvChain("conv_fcn", 2, Kernel(4, pad=2), 6)), 36),
}


def _lay_out(head):
    g = GraphWriter({})
    return g, write_keypoint_head(g, head, {4: Feature("res4", D)}, "rois", CONVENTIONS)


@pytest.mark.parametrize("rows", [0, 2])
@pytest.mark.parametrize(("head", "size"), HEADS.values(), ids=HEADS.keys())
def test_maps_have_the_size_that_the_head_says(head, size, rows):
    g, name = _lay_out(head)
    feeds = {
        "res4": np.random.default_rng(0).normal(size=(1, D, 9, 9)).astype(np.float32),
        "rois": np.tile(np.array([0, 10, 20, 120, 100], np.float32), (rows, 1)),
    }
    maps = run_graph(g, make_blobs(g), feeds, [name])[name]
    assert name == "kps_score"
    assert head.size == size
    assert maps.shape == (rows, J, size, size)
    assert rows == 0 or maps.std() > 0


def test_the_blobs_of_the_convolutional_head():
    g, _ = _lay_out(HEADS["deconvolved"][0])
    assert {need.name: need.shape for need in g.requirements if need.name.endswith("_w")} == {
        "conv_fcn1_w": (6, D, 3, 3),
        "conv_fcn2_w": (6, 6, 3, 3),
        "kps_deconv_w": (6, 5, 4, 4),
        "kps_score_lowres_w": (5, J, 4, 4),
        "kps_score_w": (J, J, 4, 4),
    }


@pytest.mark.parametrize(("dilation", "size"), [(1, 16), (2, 28)])
def test_the_res5_of_the_head_has_a_scope_of_its_own(dilation, size):
    stage = RoiStage("_[pose]_res5", BODY, stride=2, dilation=dilation)
    head = dataclasses.replace(
        PLAIN, transform=dataclasses.replace(PLAIN.transform, resolution=7 if dilation == 2 else 8), trunk=stage
    )
    g, _ = _lay_out(head)
    names = {need.name for need in g.requirements}
    assert {f"_[pose]_res5_{block}_branch2{layer}_w" for block in range(3) for layer in "abc"} <= names
    assert "_[pose]_res5_0_branch1_bn_s" in names
    assert head.size == size
