"""Thin models of torchvision's forms, without torch: what is derived from a state dict, what is refused, and what a run makes of them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from torchvision_states import StateMaker, thin_state, write_safetensors

from roiline.core.errors import ConfigError, ExportError, UsageError, WeightError
from roiline.core.structures import Detections
from roiline.engines.model_file import read_spec
from roiline.engines.protocol import Device
from roiline.export.checkpoints import read_checkpoint
from roiline.export.torchvision.exporter import export_torchvision
from roiline.export.torchvision.options import load_options
from roiline.export.torchvision.source import read_source
from roiline.infer.model import open_predictor
from roiline.infer.preparation import prepare_picture, stack_batch
from roiline.infer.request import RunOverrides

ARCH = "fasterrcnn_resnet50_fpn"
OPTIONS = "min_size: 96\nmax_size: 160\nrpn_post_nms_top_n_test: 40\nbox_score_thresh: 0.26\n"


def export(tmp_path, tensors, *, arch=ARCH, text=OPTIONS, **given):
    cfg = tmp_path / "options.yaml"
    cfg.write_text(text)
    return export_torchvision(
        arch, write_safetensors(tmp_path / "w.safetensors", tensors), tmp_path / "model.onnx", cfg=cfg, **given
    )


def detect(path, picture, overrides=None) -> Detections:
    predictor = open_predictor(path, "detections", Device("cpu"), overrides=overrides)
    batch = stack_batch([prepare_picture(picture, predictor.spec.images)], [0])
    (found,) = predictor.run(batch)
    predictor.close()
    return found


@pytest.fixture
def picture():
    return np.random.default_rng(1).integers(0, 256, (90, 120, 3), dtype=np.uint8)


@pytest.mark.parametrize("variant", [{}, {"basic": True}, {"norm": "group"}, {"depth": 2}])
def test_structures_are_derived_and_run(tmp_path, picture, variant):
    text = OPTIONS + ("norm_groups: 4\n" if variant.get("norm") else "")
    report = export(tmp_path, thin_state(**variant), text=text)
    onnx.checker.check_model(str(report.path))
    spec = read_spec(report.path)
    assert spec == report.spec
    assert spec.tasks == ("proposals", "detections")
    assert spec.class_names == ("class_1", "class_2", "class_3")
    found = detect(report.path, picture)
    assert len(found.scores) >= 5
    assert (np.diff(found.scores) <= 0).all()
    assert (found.boxes >= 0).all()
    assert (found.boxes <= [120, 90, 120, 90]).all()


def test_masks_and_keypoints_follow_the_detections(tmp_path, picture):
    for arch, part in (("maskrcnn_resnet50_fpn", "mask"), ("keypointrcnn_resnet50_fpn", "keypoint")):
        maker = StateMaker()
        maker.pyramid(maker.resnet(basic=False))
        maker.two_stage_heads(4)
        if part == "mask":
            maker.mask_head(4)
        else:
            maker.keypoint_head(5)
        report = export(tmp_path, maker.tensors, arch=arch)
        found = detect(report.path, picture)
        assert len(found.scores) >= 5
        if part == "mask":
            assert report.spec.masks.resolution == 28
            assert len(found.masks) == len(found.scores)
            assert found.size_hw == (90, 120)
        else:
            assert report.spec.keypoints.count == 5
            assert found.keypoints.shape == (len(found.scores), 4, 5)
            low, high = found.boxes[:, :2, None], found.boxes[:, 2:, None]
            assert (found.keypoints[:, :2] >= low - 1).all()
            assert (found.keypoints[:, :2] <= np.maximum(high, low + 2) + 1).all()


def test_a_one_stage_model_scores_the_background_too(tmp_path, picture):
    maker = StateMaker()
    maker.pyramid(maker.resnet(basic=False)[1:])
    maker.one_stage_head(3)
    text = "min_size: 96\nmax_size: 160\nscore_thresh: 0.7\ndetections_per_img: 60\n"
    report = export(tmp_path, maker.tensors, arch="retinanet_resnet50_fpn", text=text)
    found = detect(report.path, picture)
    assert set(found.classes.tolist()) == {0, 1, 2}
    assert 10 <= len(found.scores) <= 60
    assert (np.diff(found.scores) <= 0).all()
    assert found.scores.min() > 0.7
    changed = detect(report.path, picture, RunOverrides(max_dets=8))
    np.testing.assert_array_equal(changed.classes, found.classes[:8])
    np.testing.assert_allclose(changed.boxes, found.boxes[:8], atol=1e-3)


def test_the_same_inputs_give_the_same_bytes(tmp_path):
    first = export(tmp_path, thin_state()).path.read_bytes()
    assert export(tmp_path, thin_state()).path.read_bytes() == first


def test_blocks_groups_and_widths_come_from_the_weights(tmp_path):
    maker = StateMaker()
    stages = maker.resnet(basic=False, blocks=(1, 2, 1, 3), widths=(8, 12, 16, 8))
    maker.pyramid(stages, channels=12)
    maker.two_stage_heads(3, channels=12)
    checkpoint = read_checkpoint(write_safetensors(tmp_path / "w.safetensors", maker.tensors))
    source = read_source(checkpoint, load_options(ARCH, None), proposals_only=False)
    assert source.architecture.body.blocks == (1, 2, 1, 3)
    assert not source.architecture.body.basic
    assert source.architecture.pyramid.channels == 12
    assert source.state.blobs["res3_1_branch2b_w"].shape == (12, 12, 3, 3)
    assert source.state.blobs["fpn_inner_res5_2_sum_w"].shape == (12, 32, 1, 1)


def test_statistics_are_folded_as_evaluation_computes_them(tmp_path):
    tensors = thin_state()
    checkpoint = read_checkpoint(write_safetensors(tmp_path / "w.safetensors", tensors))
    blobs = read_source(checkpoint, load_options(ARCH, None), proposals_only=False).state.blobs
    part = {
        name: tensors[f"backbone.body.bn1.{name}"].astype(float)
        for name in ("weight", "bias", "running_mean", "running_var")
    }
    x = np.linspace(-2, 2, 8)
    want = (x - part["running_mean"]) / np.sqrt(part["running_var"] + 1e-5) * part["weight"] + part["bias"]
    np.testing.assert_allclose(x * blobs["res_conv1_bn_s"] + blobs["res_conv1_bn_b"], want, rtol=1e-6)


def test_frozen_norms_are_told_of_and_their_epsilon_can_be_set(tmp_path):
    tensors = {name: array for name, array in thin_state().items() if not name.endswith("num_batches_tracked")}
    report = export(tmp_path, tensors)
    assert any("norm_eps: 0" in note for note in report.warnings)
    first = report.path.read_bytes()
    assert export(tmp_path, tensors, text=OPTIONS + "norm_eps: 1.0e-5\n").warnings == ()
    assert export(tmp_path, tensors, text=OPTIONS + "norm_eps: 0\n").path.read_bytes() != first


def test_names_of_before_2022_are_understood(tmp_path):
    tensors = thin_state()
    renamed = {}
    for name, array in tensors.items():
        old = name.replace("rpn.head.conv.0.0.", "rpn.head.conv.")
        if "_blocks." in name:
            old = name.replace(".0.weight", ".weight").replace(".0.bias", ".bias") if name.count(".0.") else name
        renamed[old] = array
    assert set(renamed) != set(tensors)
    new = export(tmp_path, tensors).path.read_bytes()
    old = export(tmp_path, renamed).path.read_bytes()
    assert _without_hash(new) == _without_hash(old)


def _without_hash(content: bytes) -> list[bytes]:
    model = onnx.load_from_string(content)
    return [tensor.SerializeToString() for tensor in model.graph.initializer]


def test_missing_tensors_are_named_by_torchvisions_names(tmp_path):
    tensors = thin_state()
    del tensors["roi_heads.box_head.fc7.bias"], tensors["backbone.body.layer3.0.bn2.running_mean"]
    with pytest.raises(WeightError) as caught:
        export(tmp_path, tensors)
    assert "2 tensors are missing" in str(caught.value)
    assert "roi_heads.box_head.fc7.bias" in str(caught.value)
    assert "backbone.body.layer3.0.bn2.running_mean" in str(caught.value)


def test_tensors_without_a_place_are_refused(tmp_path):
    tensors = thin_state()
    tensors["backbone.body.layer4.0.conv4.weight"] = np.zeros((1, 1, 1, 1), np.float32)
    with pytest.raises(WeightError, match=r"no place in it\n  backbone\.body\.layer4\.0\.conv4\.weight"):
        export(tmp_path, tensors)


def test_misshapen_and_unreal_tensors_are_named(tmp_path):
    tensors = thin_state()
    tensors["roi_heads.box_head.fc7.weight"] = np.zeros((16, 9), np.float32)
    tensors["rpn.head.bbox_pred.bias"] = np.full(12, np.nan, np.float32)
    with pytest.raises(WeightError) as caught:
        export(tmp_path, tensors)
    assert "roi_heads.box_head.fc7.weight: has the shape (16, 9), expected (16, 16)" in str(caught.value)
    assert "rpn.head.bbox_pred.bias: holds values that are not finite" in str(caught.value)


def test_a_classifier_and_another_kind_of_detector_are_refused(tmp_path):
    with pytest.raises(WeightError, match=r"there is no backbone\.body\.layer1"):
        export(tmp_path, {"conv1.weight": np.zeros((8, 3, 7, 7), np.float32)})
    with pytest.raises(WeightError, match="tensors are missing"):
        export(tmp_path, thin_state(), arch="maskrcnn_resnet50_fpn", text="min_size: 96\n")


def test_heads_that_a_model_does_without_are_noted(tmp_path):
    maker = StateMaker()
    maker.pyramid(maker.resnet(basic=False))
    maker.two_stage_heads(4)
    maker.layer("roi_heads.mask_predictor.mask_fcn_logits", 4, 8, 1, 1)
    report = export(tmp_path, maker.tensors)
    assert report.warnings == ("the weights have mask head that this model does without (2 tensors)",)
    report = export(tmp_path, maker.tensors, task="proposals")
    assert report.spec.tasks == ("proposals",)
    assert report.spec.seams["images"] == ("data", "im_info", "im_size")


def test_numbers_that_do_not_fit_the_weights_are_refused(tmp_path):
    with pytest.raises(WeightError, match="is for 4 classes, background included; num_classes is 21"):
        export(tmp_path, thin_state(), num_classes=21)
    with pytest.raises(ConfigError, match=r"6 anchors a cell, rpn\.head\.cls_logits of the weights is for 3"):
        export(
            tmp_path,
            thin_state(),
            text="rpn_anchor_generator: {sizes: [[8, 9], [16, 17], [32, 33], [64, 65], [128, 129]]}\n",
        )
    with pytest.raises(ConfigError, match="sizes for 3 levels, the weights' pyramid has 5"):
        export(tmp_path, thin_state(), text="rpn_anchor_generator: {sizes: [8, 16, 32]}\n")
    with pytest.raises(ConfigError, match="size_divisible: 16"):
        export(tmp_path, thin_state(), text="size_divisible: 16\n")
    with pytest.raises(UsageError, match="expected 3 different names"):
        export(tmp_path, thin_state(), class_names=["a", "b"])
    with pytest.raises(UsageError, match="--task proposals: retinanet_resnet50_fpn is for detections"):
        export(tmp_path, thin_state(), arch="retinanet_resnet50_fpn", text="min_size: 96\n", task="proposals")


def test_a_pyramid_without_the_last_stage_is_refused(tmp_path):
    maker = StateMaker()
    stages = maker.resnet(basic=False, widths=(8, 8, 16, 24))
    maker.pyramid(stages[:3])
    maker.two_stage_heads(4)
    with pytest.raises(ExportError, match=r"returned_layers \[1, 2, 3, 4\]"):
        export(tmp_path, maker.tensors)


def test_a_runs_own_thresholds_answer_like_a_model_that_has_them(tmp_path, picture):
    path = export(tmp_path, thin_state(), text=OPTIONS).path
    overrides = RunOverrides(score_thresh=0.3, nms_thresh=0.4, max_dets=7)
    changed = detect(path, picture, overrides)
    text = OPTIONS.replace("0.26", "0.3") + "box_nms_thresh: 0.4\nbox_detections_per_img: 7\n"
    own = detect(export(tmp_path, thin_state(), text=text).path, picture)
    assert 1 <= len(own.scores) <= 7
    np.testing.assert_array_equal(changed.classes, own.classes)
    np.testing.assert_allclose(changed.scores, own.scores, atol=1e-6)
    np.testing.assert_allclose(changed.boxes, own.boxes, atol=1e-3)
