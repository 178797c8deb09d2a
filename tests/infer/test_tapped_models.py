"""Taps of real networks: the same for a picture in any batch and on every path through the host, and those of the original programs."""

from __future__ import annotations

import json
from dataclasses import replace

import cv2
import numpy as np
import pytest
from click.testing import CliRunner
from model_cases import build_case
from shared_data import shared_path
from thin_models import THIN, ThinModel, export_thin

from roiline.cli import main
from roiline.core.structures import Detections
from roiline.engines.protocol import Device
from roiline.export.detectron.config import load_config
from roiline.export.detectron.source import architecture_from_config
from roiline.export.networks import write_network
from roiline.infer.feeds import split_batch
from roiline.infer.host_detection import HostPredictor
from roiline.infer.model import WholePredictor, open_predictor
from roiline.infer.preparation import prepare_picture, stack_batch
from roiline.infer.request import Companions, RunOverrides

MODEL = """
MODEL: {TYPE: generalized_rcnn, CONV_BODY: FPN.add_fpn_ResNet50_conv5_body, NUM_CLASSES: 5, FASTER_RCNN: True, MASK_ON: True}
FPN: {FPN_ON: True, MULTILEVEL_ROIS: True, MULTILEVEL_RPN: True}
FAST_RCNN: {ROI_BOX_HEAD: fast_rcnn_heads.add_roi_2mlp_head, ROI_XFORM_METHOD: RoIAlign, ROI_XFORM_RESOLUTION: 7}
MRCNN: {ROI_MASK_HEAD: mask_rcnn_heads.mask_rcnn_fcn_head_v1up, ROI_XFORM_METHOD: RoIAlign, RESOLUTION: 14, ROI_XFORM_RESOLUTION: 7}
TEST: {RPN_PRE_NMS_TOP_N: 60, RPN_POST_NMS_TOP_N: 20, SCORE_THRESH: 0.1, NMS: 0.5, SCALE: 96, MAX_SIZE: 160, DETECTIONS_PER_IM: 9}
"""
BODY = ("res4_5_sum", "fpn_inner_res4_5_sum", "fpn_res3_3_sum", "rpn_cls_probs_fpn2")
BOXES = ("rois", "fc6", "cls_prob")
MASKS = ("mask_rois", "mask_classes", "_[mask]_roi_feat", "conv5_mask", "masks")
TAPS = (*BOXES, *BODY, *MASKS)
AUGMENTED = {"TEST.MASK_AUG.ENABLED": "True", "TEST.MASK_AUG.H_FLIP": "True"}
TOLERANCE = 2e-4
"""Of a blob's largest value: the original's own kernels sum in another order."""


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> ThinModel:
    return export_thin(MODEL, tmp_path_factory.mktemp("tapped"), taps=TAPS)


@pytest.fixture(scope="module")
def pictures():
    random = np.random.default_rng(8)
    return [random.integers(0, 256, size, np.uint8) for size in ((90, 120, 3), (120, 90, 3), (70, 120, 3))]


def open_model(path, **options):
    return open_predictor(path, "detections", Device(threads=1), **options)


def make_batch(predictor, pictures):
    prepared = [prepare_picture(picture, predictor.spec.images) for picture in pictures]
    return replace(stack_batch(prepared, range(len(pictures)), padded=True), pictures=tuple(pictures))


def assert_same_taps(one, other, names=TAPS):
    for name in names:
        assert one[name].dtype == other[name].dtype
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


@pytest.mark.parametrize("overrides", [RunOverrides(), RunOverrides(max_dets=4)], ids=["whole", "host"])
def test_a_picture_has_the_taps_of_a_run_over_it_alone(model, pictures, overrides):
    predictor = open_model(model.path, overrides=overrides)
    assert isinstance(predictor, WholePredictor if overrides.max_dets is None else HostPredictor)
    batch = make_batch(predictor, pictures)
    together = predictor.run(batch)
    for single, answer in zip(split_batch(batch), together, strict=True):
        assert tuple(answer.taps) == TAPS
        (alone,) = predictor.run(single)
        assert_same_taps(alone.taps, answer.taps)
        height, width = single.pixels.shape[2:]
        assert answer.taps["rpn_cls_probs_fpn2"].shape == (1, 3, height // 4, width // 4)
        assert len(answer.taps["fc6"]) == len(answer.taps["rois"])
        assert (answer.taps["rois"][:, 0] == 0).all()
        assert {len(answer.taps[name]) for name in MASKS} == {len(answer.scores)}
    assert len({answer.taps["rpn_cls_probs_fpn2"].tobytes() for answer in together}) == len(pictures)


def test_a_run_over_one_picture_gives_the_graphs_own_tensors(model, pictures):
    predictor = open_model(model.path)
    batch = make_batch(predictor, pictures[:1])
    (answer,) = predictor.run(batch)
    feeds = {"data": batch.pixels, "im_info": batch.im_info, "im_size": batch.sizes}
    assert_same_taps(answer.taps, model.run(feeds))


def test_the_host_taps_heads_on_its_own_detections(model, pictures):
    whole, host = open_model(model.path), open_model(model.path, overrides=RunOverrides(max_dets=4))
    batch = make_batch(whole, pictures[:1])
    (full,), (few,) = whole.run(batch), host.run(batch)
    assert len(few.scores) == 4 < len(full.scores)
    assert_same_taps(full.taps, few.taps, (*BODY, *BOXES))
    np.testing.assert_allclose(few.taps["mask_rois"][:, 1:], few.boxes * batch.im_info[0, 2], atol=1e-3)
    np.testing.assert_array_equal(few.taps["mask_classes"], few.classes)


def test_nothing_found_taps_heads_without_rows(model, pictures):
    for threshold in (None, 1.0):
        overrides = RunOverrides(score_thresh=threshold, max_dets=3)
        predictor = open_model(model.path, overrides=overrides)
        (answer,) = predictor.run(make_batch(predictor, pictures[:1]))
        assert {len(answer.taps[name]) for name in MASKS} == {len(answer.scores)} == {3 if threshold is None else 0}
        assert answer.taps["masks"].shape[1:] == (14, 14)
        assert answer.taps["rpn_cls_probs_fpn2"].size


def test_augmentation_leaves_the_taps_those_of_the_picture(model, pictures, tmp_path):
    """The body is a stage of its own here, and so are the boxes; what is tapped comes from each of them."""
    augmented = export_thin(MODEL, tmp_path, taps=TAPS, overrides=THIN | AUGMENTED)
    one, other = open_model(model.path), open_model(augmented.path)
    batch = make_batch(one, pictures[:1])
    (plain,), (joined,) = one.run(batch), other.run(batch)
    assert "body" in other.description["stages"]
    assert plain.masks != joined.masks
    assert tuple(joined.taps) == TAPS
    for name in TAPS:
        np.testing.assert_allclose(joined.taps[name], plain.taps[name], atol=1e-4, err_msg=name)


def test_proposals_of_a_detector_have_its_taps(model, pictures):
    predictor = open_predictor(model.path, "proposals", Device(threads=1))
    (answer,) = predictor.run(make_batch(predictor, pictures[:1]))
    (found,) = open_model(model.path).run(make_batch(predictor, pictures[:1]))
    assert tuple(answer.taps) == TAPS
    assert_same_taps(answer.taps, found.taps)


def test_models_that_work_together_give_the_taps_of_all(model, pictures, tmp_path):
    other = export_thin(MODEL, tmp_path, taps=["fc7"])
    predictor = open_model(model.path, companions=Companions(others=(other.path,)))
    answers = predictor.run(make_batch(predictor, pictures))
    for answer in answers:
        assert isinstance(answer, Detections)
        assert tuple(answer.taps) == (*TAPS, "fc7")


def test_the_model_that_makes_the_proposals_gives_its_taps(model, pictures, tmp_path):
    fast = export_thin(MODEL.replace("FASTER_RCNN: True", "FASTER_RCNN: False"), tmp_path, taps=["fc7"])
    predictor = open_model(fast.path, companions=Companions(proposals_from=model.path))
    for answer in predictor.run(make_batch(predictor, pictures)):
        assert tuple(answer.taps) == (*TAPS, "fc7")
        assert len(answer.taps["fc7"]) <= len(answer.taps["rois"])


def test_a_picture_without_given_proposals_was_not_run_and_has_no_taps(pictures, tmp_path):
    fast = export_thin(MODEL.replace("FASTER_RCNN: True", "FASTER_RCNN: False"), tmp_path, taps=["fc7"])
    for overrides in (RunOverrides(), RunOverrides(max_dets=3)):
        predictor = open_model(fast.path, overrides=overrides)
        boxes = (np.array([[5, 5, 60, 60]], np.float32), np.zeros((0, 4), np.float32))
        batch = replace(make_batch(predictor, pictures[:2]), proposals=boxes)
        first, second = predictor.run(batch)
        assert tuple(first.taps) == ("fc7",)
        assert second.taps == {}


# -- the original's blobs, through the commands ------------------------------------------------------------------------------------


def run(*arguments: object) -> None:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output


def _detect(case, folder, *options):
    """Exports a case with every blob tapped that the original's record has too, and runs it over its picture."""
    config = load_config(case.cfg, case.overrides)
    blobs = write_network(architecture_from_config(config, proposals_only=False), {}).graph.blobs
    taps = [name for name in map(str, case.expected["stat_names"]) if name in blobs]
    taps += [key[5:] for key in case.expected if key.startswith("blob/") and key[5:] in blobs and key[5:] not in taps]
    (folder / "pictures").mkdir()
    (folder / "pictures" / "one.png").write_bytes(cv2.imencode(".png", cv2.imread(str(case.picture)))[1].tobytes())
    model = folder / "model.onnx"
    sets = [part for pair in case.overrides for part in ("--set", *pair)]
    tapped = [part for tap in taps for part in ("--tap", tap)]
    run("export", "detectron", "--cfg", case.cfg, "--weights", case.weights, *sets, *tapped, "-o", model)
    out = folder / "out"
    command = "proposals" if "proposal_boxes" in case.expected else "detect"
    run(command, model, folder / "pictures", "-o", out, "--cpu-workers", 1, *options)
    (path,) = (out / "taps").iterdir()
    with np.load(path) as stored:
        assert stored.files == taps
        return {name: stored[name] for name in taps}


def _as_recorded(name, blob, shape):
    """Returns a blob in the form of the original's record: scores of a level's proposals are (R, 1) there, masks the first few."""
    if name.startswith("rpn_roi_probs_fpn"):
        return blob.reshape(-1, 1)
    return blob[: shape[0]] if name == "mask_fcn_probs" else blob


def _compare(case, got) -> tuple[int, int]:
    """Compares whole blobs, and samples of the others; returns how many of each."""
    expected = {key[5:]: blob for key, blob in case.expected.items() if key.startswith("blob/")}
    whole = [name for name in got if name in expected]
    for name in whole:
        blob = _as_recorded(name, got[name], expected[name].shape)
        assert blob.shape == expected[name].shape, name
        largest = np.abs(expected[name]).max(initial=1e-3)
        np.testing.assert_allclose(blob, expected[name], atol=TOLERANCE * largest, rtol=0, err_msg=name)
    recorded = zip(*(case.expected[f"stat_{part}"] for part in ("names", "samples", "values")), strict=True)
    sampled = 0
    for name, samples, (size, _, _, largest) in recorded:
        if str(name) not in got or str(name) in expected:
            continue
        flat = got[str(name)].reshape(-1)
        assert flat.size == size, name
        chosen = flat[np.linspace(0, flat.size - 1, min(64, flat.size)).astype(np.int64)]
        assert np.abs(chosen - samples[: len(chosen)]).max(initial=0.0) <= TOLERANCE * max(largest, 1e-3), name
        sampled += 1
    return len(whole), sampled


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("faster_R50_FPN_tiny", (19, 82)),
        pytest.param("rpn_R50_FPN_small", (14, 80), marks=pytest.mark.golden),
        pytest.param("faster_R50_C4_small", (6, 58), marks=pytest.mark.golden),
        pytest.param("mask_R50_FPN_small", (11, 99), marks=pytest.mark.golden),
        pytest.param("retinanet_R50_FPN_small", (7, 115), marks=pytest.mark.golden),
    ],
)
def test_taps_of_a_run_are_the_originals_blobs(name, counts, tmp_path):
    case = build_case(shared_path(f"golden/e2e/{name}.json"), tmp_path)
    assert _compare(case, _detect(case, tmp_path)) == counts


@pytest.mark.golden
def test_taps_on_the_host_are_the_originals_blobs(tmp_path):
    """Another limit of detections than the model's own, so that the host takes part; blobs of RoIs and before know nothing of it."""
    case = build_case(shared_path("golden/e2e/faster_R50_FPN_small.json"), tmp_path)
    assert _compare(case, _detect(case, tmp_path, "--max-dets", 7)) == (18, 83)
    assert json.loads((tmp_path / "out" / "run.json").read_text())["settings"]["overrides"]["max_dets"] == 7
