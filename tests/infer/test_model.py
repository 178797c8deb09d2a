"""A model opened as it comes, and cut at its seams where the host has something to do; on the shipped demo model."""

from __future__ import annotations

from dataclasses import replace

import cv2
import numpy as np
import pytest

from roiline.core.errors import EngineError, UsageError
from roiline.core.structures import Detections
from roiline.engines.protocol import Device, Stage
from roiline.export.detectron.exporter import export_detectron
from roiline.infer.feeds import batch_from_picture, split_batch
from roiline.infer.host_detection import HostPredictor
from roiline.infer.model import WholePredictor, open_predictor
from roiline.infer.preparation import prepare_picture, stack_batch
from roiline.infer.request import RunOverrides
from roiline.infer.stages import Stages

FAST = (("MODEL.FASTER_RCNN", "False"), ("TEST.PROPOSAL_FILES", "('p',)"), ("TEST.DATASETS", "('d',)"))
SOFT = (("TEST.SOFT_NMS.ENABLED", "True"), ("TEST.SOFT_NMS.METHOD", "gaussian"))
FLIP = (("TEST.BBOX_AUG.ENABLED", "True"), ("TEST.BBOX_AUG.H_FLIP", "True"))


@pytest.fixture(scope="module")
def export(digits, tmp_path_factory):
    """Exports the demo model with options, each set of options once."""
    made = {}

    def make(*options):
        if options not in made:
            out = tmp_path_factory.mktemp("model") / "model.onnx"
            export_detectron(digits / "digits.yaml", digits / "digits.pkl", out, overrides=options)
            made[options] = out
        return made[options]

    return make


@pytest.fixture(scope="module")
def pictures(digits):
    return [cv2.imread(str(path)) for path in sorted((digits / "pictures").iterdir())[:8]]


def open_model(path, **options):
    return open_predictor(path, "detections", Device(threads=1), **options)


def make_batch(predictor, pictures, proposals=()):
    prepared = [prepare_picture(picture, predictor.spec.images) for picture in pictures]
    batch = stack_batch(prepared, list(range(len(pictures))), padded=True)
    return replace(batch, pictures=tuple(pictures), proposals=tuple(proposals))


def assert_same(one: Detections, other: Detections, tolerance=0.0):
    assert one.image_id == other.image_id
    np.testing.assert_array_equal(one.classes, other.classes)
    np.testing.assert_allclose(one.boxes, other.boxes, atol=tolerance, rtol=0)
    np.testing.assert_allclose(one.scores, other.scores, atol=tolerance / 100, rtol=0)


def alike(pictures):
    """Two pictures of one size."""
    first = pictures[0]
    return [first, np.ascontiguousarray(first[::-1, ::-1])]


def test_an_ordinary_model_is_one_call(export):
    predictor = open_model(export())
    assert isinstance(predictor, WholePredictor)
    assert not predictor.needs_pictures
    assert not predictor.needs_proposals


def test_overridden_thresholds_are_those_of_an_export_with_them(export, pictures):
    options = (("TEST.SCORE_THRESH", "0.4"), ("TEST.NMS", "0.2"), ("TEST.DETECTIONS_PER_IM", "3"))
    exported = open_model(export(*options))
    overridden = open_model(export(), overrides=RunOverrides(score_thresh=0.4, nms_thresh=0.2, max_dets=3))
    assert isinstance(exported, WholePredictor)
    assert isinstance(overridden, HostPredictor)
    batch = make_batch(exported, pictures[:2])
    for one, other in zip(exported.run(batch), overridden.run(batch), strict=True):
        assert 0 < len(one.scores) <= 3
        assert_same(one, other, 1e-3)


def test_boxes_that_are_not_regressed_are_the_same_on_the_host(export, pictures):
    path = export(("TEST.BBOX_REG", "False"))
    batch = make_batch(open_model(path), pictures[:1])
    (whole,) = open_model(path).run(batch)
    (host,) = open_model(path, overrides=RunOverrides(score_thresh=0.05001)).run(batch)
    assert len(whole.scores) > 0
    assert_same(whole, host, 1e-3)


@pytest.mark.parametrize("options", [SOFT, FLIP, (*FLIP, ("TEST.BBOX_AUG.ASPECT_RATIOS", "(0.8,)"))])
def test_a_batch_answers_as_its_pictures_alone(export, pictures, options):
    predictor = open_model(export(*options))
    batch = make_batch(predictor, alike(pictures))
    together = predictor.run(batch)
    for single, answer in zip(split_batch(batch), together, strict=True):
        assert_same(*predictor.run(single), answer)
    assert not np.array_equal(together[0].boxes, together[1].boxes)


def test_soft_nms_keeps_what_nms_drops(export, pictures):
    batch = make_batch(open_model(export()), pictures[:1])
    (hard,), (soft,) = open_model(export()).run(batch), open_model(export(*SOFT)).run(batch)
    assert len(soft.scores) > len(hard.scores)
    assert not open_model(export(*SOFT)).needs_pictures


def test_a_mirrored_picture_has_the_mirrored_detections(export, pictures):
    predictor = open_model(export(*FLIP))
    assert predictor.needs_pictures
    picture = pictures[1]
    (upright,) = predictor.run(make_batch(predictor, [picture]))
    (mirrored,) = predictor.run(make_batch(predictor, [np.ascontiguousarray(picture[:, ::-1])]))
    turned = mirrored.boxes[:, [2, 1, 0, 3]].copy()
    turned[:, [0, 2]] = picture.shape[1] - 1 - turned[:, [0, 2]]
    order, other = (np.lexsort((-found.scores, found.classes)) for found in (upright, mirrored))
    assert len(order) > 3
    np.testing.assert_allclose(turned[other], upright.boxes[order], atol=1e-3)


def test_given_proposals(export, pictures):
    predictor = open_model(export(*FAST))
    assert predictor.needs_proposals
    detector = open_predictor(export(), "proposals", Device(threads=1))
    made = [detector.run(make_batch(detector, [picture]))[0].boxes for picture in alike(pictures)]
    together = predictor.run(make_batch(predictor, alike(pictures), [made[0], made[1][:0]]))
    (alone,) = predictor.run(make_batch(predictor, pictures[:1], made[:1]))
    assert len(alone.scores) > 3
    assert_same(alone, together[0])
    assert len(together[1].scores) == 0


def test_the_detectors_own_proposals_given_back_make_its_detections(export, pictures):
    predictor = open_model(export(*FAST, ("DEDUP_BOXES", "0.0")))
    whole, detector = open_model(export()), open_predictor(export(), "proposals", Device(threads=1))
    batch = make_batch(detector, pictures[:1])
    (expected,), (proposals,) = whole.run(batch), detector.run(batch)
    (answer,) = predictor.run(replace(batch, proposals=(proposals.boxes,)))
    assert len(answer.scores) > 3
    assert_same(expected, answer, 1e-2)


@pytest.mark.parametrize(
    "options", [FAST, (*FAST, *FLIP, ("TEST.BBOX_AUG.SCORE_HEUR", "AVG"), ("TEST.BBOX_AUG.COORD_HEUR", "AVG"))]
)
def test_a_picture_without_proposals_has_no_detection(export, pictures, options):
    predictor = open_model(export(*options))
    (answer,) = predictor.run(make_batch(predictor, pictures[:1], [np.zeros((0, 4), np.float32)]))
    assert (answer.boxes.shape, answer.scores.shape, answer.classes.shape) == ((0, 4), (0,), (0,))


def test_missing_proposals_are_said(export, pictures):
    predictor = open_model(export(*FAST))
    with pytest.raises(UsageError, match="--proposals-from"):
        predictor.run(make_batch(predictor, pictures[:1]))


def test_a_model_does_only_its_tasks(export):
    with pytest.raises(UsageError, match="makes detections, not proposals"):
        open_predictor(export(*FAST), "proposals", Device())


def test_one_picture_makes_a_batch(export, pictures):
    predictor = open_model(export())
    batch = batch_from_picture(pictures[0], predictor.spec.images, "a.png")
    assert batch.ids == ("a.png",)
    assert len(predictor.run(batch)) == 1


class _Engine:
    def __init__(self, log, name):
        self.log, self.name = log, name

    def close(self):
        self.log.append(self.name)


def test_stages_that_were_open_are_closed_when_the_next_fails(export):
    spec = open_model(export()).spec
    spec = replace(spec, seams={**spec.seams, "mask_rois": ("rois", "labels"), "masks": ("masks",)})
    opened, closed = [], []

    def open_stage(stage: Stage):
        if stage.outputs == ("masks",):
            raise EngineError("no memory")
        opened.append(stage)
        return _Engine(closed, stage.outputs[0])

    with pytest.raises(EngineError, match="no memory"):
        Stages(open_stage, lambda _: (), spec, body_apart=True)
    assert [stage.inputs for stage in opened] == [(), tuple(spec.seams["features"])]
    assert len(closed) == 2
