"""Whole networks: seams, inputs, taps, batches, nothing found, and the same bytes twice."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from thin_models import THIN, export_thin, feed_pictures, feed_rois, lay_out

from roiline.core.errors import UsageError
from roiline.engines.model_file import read_spec

C4 = """
MODEL: {TYPE: generalized_rcnn, CONV_BODY: ResNet.add_ResNet50_conv4_body, NUM_CLASSES: 5, FASTER_RCNN: True}
RPN: {SIZES: [32, 64], ASPECT_RATIOS: [0.5, 1.0]}
FAST_RCNN: {ROI_BOX_HEAD: ResNet.add_ResNet_roi_conv5_head, ROI_XFORM_METHOD: RoIAlign}
TEST: {RPN_PRE_NMS_TOP_N: 60, RPN_POST_NMS_TOP_N: 20, SCORE_THRESH: 0.1, NMS: 0.5}
"""
FAST_C4 = C4.replace("FASTER_RCNN: True", "FASTER_RCNN: False")
MASKS = """
MRCNN: {ROI_MASK_HEAD: mask_rcnn_heads.mask_rcnn_fcn_head_v0upshare, RESOLUTION: 14, ROI_XFORM_RESOLUTION: 14, DILATION: 1}
"""
MASK_C4 = C4.replace("FASTER_RCNN: True", "FASTER_RCNN: True, MASK_ON: True") + MASKS
MAXIMA_C4 = C4.replace("RoIAlign", "RoIPoolF")
CASCADE = """
MODEL: {TYPE: generalized_rcnn, CONV_BODY: FPN.add_fpn_ResNet50_conv5_body, NUM_CLASSES: 5, FASTER_RCNN: True, CASCADE_ON: True,
  CLS_AGNOSTIC_BBOX_REG: True}
FPN: {FPN_ON: True, MULTILEVEL_ROIS: True, MULTILEVEL_RPN: True}
FAST_RCNN: {ROI_BOX_HEAD: fast_rcnn_heads.add_roi_Xconv1fc_gn_head, ROI_XFORM_METHOD: RoIAlign, ROI_XFORM_RESOLUTION: 7}
CASCADE_RCNN: {ROI_BOX_HEAD: cascade_rcnn_heads.add_roi_Xconv1fc_gn_head}
TEST: {RPN_PRE_NMS_TOP_N: 60, RPN_POST_NMS_TOP_N: 20, SCORE_THRESH: 0.1, NMS: 0.5}
"""
SIZE = 96, 128
DETECTIONS = ["boxes", "scores", "classes", "count"]


def test_seams_of_a_detector_with_masks(tmp_path):
    model = export_thin(MASK_C4, tmp_path)
    assert model.spec.tasks == ("proposals", "detections")
    assert model.spec.seams == {
        "images": ("data", "im_info", "im_size"),
        "features": ("res4_5_sum",),
        "proposals": ("proposal_boxes", "rpn_scores", "rpn_count"),
        "raw": ("rois", "rpn_count", "cls_prob", "bbox_pred"),
        "detections": tuple(DETECTIONS),
        "mask_rois": ("mask_rois", "mask_classes"),
        "masks": ("masks",),
    }
    assert [tensor.name for tensor in model.session.get_outputs()] == [*DETECTIONS, "masks"]
    assert model.spec.masks.resolution == 14
    assert model.spec == read_spec(model.path)
    onnx.checker.check_model(onnx.load(model.path))


def test_a_model_without_rpn_takes_its_rois(tmp_path):
    model = export_thin(FAST_C4, tmp_path)
    assert model.spec.tasks == ("detections",)
    assert model.spec.seams["given_rois"] == ("rois", "roi_index", "roi_count")
    assert model.spec.seams["raw"] == ("proposal_rois", "roi_count", "proposal_cls_prob", "proposal_bbox_pred")
    assert (model.spec.given_proposals.limit, model.spec.given_proposals.dedup) == (2000, 0.0625)
    feeds = feed_pictures(1, *SIZE) | feed_rois(1, 6, *SIZE)
    got = model.run(feeds)
    once = model.run(feeds | {"roi_index": np.arange(6)})
    assert got["count"][0] > 0
    assert not np.array_equal(got["scores"], once["scores"]), "repeated rows must show"


@pytest.mark.parametrize("text", [C4, MAXIMA_C4, MASK_C4, CASCADE], ids=["c4", "maxima", "masks", "cascade"])
def test_a_batch_gives_what_single_pictures_give(text, tmp_path):
    model = export_thin(text, tmp_path)
    feeds = feed_pictures(3, *SIZE)
    got = model.run(feeds)
    start = 0
    for image, count in enumerate(got["count"]):
        alone = model.run({name: array[image : image + 1] for name, array in feeds.items()})
        assert alone["count"][0] == count > 0
        for name in ("boxes", "scores", "classes"):
            np.testing.assert_array_equal(got[name][image, :count], alone[name][0])
        if "masks" in got:
            np.testing.assert_array_equal(got["masks"][start : start + count], alone["masks"])
        start += count


@pytest.mark.parametrize("text", [C4, MAXIMA_C4, MASK_C4, CASCADE], ids=["c4", "maxima", "masks", "cascade"])
def test_nothing_found_is_an_answer(text, tmp_path):
    model = export_thin(text.replace("SCORE_THRESH: 0.1", "SCORE_THRESH: 1.5"), tmp_path)
    got = model.run(feed_pictures(2, *SIZE))
    assert got["boxes"].shape == (2, 0, 4)
    np.testing.assert_array_equal(got["count"], [0, 0])
    if "masks" in got:
        assert got["masks"].shape == (0, 14, 14)


@pytest.mark.parametrize("text", [C4, CASCADE], ids=["c4", "cascade"])
def test_no_proposal_is_an_answer(text, tmp_path):
    model = export_thin(text.replace("{RPN_PRE", "{RPN_MIN_SIZE: 100000, RPN_PRE"), tmp_path)
    np.testing.assert_array_equal(model.run(feed_pictures(2, *SIZE))["count"], [0, 0])


def test_the_same_inputs_give_the_same_bytes(tmp_path):
    files = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        folder.mkdir()
        files.append(export_thin(CASCADE, folder).path.read_bytes())
    assert files[0] == files[1]


def test_taps_are_outputs_after_the_others(tmp_path):
    taps = ["res3_3_sum", "rpn_cls_probs", "rois", "pool5", "res3_3_sum", "res5_pool"]
    model = export_thin(C4, tmp_path, taps=taps)
    kept = tuple(dict.fromkeys(taps))
    assert model.spec.taps == kept
    assert [tensor.name for tensor in model.session.get_outputs()] == [*DETECTIONS, *kept]
    got = model.run(feed_pictures(2, *SIZE))
    assert got["res3_3_sum"].shape == (2, 32, SIZE[0] // 8, SIZE[1] // 8)
    assert got["pool5"].shape == (len(got["rois"]), 32, 14, 14)
    assert got["res5_pool"].shape == (len(got["rois"]), 32, 1, 1)
    ranks = {tensor.name: len(tensor.shape) for tensor in model.session.get_outputs()}
    assert (ranks["res3_3_sum"], ranks["rois"], ranks["pool5"]) == (4, 2, 4)
    plain = tmp_path / "plain"
    plain.mkdir()
    untapped = export_thin(C4, plain).run(feed_pictures(2, *SIZE))
    for name in DETECTIONS:
        np.testing.assert_array_equal(got[name], untapped[name])


def test_a_tap_that_is_an_output_anyway_changes_nothing(tmp_path):
    model = export_thin(C4, tmp_path, taps=["boxes"])
    assert [tensor.name for tensor in model.session.get_outputs()] == DETECTIONS


def test_unknown_taps_are_listed_with_near_ones(tmp_path):
    with pytest.raises(UsageError, match=r"(?s)no such blobs:.*rpn_cls_prob: near: rpn_cls_probs.*data: is an input"):
        export_thin(C4, tmp_path, taps=["rpn_cls_prob", "res4_5_sum", "data"])


def test_only_what_a_task_needs_is_required():
    every = {need.name for need in lay_out(C4, tuple(THIN.items())).graph.requirements}
    some = {need.name for need in lay_out(C4, tuple(THIN.items()), proposals_only=True).graph.requirements}
    assert every - some >= {"cls_score_w", "bbox_pred_w", "res5_2_branch2c_w"}
    assert some < every


@pytest.mark.parametrize(("native", "inclusive", "in_network"), [("False", 1, 0), ("True", 0, 1)])
def test_native_proposals_follow_caffe2s_operator(native, inclusive, in_network, tmp_path):
    model = export_thin(C4.replace("{RPN_PRE", f"{{GENERATE_PROPOSALS_ON_GPU: {native}, RPN_PRE"), tmp_path)
    (node,) = (node for node in onnx.load(model.path).graph.node if node.op_type == "GenerateProposals")
    attributes = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
    assert attributes["nms_inclusive"] == inclusive
    assert attributes["min_size_in_network"] == in_network


def test_an_ensemble_shares_the_weights_of_its_stages(tmp_path):
    model = export_thin(
        CASCADE, tmp_path, taps=["cls_prob_3", "cls_prob_1_3", "cls_prob_2_3", "cls_prob_mean", "rois", "rois_3"]
    )
    assert not any(name.startswith(("fc6_1_3", "head_conv1_1_3")) for name in model.blobs)
    got = model.run(feed_pictures(1, *SIZE))
    mean = (got["cls_prob_3"] + got["cls_prob_1_3"] + got["cls_prob_2_3"]) / 3
    np.testing.assert_allclose(got["cls_prob_mean"], mean, atol=1e-6)
    np.testing.assert_array_equal(got["rois"][:, 0], got["rois_3"][:, 0])
    assert model.spec.detection.bbox_reg_weights == (30.0, 30.0, 15.0, 15.0)
    assert model.spec.seams["raw"] == ("rois_3", "rpn_count", "cls_prob_mean", "bbox_pred_3")
