"""The mask head on made-up weights: each row's own class, every form of output, and no rows."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from graph_runs import make_blobs, run_graph

from roiline.core.spec import Conventions
from roiline.export.architecture import RoiTransform
from roiline.export.graph import GraphWriter
from roiline.export.layers import Feature, Kernel
from roiline.export.map_heads import ConvChain, MaskHead
from roiline.export.mask_heads import write_mask_head

CONVENTIONS = Conventions("detectron", True, True, False, 4.135)
TRANSFORM = RoiTransform(3, 2, 2, 3, 2, 16.0, 0.25)
K, D = 5, 4
PLAIN = MaskHead(
    transform=TRANSFORM,
    pooled="_[mask]_roi_feat",
    trunk=ConvChain("_[mask]_fcn", 2, Kernel(3, pad=1), 6),
    channels=6,
    num_masks=K,
    size=6,
)
HEADS = {
    "class-specific": PLAIN,
    "class-agnostic": dataclasses.replace(PLAIN, num_masks=1),
    "enlarged": dataclasses.replace(PLAIN, upsample=2, size=12),
    "dense": dataclasses.replace(PLAIN, dense=True),
    "dense class-agnostic": dataclasses.replace(PLAIN, dense=True, num_masks=1, upsample=2, size=12),
}


def _run(head, rows):
    g = GraphWriter({})
    features = {2: Feature("p2", D), 3: Feature("p3", D)}
    masks = write_mask_head(g, head, features, "rois", "classes", CONVENTIONS)
    random = np.random.default_rng(1)
    corners = random.uniform(0, 30, (rows, 4))
    boxes = np.sort(corners.reshape(rows, 2, 2), axis=1).reshape(rows, 4)
    feeds = {
        "p2": random.normal(size=(2, D, 12, 12)).astype(np.float32),
        "p3": random.normal(size=(2, D, 6, 6)).astype(np.float32),
        "rois": np.concatenate([random.integers(0, 2, (rows, 1)), boxes], axis=1).astype(np.float32),
        "classes": random.integers(1, K, rows),
    }
    return run_graph(g, make_blobs(g), feeds, [masks, "mask_fcn_probs"]), feeds["classes"]


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS.keys())
def test_each_row_has_the_mask_of_its_class(head):
    outputs, classes = _run(head, rows=9)
    every = outputs["mask_fcn_probs"].reshape(9, head.num_masks, head.size, head.size)
    chosen = classes if head.num_masks > 1 else np.zeros(9, np.int64)
    np.testing.assert_array_equal(outputs["masks"], every[np.arange(9), chosen])
    assert 0 < outputs["masks"].min() < outputs["masks"].max() < 1
    assert head.made == head.size


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS.keys())
def test_no_rows(head):
    outputs, _ = _run(head, rows=0)
    assert outputs["masks"].shape == (0, head.size, head.size)


def test_the_blobs_that_it_needs():
    g = GraphWriter({})
    features = {2: Feature("p2", D), 3: Feature("p3", D)}
    write_mask_head(g, HEADS["enlarged"], features, "rois", "classes", CONVENTIONS)
    assert {need.name: need.shape for need in g.requirements} == {
        "_[mask]_fcn1_w": (6, D, 3, 3),
        "_[mask]_fcn1_b": (6,),
        "_[mask]_fcn2_w": (6, 6, 3, 3),
        "_[mask]_fcn2_b": (6,),
        "conv5_mask_w": (6, 6, 2, 2),
        "conv5_mask_b": (6,),
        "mask_fcn_logits_w": (K, 6, 1, 1),
        "mask_fcn_logits_b": (K,),
        "mask_fcn_logits_up_w": (K, K, 4, 4),
        "mask_fcn_logits_up_b": (K,),
    }
