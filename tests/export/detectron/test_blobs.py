"""What a network needs is compared with what a file has, and all that is wrong is said at once."""

from __future__ import annotations

import json

import numpy as np
import pytest
from shared_data import shared_files, shared_path

from roiline.core.errors import WeightError
from roiline.export.detectron.blobs import (
    ResolvedNames,
    check_blobs,
    name_part,
    raise_if_bad,
    resolve_name,
)
from roiline.export.detectron.weights import DetectronWeights
from roiline.export.graph import BlobRequirement


def make_weights(blobs):
    return DetectronWeights(blobs, None, "0" * 64, 0, "w.pkl")


def read_shapes(case):
    return json.loads(shared_path(f"golden/{case}.json").read_text())["param_shapes"]


def need(shapes):
    return [BlobRequirement(name, tuple(shape), name_part(name) or "layer") for name, shape in shapes.items()]


def fill(shapes):
    return {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}


def check_case(wanted, stored):
    """Checks the weights of one golden case against what another needs."""
    return check_blobs(make_weights(fill(read_shapes(stored))), need(read_shapes(wanted)))


def read_faults(report, **options):
    with pytest.raises(WeightError) as raised:
        raise_if_bad(report, "w.pkl", **options)
    return str(raised.value)


@pytest.mark.parametrize("path", shared_files("golden/e2e*/*_*.json"))
def test_every_parameter_of_the_family_is_known_by_name(path):
    names = json.loads(path.read_text()).get("param_shapes", {})
    assert [name for name in names if name_part(name) is None] == []


def test_weights_that_fit_pass():
    report = check_case("e2e/mask_R50_FPN_small", "e2e/mask_R50_FPN_small")
    assert report.ok
    assert (report.known, report.unknown, report.diagnoses) == ((), (), ())
    raise_if_bad(report, "w.pkl", strict=True)


def test_free_dimensions_fit_anything():
    weights = make_weights({"a_w": np.zeros((5, 3), np.float32)})
    assert check_blobs(weights, [BlobRequirement("a_w", (None, 3), "layer")]).ok
    assert not check_blobs(weights, [BlobRequirement("a_w", (None, 4), "layer")]).ok
    assert not check_blobs(weights, [BlobRequirement("a_w", (None,), "layer")]).ok


def test_all_faults_stand_in_one_table():
    blobs = {
        "cls_score_w": np.zeros((81, 8), np.float32),
        "bbox_pred_w": np.full((324, 8), np.nan, np.float32),
        "fc6_w": np.array([[1, -np.inf]], np.float32),
    }
    requirements = [
        BlobRequirement("cls_score_w", (21, 8), "class scores", "MODEL.NUM_CLASSES"),
        BlobRequirement("bbox_pred_w", (84, 8), "box deltas"),
        BlobRequirement("fc6_w", (1, 2), "first layer"),
        BlobRequirement("rpn_cls_logits_w", (15, None, 1, 1), "objectness", "RPN.SIZES"),
    ]
    message = read_faults(check_blobs(make_weights(blobs), requirements))
    lines = [" ".join(line.split()) for line in message.splitlines()]
    assert lines[0] == "w.pkl: these weights do not fit the configuration (5 faults)"
    assert "The weights have 81 classes with background, the configuration 21: MODEL.NUM_CLASSES" in lines
    assert lines[-6:] == [
        "blob in the file expected for look at",
        "cls_score_w (81, 8) (21, 8) class scores MODEL.NUM_CLASSES",
        "bbox_pred_w (324, 8) (84, 8) box deltas MODEL.NUM_CLASSES",
        "rpn_cls_logits_w missing (15, any, 1, 1) objectness RPN.SIZES",
        "bbox_pred_w 2592 NaN or infinite finite values",
        "fc6_w 1 NaN or infinite finite values",
    ]


def test_a_backbone_is_called_one():
    shapes = read_shapes("e2e/faster_R50_FPN_small")
    body = {name: shape for name, shape in shapes.items() if name.startswith(("res", "conv1"))}
    blobs = fill({**body, "fc1000_w": (10, 8), "fc1000_b": (10,), "conv1_b": (64,)})
    report = check_blobs(make_weights(blobs), need(shapes))
    assert report.diagnoses[0].startswith(
        "This is a backbone, not a detector: 162 blobs of a ResNet-50 and an ImageNet classifier, no RPN and no head"
    )
    vgg = read_shapes("e2e_more/faster_VGG16_a")
    stored = fill(
        {
            name: shape
            for name, shape in vgg.items()
            if name.startswith(("conv1_", "conv2", "conv3", "conv4", "conv5", "fc"))
        }
    )
    report = check_blobs(make_weights(stored), need(vgg))
    assert "a backbone, not a detector" in report.diagnoses[0]
    assert "VGG16" in report.diagnoses[0]


def test_weights_without_an_rpn_are_called_so():
    report = check_case("e2e/faster_R50_FPN_small", "e2e/fast_R50_FPN_small")
    assert report.diagnoses == ("These weights have no RPN; they need a proposal file: set MODEL.FASTER_RCNN to False",)


def test_weights_of_an_rpn_alone_are_called_so():
    report = check_case("e2e/faster_R50_FPN_small", "e2e/rpn_R50_FPN_small")
    assert any("an RPN alone: set MODEL.RPN_ONLY to True" in sentence for sentence in report.diagnoses)


def test_an_rpn_leaves_the_heads_of_a_detector_aside():
    report = check_case("e2e/rpn_R50_FPN_small", "e2e/faster_R50_FPN_small")
    assert report.ok
    assert {part for _, part in report.known} == {"box head", "box outputs"}


def test_box_only_weights_for_masks_and_keypoints_are_called_so():
    shapes = read_shapes("e2e/mask_R50_FPN_small")
    boxes = {name: shape for name, shape in shapes.items() if name_part(name) != "mask head"}
    report = check_blobs(make_weights(fill(boxes)), need(shapes))
    assert report.diagnoses == ("These weights have no mask head: set MODEL.MASK_ON to False to export boxes only",)
    assert len(report.missing) == len(shapes) - len(boxes)
    assert check_blobs(make_weights(fill(shapes)), need(boxes)).ok
    shapes = read_shapes("e2e/keypoint_R50_FPN_small")
    boxes = {name: shape for name, shape in shapes.items() if name_part(name) != "keypoint head"}
    report = check_blobs(make_weights(fill(boxes)), need(shapes))
    assert report.diagnoses == (
        "These weights have no keypoint head: set MODEL.KEYPOINTS_ON to False to export boxes only",
    )


def test_another_depth_is_named_in_both_directions():
    shallow = read_shapes("e2e/faster_R50_FPN_small")
    deep = {**shallow}
    for index in range(6, 23):
        deep.update({f"res4_{index}_{name[7:]}": s for name, s in shallow.items() if name.startswith("res4_5_")})
    report = check_blobs(make_weights(fill(shallow)), need(deep))
    assert any("(ResNet-50)" in line and "(ResNet-101): MODEL.CONV_BODY" in line for line in report.diagnoses)
    report = check_blobs(make_weights(fill(deep)), need(shallow))
    assert not report.missing
    assert len(report.excess) == 17 * 9
    assert "(ResNet-101)" in report.diagnoses[0]
    assert "a deeper body" in read_faults(report)


@pytest.mark.parametrize(
    ("wanted", "stored", "expected"),
    [
        ("e2e/faster_R50_FPN_small", "e2e/faster_R50_C4_small", "The RPN is single-scale (C4) in the weights"),
        ("e2e/faster_R50_C4_small", "e2e/faster_R50_FPN_small", "The RPN is of an FPN model in the weights"),
        (
            "e2e/mask_R50_FPN_gn_small",
            "e2e/mask_R50_FPN_small",
            "affine channels in the weights and group normalisation",
        ),
        (
            "e2e/mask_R50_FPN_small",
            "e2e/mask_R50_FPN_gn_small",
            "group normalisation in the weights and affine channels",
        ),
        ("e2e/retinanet_R50_FPN_small", "e2e/faster_R50_FPN_small", "These weights have no RetinaNet head"),
        (
            "e2e_more/faster_VGG16_a",
            "e2e/faster_R50_C4_small",
            "a ResNet in the weights and a VGG16 in the configuration",
        ),
    ],
)
def test_another_family_is_named(wanted, stored, expected):
    report = check_case(wanted, stored)
    assert any(expected in sentence for sentence in report.diagnoses)
    assert not report.ok


def test_leftovers_are_sorted_into_known_and_unknown():
    shapes = read_shapes("e2e/faster_R50_FPN_small")
    extra = {"fc1000_w": (2, 2), "res2_0_branch2a_b": (4,), "conv1_b": (64,), "da_conv_1_w": (2,), "my_own_w": (3,)}
    report = check_blobs(make_weights(fill({**shapes, **extra})), need(shapes))
    assert report.ok
    assert dict(report.known) == {
        "fc1000_w": "classifier of the ImageNet backbone",
        "res2_0_branch2a_b": "zero bias of a convolution",
        "conv1_b": "zero bias of a convolution",
        "da_conv_1_w": "domain classifier, for training",
    }
    assert report.unknown == ("my_own_w",)
    raise_if_bad(report, "w.pkl")
    assert "my_own_w" in read_faults(report, strict=True)


def test_biases_that_should_be_zero_and_are_not_stop():
    shapes = read_shapes("e2e/faster_R50_FPN_small")
    blobs = fill({**shapes, "res2_0_branch2a_b": (4,)})
    blobs["res2_0_branch2a_b"][1] = 0.5
    report = check_blobs(make_weights(blobs), need(shapes))
    assert report.nonzero_biases == ("res2_0_branch2a_b",)
    assert "bias before an affine layer" in read_faults(report)


def test_bracketed_scopes_fall_back_to_the_plain_name():
    blobs = {"res5_0_branch2a_w": 1, "_[mask]_res5_1_branch2a_w": 2, "res5_1_branch2a_w": 3}
    assert resolve_name("_[mask]_res5_0_branch2a_w", blobs) == "res5_0_branch2a_w"
    assert resolve_name("_[mask]_res5_1_branch2a_w", blobs) == "_[mask]_res5_1_branch2a_w"
    assert resolve_name("_[mask]_res5_2_branch2a_w", blobs) is None
    assert resolve_name("res5_2_branch2a_w", blobs) is None
    stored = json.loads(shared_path("golden/e2e_more/mask_R50_C4_v0upshare_a.json").read_text())
    absent = set(stored["params_not_in_file"])
    assert absent
    in_file = {name: shape for name, shape in stored["param_shapes"].items() if name not in absent}
    assert check_blobs(make_weights(fill(in_file)), need(stored["param_shapes"])).ok


def test_blobs_are_viewed_by_the_names_of_the_network():
    blobs = ResolvedNames({"res5_0_w": (2, 3), "other": (1,)})
    assert blobs["_[mask]_res5_0_w"] == (2, 3)
    assert blobs.get("_[mask]_res5_1_w") is None
    assert "_[pose]_res5_0_w" in blobs
    assert (len(blobs), list(blobs)) == (2, ["res5_0_w", "other"])
    with pytest.raises(KeyError):
        blobs["x_w"]
