"""The tracking head against numpy layer by layer, with rows of both pictures, of one, and of none; and its place in a detector."""

from __future__ import annotations

import numpy as np
import pytest
from graph_runs import make_blobs, run_graph
from thin_models import export_thin, feed_pictures

from roiline.core.errors import ConfigError, WeightError
from roiline.core.spec import Conventions
from roiline.export.architecture import RoiTransform, TrackHead
from roiline.export.detectron.blobs import check_blobs, raise_if_bad
from roiline.export.detectron.weights import read_weights
from roiline.export.graph import GraphWriter
from roiline.export.layers import Feature
from roiline.export.track_heads import SIMILARITY, write_track_head
from roiline.ops.multilevel_roi_align import MULTILEVEL_ROI_ALIGN

CONVENTIONS = Conventions("detectron", True, True, False, 4.135)
TRANSFORM = RoiTransform(7, 2, 4, 4, 4, 224.0, 1 / 16)
D, WIDTH, HIDDEN = 4, 6, 5

TRACKER = """
MODEL: {TYPE: generalized_rcnn, CONV_BODY: ResNet.add_ResNet50_conv4_body, NUM_CLASSES: 4, FASTER_RCNN: True, TRACKING_ON: True}
FAST_RCNN: {ROI_BOX_HEAD: ResNet.add_ResNet_roi_conv5_head, ROI_XFORM_METHOD: RoIAlign, ROI_XFORM_RESOLUTION: 7}
TRCNN: {MLP_HEAD_DIM: 32, MLP_HIDDEN_DIM: 24, DETECTION_THRESH: 0.25}
TEST: {SCALE: 96, MAX_SIZE: 160, SCORE_THRESH: 0.2, DETECTIONS_PER_IM: 9, RPN_PRE_NMS_TOP_N: 60, RPN_POST_NMS_TOP_N: 20}
"""


def _make_rois(counts: tuple[int, int]) -> np.ndarray:
    random = np.random.default_rng(5)
    image = np.repeat([0.0, 1.0], counts)[:, None]
    low = random.uniform(0, 60, (len(image), 2))
    return np.concatenate([image, low, low + random.uniform(20, 80, (len(image), 2))], axis=1).astype(np.float32)


def _rows(features, rois, blobs):
    (pooled,) = MULTILEVEL_ROI_ALIGN.run(
        rois, features, spatial_scales=[1 / 16], resolution=7, sampling_ratio=2, half_pixel=0
    )
    return np.maximum(pooled.reshape(len(rois), -1) @ blobs["track_fc_w"].T + blobs["track_fc_b"], 0)


def _match(first, second, blobs):
    """The definition, one pair after another, the first picture's rows outermost."""
    answers = []
    for one in first:
        for other in second:
            x = np.concatenate([one, other])
            for layer in ("track_pairs_fc1", "track_pairs_fc2"):
                x = np.maximum(blobs[f"{layer}_w"] @ x + blobs[f"{layer}_b"], 0)
            powers = np.exp(blobs["track_score_w"] @ x + blobs["track_score_b"])
            answers.append(powers[1] / powers.sum())
    return answers


def _cosine(first, second, _blobs):
    return [one @ other / np.sqrt((one @ one) * (other @ other)) for one in first for other in second]


@pytest.mark.parametrize("counts", [(3, 2), (1, 4), (0, 3), (3, 0), (0, 0)])
@pytest.mark.parametrize(("hidden", "define"), [(HIDDEN, _match), (None, _cosine)], ids=["match", "cosine"])
def test_every_pair_by_the_definition(hidden, define, counts):
    g = GraphWriter({})
    name = write_track_head(g, TrackHead(TRANSFORM, WIDTH, hidden), {4: Feature("res4", D)}, "rois", CONVENTIONS)
    assert name == SIMILARITY
    blobs = make_blobs(g)
    features = np.random.default_rng(0).normal(size=(2, D, 9, 9)).astype(np.float32)
    rois = _make_rois(counts)
    got = run_graph(g, blobs, {"res4": features, "rois": rois}, [name])[name]
    rows = _rows(features, rois, blobs) if len(rois) else np.zeros((0, WIDTH), np.float32)
    expected = np.array(define(rows[: counts[0]], rows[counts[0] :], blobs), np.float32)
    np.testing.assert_allclose(got, expected, atol=2e-6)
    assert got.shape == (counts[0] * counts[1],)


def test_the_blobs_are_those_of_the_fork():
    g = GraphWriter({})
    write_track_head(g, TrackHead(TRANSFORM, WIDTH, HIDDEN), {4: Feature("res4", D)}, "rois", CONVENTIONS)
    assert {need.name: need.shape for need in g.requirements if need.name.endswith("_w")} == {
        "track_fc_w": (WIDTH, D * 49),
        "track_pairs_fc1_w": (HIDDEN, 2 * WIDTH),
        "track_pairs_fc2_w": (HIDDEN, HIDDEN),
        "track_score_w": (2, HIDDEN),
    }


def test_a_tracker_detects_as_the_detector_that_it_is(tmp_path):
    (tmp_path / "off").mkdir()
    tracker = export_thin(TRACKER, tmp_path)
    detector = export_thin(TRACKER.replace(", TRACKING_ON: True", ""), tmp_path / "off")
    assert tracker.spec.tracks.threshold == 0.25
    assert tracker.spec.seams["track_rois"] == ("track_rois",)
    assert detector.spec.tracks is None
    assert not {"track_rois", "tracks"} & set(detector.spec.seams)
    assert [one.name for one in tracker.session.get_outputs()] == [one.name for one in detector.session.get_outputs()]
    feeds = feed_pictures(2, 96, 128)
    got, expected = tracker.run(feeds), detector.run(feeds)
    assert expected["count"].min() > 0
    for name in expected:
        np.testing.assert_array_equal(got[name], expected[name])


def test_tracking_blobs_are_listed_where_tracking_is_off_and_missed_where_it_is_on(tmp_path):
    model = export_thin(TRACKER, tmp_path)
    stored = read_weights(tmp_path / "model.pkl")
    names = [name for name in model.blobs if name.startswith("track_")]
    without = check_blobs(stored, [])
    assert {name for name, part in without.known if part == "tracking head"} == set(names)
    bare = {name: blob for name, blob in stored.blobs.items() if name not in names}
    g = GraphWriter({})
    write_track_head(g, TrackHead(TRANSFORM, WIDTH, HIDDEN), {4: Feature("res4", D)}, "rois", CONVENTIONS)
    report = check_blobs(type(stored)(bare, None, "0" * 64, 0, "w.pkl"), g.requirements)
    with pytest.raises(WeightError, match=r"no tracking head: set MODEL\.TRACKING_ON to False to export the detector"):
        raise_if_bad(report, "w.pkl")


@pytest.mark.parametrize(
    ("change", "message"),
    [("OUTPUT: Siamese", r"TRCNN\.OUTPUT"), ("MLP_HEAD_ON: False", r"TRCNN\.MLP_HEAD_ON: False")],
)
def test_other_tracking_heads_are_refused(change, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        export_thin(TRACKER.replace("TRCNN: {", f"TRCNN: {{{change}, "), tmp_path)
