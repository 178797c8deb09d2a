"""Pairs of pictures: the matching rule, the list of pairs, and a thin tracker over real pairs, on files and in the command."""

from __future__ import annotations

import json

import cv2
import numpy as np
import pytest
from click.testing import CliRunner
from run_support import make_spec, write_model
from thin_models import export_thin

import roiline
from roiline.cli import main
from roiline.core.errors import EXIT_SOME_FAILED, DataError, UsageError
from roiline.core.structures import Detections
from roiline.engines.protocol import Device, Stage
from roiline.engines.registry import open_engine
from roiline.infer.pairs import read_pairs
from roiline.infer.preparation import prepare_picture, stack_batch
from roiline.infer.tracking import Match, match_detections, open_tracker

TRACKER = """
MODEL: {TYPE: generalized_rcnn, CONV_BODY: FPN.add_fpn_ResNet50_conv5_body, NUM_CLASSES: 4, FASTER_RCNN: True, TRACKING_ON: True}
FPN: {FPN_ON: True, MULTILEVEL_ROIS: True, MULTILEVEL_RPN: True}
FAST_RCNN: {ROI_BOX_HEAD: fast_rcnn_heads.add_roi_2mlp_head, ROI_XFORM_METHOD: RoIAlign, ROI_XFORM_RESOLUTION: 7}
TRCNN: {MLP_HEAD_DIM: 32, MLP_HIDDEN_DIM: 24, OUTPUT: Cosine, DETECTION_THRESH: 0.5}
TEST: {SCALE: 64, MAX_SIZE: 96, SCORE_THRESH: 0.2, DETECTIONS_PER_IM: 9, RPN_PRE_NMS_TOP_N: 60, RPN_POST_NMS_TOP_N: 20}
"""


def _found(*classes: int) -> Detections:
    count = len(classes)
    return Detections(0, np.zeros((count, 4), np.float32), np.ones(count, np.float32), np.array(classes, np.int64))


def test_rows_of_one_class_are_paired_by_the_largest_sum():
    similarity = np.array([[0.95, 0.9, 0.99], [0.9, 0.5, 0.0]], np.float32)
    matches = match_detections(similarity, _found(1, 1), _found(1, 1, 2), threshold=0.8)
    assert [(one.first, one.second) for one in matches] == [(0, 1), (1, 0)]  # 0.9 + 0.9 is more than 0.95 + nothing
    assert matches[0] == Match(0, 1, pytest.approx(0.9))


def test_a_similarity_at_the_threshold_is_none():
    similarity = np.array([[0.5]], np.float32)
    assert match_detections(similarity, _found(1), _found(1), threshold=0.5) == ()
    assert match_detections(similarity, _found(1), _found(2), threshold=0.1) == ()
    assert match_detections(np.zeros((0, 1), np.float32), _found(), _found(1), threshold=0.5) == ()
    assert len(match_detections(similarity, _found(1), _found(1), threshold=0.4)) == 1


@pytest.mark.parametrize("text", ["a.png b.png\n\n", "\ufeffa.png\tb.png\n", "  a.png \t b.png  "])
def test_a_list_of_pairs(text, tmp_path):
    (tmp_path / "pairs.txt").write_text(text)
    (pair,) = read_pairs(tmp_path / "pairs.txt")
    assert pair.names == ("a.png", "b.png")
    assert pair.paths == (tmp_path / "a.png", tmp_path / "b.png")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a.png b.png\nc.png\n", "line 2: expected two picture paths"),
        (b"a b c", "line 1"),
        (b"\n \n", "it has none"),
        (b"\x89PNG\r\n\x1a\n\xff\xfe", "expected a list of pairs, the file is"),
        (None, r"pairs\.txt: no such file"),
    ],
)
def test_what_is_no_list_of_pairs(content, message, tmp_path):
    if content is not None:
        (tmp_path / "pairs.txt").write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_pairs(tmp_path / "pairs.txt")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return export_thin(TRACKER, tmp_path_factory.mktemp("tracker"))


@pytest.fixture
def pictures(tmp_path):
    """Two pictures of one size, one of another, and a list of pairs of which two cannot be tracked."""
    random = np.random.default_rng(2)
    for name, shape in {"a": (64, 80, 3), "b": (64, 80, 3), "c": (80, 64, 3)}.items():
        rough = random.integers(0, 256, (8, 10, 3), np.uint8)
        cv2.imwrite(str(tmp_path / f"{name}.png"), cv2.resize(rough, shape[1::-1]))
    (tmp_path / "pairs.txt").write_text("a.png b.png\na.png\ta.png\na.png c.png\na.png lost.png\n")
    return tmp_path


def test_pairs_from_the_command(model, pictures):
    arguments = ["track", model.path, pictures / "pairs.txt", "-o", pictures / "out"]
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == EXIT_SOME_FAILED, result.output
    content = json.loads((pictures / "out" / "tracks.json").read_text())
    assert (content["format_version"], content["threshold"]) == (1, 0.5)
    assert content["classes"] == ["class_1", "class_2", "class_3"]
    other, same, unlike, lost = content["pairs"]
    assert other["images"] == ["a.png", "b.png"]
    assert "must be of one size" in unlike["failure"]
    assert "lost.png" in lost["failure"]
    count = len(same["detections"][0]["scores"])
    assert count > 1
    assert [match["rows"] for match in same["matches"]] == [[row, row] for row in range(count)]  # a picture with itself
    np.testing.assert_allclose([match["similarity"] for match in same["matches"]], 1, atol=1e-5)
    with roiline.open(model.path) as opened:
        for place, name in enumerate("ab"):
            alone = opened.detect(cv2.imread(str(pictures / f"{name}.png")))
            np.testing.assert_allclose(other["detections"][place]["boxes"], alone.boxes, atol=1e-3)


def test_similarities_are_those_of_the_head_on_the_final_boxes(model, pictures):
    first, second = (cv2.imread(str(pictures / f"{name}.png")) for name in "ab")
    with open_tracker(model.path, Device()) as tracker:
        tracked = tracker.track(first, second)
        assert tracked.similarity.shape == (len(tracked.first.scores), len(tracked.second.scores))
        batch = stack_batch([prepare_picture(one, tracker.spec.image_rules) for one in (first, second)], [0, 1])
    rows = [(index, found) for index, found in enumerate((tracked.first, tracked.second))]
    scale = batch.im_info[0, 2]
    rois = np.concatenate([np.insert(found.boxes * scale, 0, index, axis=1) for index, found in rows])
    with open_engine(model.path, stage=Stage(outputs=("track_fc",), inputs=("track_rois",))) as engine:
        features = engine.run({"data": batch.pixels, "track_rois": rois.astype(np.float32)})["track_fc"]
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    count = len(tracked.first.scores)
    np.testing.assert_allclose(tracked.similarity, unit[:count] @ unit[count:].T, atol=1e-5)


def test_thresholds_of_a_run_hold_for_both_pictures(model, pictures):
    picture = cv2.imread(str(pictures / "a.png"))
    with open_tracker(model.path, Device(), overrides=roiline.RunOverrides(max_dets=1)) as tracker:
        tracked = tracker.track(picture, picture)
    assert tracked.similarity.shape == (1, 1)
    assert len(tracked.matches) == 1


def test_a_model_without_a_tracking_head_is_refused(tmp_path):
    with pytest.raises(UsageError, match="has no tracking head"):
        open_tracker(write_model(tmp_path / "m.onnx", make_spec()), Device())
