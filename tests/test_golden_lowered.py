"""Golden whole-model cases, lowered and run with their kernels on the host: the answers of the original programs still."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from model_cases import assert_same_detections, assert_same_proposals, build_case
from shared_data import shared_files

import roiline
from roiline.infer.pictures import read_picture

pytestmark = pytest.mark.golden

CASES = (
    "cascade_mask_R50_FPN_a",
    "cascade_R50_FPN_gn_a",
    "da_faster_VGG16_a",
    "faster_R50_C4_small",
    "faster_R50_FPN_small",
    "faster_R50_FPN_small_agnostic",
    "faster_R50_FPN_small_softnms_vote",
    "faster_VGG16_roipool_a",
    "keypoint_R50_FPN_small",
    "mask_R50_FPN_gn_small",
    "mask_fast_R50_FPN_a",
    "opt_bboxreg_off_a",
    "opt_detlimit_a",
    "opt_nodets_a",
    "retinanet_R50_FPN_small",
    "rpn_R50_C4_anchors_a",
    "rpn_R50_FPN_small",
)
"""One of every family, and of every option that changes what kernels do."""


def _cases() -> list[object]:
    found = [*shared_files("golden/e2e/*.json"), *shared_files("golden/e2e_more/*.json")]
    return [
        case for case in found if case.id in CASES or case.marks
    ]  # a mark: there is no data, and the test is skipped


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++ for the kernels")
@pytest.mark.parametrize("description", _cases())
def test_the_lowered_model_answers_like_the_original(description, tmp_path):
    case = build_case(description, tmp_path)
    model = tmp_path / f"{case.name}.onnx"
    roiline.export_detectron(case.cfg, case.weights, model, overrides=case.overrides)
    with roiline.open(model, engine="host-kernels") as opened:
        picture = read_picture(case.picture)
        if opened.spec.tasks == ("proposals",):
            answer = opened.propose(picture)
            expected = case.expected["proposal_boxes"], case.expected["proposal_scores"].reshape(-1)
            assert_same_proposals(expected, answer.boxes, answer.scores)
            return
        given = case.expected.get("box_proposals")
        answer = opened.detect(picture, given) if given is not None else opened.detect(picture)
    rows = case.expected["dets_x1y1x2y2_score_class"]
    assert_same_detections(rows, answer.boxes, answer.scores, answer.classes)
    if "keypoints_xyls" in case.expected and len(case.expected["keypoints_xyls"]):
        ours = answer.keypoints[answer.classes == 1]
        np.testing.assert_allclose(ours[:, :2], case.expected["keypoints_xyls"][:, :2], atol=0.05, rtol=0)
