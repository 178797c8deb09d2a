"""A classifier over a dataset: its own resize rule, the pool, resuming, joining, and scores equal to a forward pass in numpy."""

from __future__ import annotations

import json

import cv2
import numpy as np
import pytest
from click.testing import CliRunner
from run_support import write_pictures
from thin_models import export_thin

import roiline
from roiline.cli import main
from roiline.core.errors import EXIT_SOME_FAILED, UsageError

CLASSIFIER = """
MODEL: {TYPE: generalized_rcnn, CONV_BODY: ResNet.add_ResNet50_conv5_body, NUM_CLASSES: 5, CLASSIFICATION: True}
CLASSIFICATION: {MLP_HEAD: classification_heads.add_Xmlp_head, MLP_HEADS_DIM: [24, 16]}
TEST: {SCALE: 96, MAX_SIZE: 64}
"""
MEANS = np.array([102.9801, 115.9465, 122.7717])
BLOCKS = {2: 3, 3: 4, 4: 6, 5: 3}
PICTURES = 6
LOST = 13


def _conv(x, blobs, layer, stride=1):
    """Convolves (C, H, W) without bias, 3 x 3 and 7 x 7 padded to keep the size, then the affine channel of the layer."""
    weight = blobs[f"{layer}_w"].astype(np.float64)
    size = weight.shape[2]
    norm = "res_conv1_bn" if layer == "conv1" else f"{layer}_bn"
    padded = np.pad(x, ((0, 0), (size // 2,) * 2, (size // 2,) * 2))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (size, size), (1, 2))[:, ::stride, ::stride]
    y = np.einsum("chwij,ocij->ohw", windows, weight, optimize=True)
    return y * blobs[f"{norm}_s"][:, None, None] + blobs[f"{norm}_b"][:, None, None]


def _forward(picture, blobs):
    """Returns the class probabilities of a BGR picture, from the definition of the fork's classifier."""
    x = cv2.resize((picture - MEANS).astype(np.float32), (96, 64), interpolation=cv2.INTER_LINEAR).transpose(2, 0, 1)
    x = np.maximum(_conv(x.astype(np.float64), blobs, "conv1", 2), 0)
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1)), constant_values=-np.inf)
    x = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (1, 2))[:, ::2, ::2].max(axis=(3, 4))
    for stage, count in BLOCKS.items():
        for block in range(count):
            name, stride = f"res{stage}_{block}", 2 if stage > 2 and block == 0 else 1
            y = np.maximum(_conv(x, blobs, f"{name}_branch2a", stride), 0)
            y = np.maximum(_conv(y, blobs, f"{name}_branch2b"), 0)
            y = _conv(y, blobs, f"{name}_branch2c")
            x = np.maximum(y + (_conv(x, blobs, f"{name}_branch1", stride) if block == 0 else x), 0)
    x = x.mean(axis=(1, 2))
    for layer in ("fc6", "fc7"):
        x = np.maximum(blobs[f"{layer}_w"] @ x + blobs[f"{layer}_b"], 0)
    logits = blobs["logits_w"] @ x + blobs["logits_b"]
    powers = np.exp(logits - logits.max())
    return powers / powers.sum()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return export_thin(CLASSIFIER, tmp_path_factory.mktemp("classifier"))


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Six pictures of three shapes, one of which is not there."""
    path = write_pictures(tmp_path_factory.mktemp("pictures"), PICTURES)
    (path.parent / f"{LOST:06d}.png").unlink()
    return path


@pytest.fixture(scope="module")
def whole(model, pictures, tmp_path_factory):
    """The OUT folder of one run over all pictures by two workers."""
    out = tmp_path_factory.mktemp("whole")
    summary = roiline.run(model.path, pictures, out, images=[pictures.parent], cpu_workers=2)
    assert (summary.exit_code, summary.images, summary.failed) == (EXIT_SOME_FAILED, PICTURES, 1)
    assert [path.name for path in summary.files] == ["classifications.json"]
    return out


def _read(out):
    return json.loads((out / "classifications.json").read_text())


def test_scores_are_those_of_the_forward_pass(whole, model, pictures):
    content = _read(whole)
    assert content["format_version"] == 1
    assert content["classes"] == ["__background__", "class_1", "class_2", "class_3", "class_4"]
    assert [image["image_id"] for image in content["images"]] == [7, 10, LOST, 16, 19, 22]
    seen = []
    for image in content["images"]:
        if image["image_id"] == LOST:
            assert image == {"image_id": LOST, "best": None, "scores": []}
            continue
        expected = _forward(cv2.imread(str(pictures.parent / f"{image['image_id']:06d}.png")), model.blobs)
        np.testing.assert_allclose(image["scores"], expected, atol=1e-5)
        assert image["best"] == content["classes"][expected.argmax()]
        seen.append(expected)
    assert np.ptp(seen, axis=0).max() > 1e-4  # the pictures differ, and so do their scores


def test_a_finished_run_stays_as_it_is_and_ranges_join_to_the_same_bytes(whole, model, pictures, tmp_path):
    before = (whole / "classifications.json").read_bytes()
    for start, end in ((0, 3), (3, PICTURES)):
        roiline.run(model.path, pictures, tmp_path / f"{start}", images=[pictures.parent], id_range=(start, end))
    joined = CliRunner().invoke(main, ["merge", *(str(tmp_path / part) for part in "03"), "-o", str(tmp_path / "all")])
    assert joined.exit_code == EXIT_SOME_FAILED, joined.output
    assert (tmp_path / "all" / "classifications.json").read_bytes() == before
    (whole / "classifications.json").unlink()
    roiline.run(model.path, pictures, whole, images=[pictures.parent], batch_size=4)
    assert (whole / "classifications.json").read_bytes() == before


def test_one_picture_in_python(model, whole, pictures):
    picture = cv2.imread(str(pictures.parent / "000007.png"))
    with roiline.open(model.path) as opened:
        answer = opened.classify(picture)
        with pytest.raises(UsageError, match="this model makes classification, not detections"):
            opened.detect(picture)
    np.testing.assert_allclose(answer.scores, _read(whole)["images"][0]["scores"], atol=1e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"overrides": roiline.RunOverrides(score_thresh=0.5)},
            "makes classification; --score-thresh is for detections",
        ),
        ({"formats": ["coco"]}, "--format coco: classification can be written as json"),
        ({"proposals": ["p.pkl"]}, "given proposals, for detections only"),
        ({"class_names": ["a", "b"]}, "the model has 4 classes beside the background, 2 were named"),
    ],
)
def test_what_does_not_fit_a_classifier_is_refused(changes, message, model, pictures, tmp_path):
    with pytest.raises(UsageError, match=message):
        roiline.run(model.path, pictures, tmp_path, images=[pictures.parent], cpu_workers=1, **changes)


def test_a_dry_run_of_a_classifier(model, pictures, tmp_path):
    arguments = ["detect", model.path, pictures, "--images", pictures.parent, "-o", tmp_path / "out", "--dry-run"]
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    assert "files: classifications.json" in result.output
    assert not (tmp_path / "out").exists()
