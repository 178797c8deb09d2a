"""Soft-NMS, box voting and augmentation, against what Detectron itself answered."""

from __future__ import annotations

import json
from dataclasses import replace

import cv2
import numpy as np
import pytest
from model_cases import assert_same_detections, build_case
from shared_data import shared_path

from roiline.core.rle import decode_rle
from roiline.engines.protocol import Device
from roiline.export.detectron.config import load_config
from roiline.export.detectron.exporter import export_detectron
from roiline.export.detectron.rules import detection_rules_from_config
from roiline.export.detectron.rules import test_options_from_config as read_test_options
from roiline.infer.detection_rules import ScoredBoxes, select_detections
from roiline.infer.feeds import batch_from_picture
from roiline.infer.model import open_predictor

RULE_CASES = [
    *(f"softnms_{name}" for name in ("gaussian_a", "linear_a", "linear_b")),
    *(f"vote_{name}" for name in ("id_a", "avg_a", "avg_b", "iou_avg_a", "temp_avg_a")),
    *(f"vote_{name}" for name in ("generalized_avg_a", "generalized_avg_b", "quasi_sum_a", "quasi_sum_b")),
]
MODEL_CASES = [
    "e2e/faster_R50_FPN_small_softnms_vote",
    "e2e/mask_R50_FPN_small_tta",
    "e2e_more/fast_R50_FPN_tta_a",
    "e2e_more/fast_R50_FPN_tta_id_a",
    "e2e_more/faster_R50_C4_tta_b",
    "e2e_more/faster_R50_FPN_tta_a",
    "e2e_more/faster_R50_FPN_tta_b",
    "e2e_more/keypoint_R50_FPN_kpsaug_a",
    "e2e_more/mask_R50_FPN_maskaug_a",
    "e2e_more/mask_R50_FPN_maskaug_b",
]


@pytest.mark.golden
@pytest.mark.parametrize("name", RULE_CASES)
def test_rules_give_the_originals_detections_of_its_own_scores(name, digits_model):
    from roiline.engines.model_file import read_spec

    path = shared_path(f"golden/e2e_more/opt_{name}.json")
    options = json.loads(path.read_text())["opts"]
    pairs = tuple(zip(options[::2], map(str, options[1::2]), strict=True))
    config = load_config(path.with_name(f"{path.stem}.cfg.yaml"), pairs)
    spec = replace(
        read_spec(digits_model),
        detection=detection_rules_from_config(config),
        test=read_test_options(config, one_stage=False),
    )
    with np.load(path.with_suffix(".npz")) as stored:
        scores, boxes, expected = (stored[key] for key in ("bbox_scores", "bbox_boxes", "dets_x1y1x2y2_score_class"))
    scored = ScoredBoxes(scores.astype(np.float32), boxes.astype(np.float32).reshape(*scores.shape, 4))
    answer = select_detections(1, scored, spec)
    assert_same_detections(expected, answer.boxes, answer.scores, answer.classes)


def _answer(name, folder):
    case = build_case(shared_path(f"golden/{name}.json"), folder)
    report = export_detectron(case.cfg, case.weights, folder / "model.onnx", overrides=case.overrides)
    predictor = open_predictor(report.path, "detections", Device(threads=1))
    expected = case.expected
    proposals = [expected["box_proposals"].astype(np.float32)] if "box_proposals" in expected else []
    batch = batch_from_picture(cv2.imread(str(case.picture)), report.spec.images, 1, proposals)
    (answer,) = predictor.run(batch)
    predictor.close()
    return case, answer


@pytest.mark.golden
@pytest.mark.parametrize("name", MODEL_CASES)
def test_models_answer_as_the_original(name, tmp_path):
    case, answer = _answer(name, tmp_path)
    assert_same_detections(case.expected["dets_x1y1x2y2_score_class"], answer.boxes, answer.scores, answer.classes)
    _assert_same_masks(case.info.get("segms_rle", []), answer.masks or ())
    if "keypoints_xyls" in case.expected:
        np.testing.assert_allclose(answer.keypoints, case.expected["keypoints_xyls"], atol=0.05, rtol=0)


def _assert_same_masks(expected, masks):
    assert len(expected) == len(masks)
    for (_, size, counts), mask in zip(expected, masks, strict=True):
        np.testing.assert_array_equal(decode_rle(mask, *size), decode_rle(counts, *size))


@pytest.mark.golden
def test_a_model_on_doubled_proposals_answers_as_the_original(tmp_path):
    """Proposals that are one RoI score the same; which of them stays, and so its place within its class, the original leaves open."""
    case, answer = _answer("e2e/fast_R50_FPN_small", tmp_path)
    expected = case.expected["dets_x1y1x2y2_score_class"]
    ours, theirs = np.lexsort((-answer.scores, answer.classes)), np.lexsort((-expected[:, 4], expected[:, 5]))
    assert_same_detections(expected[theirs], answer.boxes[ours], answer.scores[ours], answer.classes[ours])
