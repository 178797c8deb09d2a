"""Whole golden models: exported, run with and without thresholds of the run's own, and compared with detectron2's answers."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
import pytest
from detectron2_cases import FOLDER, build_detectron2_case, digest_of, make_batch, recipe_of
from shared_data import shared_files, shared_path

from roiline.core.rle import decode_rle
from roiline.engines.protocol import Device
from roiline.export.detectron2.exporter import export_detectron2
from roiline.export.detectron2.weights import match_endings, read_parameters
from roiline.infer.model import open_predictor
from roiline.infer.preparation import prepare_picture
from roiline.infer.request import RunOverrides

BOX, SCORE, KEYPOINT = 0.01, 1e-4, 0.01

QUICK = [
    "faster_X101_FPN_a",
    "faster_R50_DC5_b",
    "fast_R50_FPN_a",
    "mask_R50_C4_b",
    "mask_R50_FPN_batch2_a",
    "converted_keypoint_R50_FPN",
]
HOST_CASES = ["keypoint_R50_FPN_a", "cascade_mask_R50_FPN_a", "retinanet_R50_FPN_b"]
EVERY = shared_files(f"{FOLDER}/*_*.json")


def _export(name, folder):
    case = build_detectron2_case(name, folder)
    return case, export_detectron2(case.cfg, case.weights, folder / f"{name}.onnx")


def _run(case, report, overrides=None):
    predictor = open_predictor(report.path, report.spec.tasks[-1], Device("cpu"), overrides=overrides)
    answers = predictor.run(make_batch(case, report.spec))
    predictor.close()
    return answers


@pytest.mark.parametrize("name", QUICK)
def test_detections_are_the_originals(name, tmp_path):
    case, report = _export(name, tmp_path)
    _compare(case, _run(case, report))


@pytest.mark.golden
@pytest.mark.parametrize("path", EVERY)
def test_every_case(path, tmp_path):
    case, report = _export(path.stem, tmp_path)
    answers = _run(case, report)
    if report.spec.tasks == ("proposals",):
        _compare_proposals(case, answers[0])
    else:
        _compare(case, answers)


@pytest.mark.parametrize("name", HOST_CASES)
def test_the_host_detects_alike(name, tmp_path):
    case, report = _export(name, tmp_path)
    _compare(case, _run(case, report))
    rules = report.spec.detection
    _compare(case, _run(case, report, RunOverrides(score_thresh=rules.score_thresh * (1 + 1e-7))))


def _compare(case, answers):
    for image, answer in enumerate(answers):
        np.testing.assert_array_equal(answer.classes, case.expect("pred_classes", image) + 1)
        np.testing.assert_allclose(answer.boxes, case.expect("pred_boxes", image), atol=BOX, rtol=0)
        np.testing.assert_allclose(answer.scores, case.expect("scores", image), atol=SCORE, rtol=0)
        _compare_masks(case, image, answer)
        _compare_keypoints(case, image, answer)


def _compare_masks(case, image, answer):
    if answer.masks is None:
        assert "masks_rle" not in case.info
        return
    rows = case.masks(image)
    assert len(rows) == len(answer.masks)
    for (_, size, counts, _), found in zip(rows, answer.masks, strict=True):
        wrong = int((decode_rle(counts.encode(), *size) != decode_rle(found, *size)).sum())
        assert wrong <= 3, f"{wrong} pixels"


def _compare_keypoints(case, image, answer):
    if answer.keypoints is None:
        assert "pred_keypoints" not in case.arrays
        return
    expected = case.expect("pred_keypoints", image)
    assert len(expected) == len(answer.keypoints)
    np.testing.assert_allclose(answer.keypoints[:, :2].transpose(0, 2, 1), expected[..., :2], atol=KEYPOINT, rtol=0)
    np.testing.assert_allclose(answer.keypoints[:, 3], expected[..., 2], atol=SCORE, rtol=0)


def test_proposals_are_the_originals(tmp_path):
    case, report = _export("rpn_R50_FPN_b", tmp_path)
    (answer,) = _run(case, report)
    _compare_proposals(case, answer)


def _compare_proposals(case, answer):
    np.testing.assert_allclose(answer.boxes, case.expect("post_proposal_boxes", 0), atol=BOX, rtol=0)
    np.testing.assert_allclose(answer.scores, case.expect("post_objectness_logits", 0), atol=SCORE, rtol=0)


def test_a_detector_is_cut_at_its_proposals(tmp_path):
    case = build_detectron2_case("mask_R50_FPN_a", tmp_path)
    report = export_detectron2(case.cfg, case.weights, tmp_path / "rpn.onnx", task="proposals")
    assert report.spec.tasks == ("proposals",)
    (answer,) = _run(case, report)
    batch = make_batch(case, report.spec)
    down, across = batch.im_info[0, :2] / batch.sizes[0]
    network = answer.boxes * np.array([across, down, across, down], np.float32)
    np.testing.assert_allclose(network, case.expect("proposal_boxes", 0), atol=BOX, rtol=0)
    np.testing.assert_allclose(answer.scores, case.expect("objectness_logits", 0), atol=SCORE, rtol=0)


def test_real_files_give_one_model(tmp_path):
    folder = shared_path("golden/detectron2/e2e")
    cfg = folder / "tiny_mask_R50_FPN.yaml"
    report = export_detectron2(cfg, folder / "tiny_mask_R50_FPN.pkl", tmp_path / "pkl.onnx")
    assert report.leftovers == ()
    case = replace(build_detectron2_case("tiny_mask_R50_FPN", tmp_path), cfg=cfg)
    (answer,) = _run(case, report)
    np.testing.assert_allclose(answer.boxes, case.expect("pred_boxes", 0), atol=BOX, rtol=0)
    _compare_masks(case, 0, answer)


@pytest.mark.torch
@pytest.mark.parametrize("ending", ["pth", "legacy.pth"])
def test_a_checkpoint_of_torch_gives_the_same_model(ending, tmp_path):
    pytest.importorskip("torch", reason="opening a .pth needs PyTorch")
    import onnx

    folder = shared_path("golden/detectron2/e2e")
    cfg = folder / "tiny_mask_R50_FPN.yaml"
    graphs = []
    for weights in ("tiny_mask_R50_FPN.pkl", f"tiny_mask_R50_FPN.{ending}"):
        export_detectron2(cfg, folder / weights, tmp_path / "model.onnx")
        graphs.append(onnx.load(tmp_path / "model.onnx").graph.SerializeToString(deterministic=True))
    assert graphs[0] == graphs[1]


@pytest.mark.parametrize("name", ["faster_R50_FPN_b", "mask_R50_FPN_batch2_a"])
def test_pictures_are_resized_to_the_bit(name, tmp_path):
    case, report = _export(name, tmp_path)
    bare = replace(report.spec.images, means=(0.0, 0.0, 0.0), stds=(1.0, 1.0, 1.0))
    for image in case.info["images"]:
        prepared = prepare_picture(recipe_of(image["recipe"]), bare)
        height, width = image["resized_hw"]
        assert (prepared.height, prepared.width) == (height, width)
        pixels = np.ascontiguousarray(prepared.pixels[:, :height, :width].transpose(1, 2, 0).astype(np.uint8))
        assert hashlib.sha256(pixels.tobytes()).hexdigest() == image["resized_sha256"]
    assert list(make_batch(case, report.spec).pixels.shape) == case.info["input_padded_shape"]


def test_detectron_weights_become_the_parameters_that_detectron2_makes_of_them(tmp_path):
    case = build_detectron2_case("converted_keypoint_R50_FPN", tmp_path)
    stored = read_parameters(case.weights)
    assert stored.by_ending
    assert stored.affine
    shapes = case.info["param_shapes"]
    found = match_endings(sorted(shapes), stored.tensors, stored.source)
    found = {key: value for key, value in found.items() if key in shapes}
    absent = set(shapes) - set(found)
    assert all(key.endswith((".running_mean", ".running_var")) for key in absent)
    found |= {key: np.full(shapes[key], key.endswith(".running_var"), np.float32) for key in absent}
    assert digest_of({key: np.ascontiguousarray(value) for key, value in found.items()}) == case.info["weights_sha256"]
