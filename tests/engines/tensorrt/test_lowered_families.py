"""Every family lowered, its kernels run on the host: the answers are those of the model as it is, for batches and for nothing found."""

from __future__ import annotations

import shutil

import numpy as np
import onnx
import pytest
from lowered_runs import C4, FAMILIES, SIZE, assert_same_answers, run_both
from thin_models import export_thin, feed_pictures, feed_rois
from torchvision_states import StateMaker, thin_state, write_safetensors

from roiline.engines.protocol import Stage
from roiline.engines.tensorrt.lowering import lower_model
from roiline.export.half_precision import FP16, convert_to_half
from roiline.export.torchvision.exporter import export_torchvision

if shutil.which("g++") is None:
    pytest.skip("needs g++ for the kernels", allow_module_level=True)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_lowered_model_answers_as_it_is(family, tmp_path):
    model = export_thin(FAMILIES[family], tmp_path)
    for images in (1, 2):
        expected, got = run_both(model.path, feed_pictures(images, *SIZE))
        assert expected["count"].min() > 0
        assert_same_answers(expected, got)


def test_pictures_of_a_batch_may_have_different_counts(tmp_path):
    model = export_thin(FAMILIES["masks on one level"], tmp_path)
    feeds = feed_pictures(3, *SIZE)
    feeds["data"][1] *= 4
    expected, got = run_both(model.path, feeds)
    assert len(set(expected["count"].tolist())) > 1
    assert_same_answers(expected, got)


def test_nothing_is_found(tmp_path):
    text = FAMILIES["masks on one level"].replace("SCORE_THRESH: 0.1", "SCORE_THRESH: 0.9999")
    model = export_thin(text, tmp_path)
    expected, got = run_both(model.path, feed_pictures(2, *SIZE))
    assert expected["count"].tolist() == [0, 0]
    assert_same_answers(expected, got)


def test_a_model_is_cut_at_its_proposals(tmp_path):
    model = export_thin(FAMILIES["cascade"], tmp_path)
    stage = Stage(outputs=tuple(model.spec.seams["proposals"]))
    expected, got = run_both(model.path, feed_pictures(2, *SIZE), stage)
    assert_same_answers(expected, got)


def test_given_rois_are_as_many_as_they_are(tmp_path):
    model = export_thin(C4.replace("FASTER_RCNN: True", "FASTER_RCNN: False"), tmp_path)
    expected, got = run_both(model.path, feed_pictures(1, *SIZE) | feed_rois(1, 12, *SIZE))
    assert expected["count"].min() > 0
    assert_same_answers(expected, got)


def test_raw_rows_and_taps_lose_their_padding(tmp_path):
    model = export_thin(C4, tmp_path, taps=["res4_5_sum", "cls_score"])
    stage = Stage(outputs=(*model.spec.seams["raw"], *model.spec.taps))
    expected, got = run_both(model.path, feed_pictures(2, *SIZE), stage)
    assert len(expected["rois"]) == expected["rpn_count"].sum()
    assert_same_answers(expected, got)


def test_half_features_go_into_kernels_as_they_are(tmp_path):
    model = export_thin(FAMILIES["masks on one level"], tmp_path)
    half = tmp_path / "half.onnx"
    onnx.save(convert_to_half(onnx.load(model.path), FP16), half)
    graph = lower_model(onnx.load(half), where="half").model.graph
    producer = {name: node for node in graph.node for name in node.output}
    poolings = [node for node in graph.node if node.op_type == "AlignRoIs1"]
    assert len(poolings) == 2
    assert all(producer[node.input[1]].op_type != "Cast" for node in poolings)
    expected, got = run_both(half, feed_pictures(2, *SIZE))
    assert expected["count"].min() > 0
    for name in ("count", "classes"):
        np.testing.assert_array_equal(got[name], expected[name])
    # ONNX Runtime leaves out roundings to half and back inside of a session, and kernels stand between sessions
    np.testing.assert_allclose(got["boxes"], expected["boxes"], atol=0.05)
    np.testing.assert_allclose(got["scores"], expected["scores"], atol=2e-3)
    np.testing.assert_allclose(got["masks"], expected["masks"], atol=5e-3)


@pytest.mark.parametrize("arch", ["fasterrcnn_resnet50_fpn", "maskrcnn_resnet50_fpn", "retinanet_resnet50_fpn"])
def test_other_conventions(arch, tmp_path):
    text = "min_size: 96\nmax_size: 160\n"
    if arch.startswith("retinanet"):
        maker = StateMaker()
        maker.pyramid(maker.resnet(basic=False)[1:])
        maker.one_stage_head(3)
        tensors, text = maker.tensors, f"{text}score_thresh: 0.7\ndetections_per_img: 60\n"
    else:
        text += "rpn_post_nms_top_n_test: 40\nbox_score_thresh: 0.26\n"
        tensors = thin_state()
        if arch.startswith("mask"):
            maker = StateMaker()
            maker.pyramid(maker.resnet(basic=False))
            maker.two_stage_heads(4)
            maker.mask_head(4)
            tensors = maker.tensors
    (tmp_path / "options.yaml").write_text(text)
    weights = write_safetensors(tmp_path / "w.safetensors", tensors)
    report = export_torchvision(arch, weights, tmp_path / "model.onnx", cfg=tmp_path / "options.yaml")
    feeds = feed_pictures(2, 96, 128)
    feeds["data"] /= np.float32(60)
    expected, got = run_both(report.path, feeds)
    assert expected["count"].min() > 0
    assert_same_answers(expected, got)
