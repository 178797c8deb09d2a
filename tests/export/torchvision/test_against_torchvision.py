"""Every model of torchvision's through its export, against the installed torchvision itself, eager on the CPU.

Seeds are such that torchvision's own answers stay the same under relative noise of 1e-6 on its weights; that is asserted here, so a seed
that another version of torchvision answers less clearly fails as a case and not as an export.
"""

from __future__ import annotations

from itertools import compress

import cv2
import numpy as np
import pytest
from shared_data import shared_path

from roiline.core.rle import decode_rle
from roiline.engines.protocol import Device
from roiline.export.torchvision.exporter import export_torchvision
from roiline.export.torchvision.options import MODELS as MODELS_BY_NAME
from roiline.infer.model import open_predictor
from roiline.infer.preparation import prepare_picture, stack_batch

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch", reason="torchvision is the judge")
pytest.importorskip("torchvision", reason="torchvision is the judge")

import torchvision_cases as cases  # noqa: E402  # it imports torch

TWO_STAGE = {"rpn_pre_nms_top_n_test": 100, "rpn_post_nms_top_n_test": 100, "box_detections_per_img": 24}
ONE_STAGE = {"detections_per_img": 24}
MODELS = (*MODELS_BY_NAME, *cases.BODIES)
SEEDS = {"maskrcnn_resnet50_fpn_v2": 1}  # of the others 0: with it a mask's box ends within noise of a whole pixel


@pytest.fixture(scope="module")
def pictures():
    folder = shared_path("data/coco-cc/native/images")
    return [cv2.imread(str(path)) for path in sorted(folder.glob("*.jpg"))]


@pytest.mark.parametrize("arch", MODELS)
def test_detections_are_torchvisions(arch, pictures, tmp_path):
    classes = 2 if arch.startswith("keypoint") else 21
    arguments = {"min_size": 320, "num_classes": classes, **(ONE_STAGE if arch.startswith("retina") else TWO_STAGE)}
    model = cases.build_model(arch, pictures, seed=SEEDS.get(arch, 0), **arguments)
    cfg, out = tmp_path / "options.yaml", tmp_path / "model.onnx"
    cfg.write_text("".join(f"{name}: {value}\n" for name, value in arguments.items()))
    named = "fasterrcnn_resnet50_fpn" if arch in cases.BODIES else arch
    export_torchvision(named, cases.save_state(model, tmp_path / "weights.pth"), out, cfg=cfg)
    expected = [cases.answer(model, picture) for picture in pictures]
    cases.disturb_weights(model)
    predictor = open_predictor(out, "detections", Device("cpu", threads=2))
    clear = [_is_clear(want, cases.answer(model, picture)) for picture, want in zip(pictures, expected, strict=True)]
    assert sum(clear) * 2 >= len(clear), "noise of 1e-6 turns the answers of most pictures: take another seed"
    for picture, want in compress(zip(pictures, expected, strict=True), clear):
        batch = stack_batch([prepare_picture(picture, predictor.spec.images)], [0])
        (got,) = predictor.run(batch)
        np.testing.assert_array_equal(got.classes, want.labels)
        np.testing.assert_allclose(got.boxes, want.boxes, atol=0.05, rtol=0)
        np.testing.assert_allclose(got.scores, want.scores, atol=1e-4, rtol=0)
        assert (got.masks is None, got.keypoints is None) == (want.masks is None, want.keypoints is None)
        if want.masks is not None:
            _compare_masks(got.masks, want.masks)
        if want.keypoints is not None:
            _compare_keypoints(got.keypoints, want)
    predictor.close()


def _is_clear(want: cases.EagerAnswer, disturbed: cases.EagerAnswer) -> bool:
    """Says whether noise leaves an answer as it is; where it does not, torchvision itself answers otherwise on another processor."""
    assert len(want.labels) >= 20
    if not np.array_equal(disturbed.labels, want.labels) or np.abs(disturbed.boxes - want.boxes).max() > 0.05:
        return False
    return want.masks is None or min(_overlaps(disturbed.masks > 0.5, want.masks > 0.5)) > 0.99


def _compare_masks(counts: tuple[bytes, ...], probabilities: np.ndarray) -> None:
    height, width = probabilities.shape[1:]
    masks = np.stack([decode_rle(encoded, height, width) for encoded in counts]).astype(bool)
    assert min(_overlaps(masks, probabilities > 0.5)) > 0.99


def _overlaps(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Returns the intersection over union of each pair of masks (D, H, W), 1 where both are empty."""
    union = (first | second).sum(axis=(1, 2))
    return np.where(union, (first & second).sum(axis=(1, 2)) / np.maximum(union, 1), 1.0)


def _compare_keypoints(keypoints: np.ndarray, want: cases.EagerAnswer) -> None:
    """Compares points (D, 4, J); where two cells of a heatmap are as high as each other, either may be the peak."""
    distance = np.abs(keypoints[:, :2].transpose(0, 2, 1) - want.keypoints[..., :2]).max(axis=2)
    assert (distance < 0.05).mean() > 0.98
    np.testing.assert_allclose(keypoints[:, 2], want.keypoint_scores, atol=2e-3, rtol=0)
