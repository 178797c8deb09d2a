from __future__ import annotations

import numpy as np
import pytest

import roiline
from roiline.core.errors import UsageError
from roiline.infer.python_api import pair_sources


def test_one_picture_and_a_list(digits_model, digits_picture):
    with roiline.open(digits_model) as model:
        one = model.detect(digits_picture)
        first, second = model.detect([digits_picture, digits_picture[:, ::-1].copy()])
    assert len(one.scores)
    np.testing.assert_array_equal(first.boxes, one.boxes)
    assert not np.array_equal(first.scores, second.scores)


def test_proposals_of_a_detector(digits_model, digits_picture):
    with roiline.open(digits_model) as model:
        proposals = model.propose(digits_picture)
    assert (np.diff(proposals.scores) <= 0).all()
    assert proposals.boxes.shape == (len(proposals.scores), 4)


@pytest.mark.parametrize(
    "picture", [np.zeros((4, 4), np.uint8), np.zeros((4, 4, 4), np.uint8), np.zeros((4, 4, 3), np.float32), "a.jpg"]
)
def test_other_pictures_are_refused(digits_model, picture):
    with roiline.open(digits_model) as model, pytest.raises(UsageError, match="a picture is a BGR array"):
        model.detect([picture])


@pytest.mark.parametrize("device", ["gpu", "cuda:x", "", "cpu:"])
def test_other_devices_are_refused(digits_model, device):
    if device == "cpu:":
        roiline.open(digits_model, device=device).close()
        return
    with pytest.raises(UsageError, match="expected cpu"):
        roiline.open(digits_model, device=device)


def test_a_dataset_run(digits_model, digits, tmp_path):
    data, pictures = digits / "annotations.json", digits / "pictures"
    summary = roiline.run(digits_model, data, tmp_path, images=[pictures], cpu_workers=1, limit=3)
    assert (summary.exit_code, summary.images, summary.failed) == (0, 3, 0)
    assert (tmp_path / "bbox_results.json").exists()


def test_no_picture_is_said_so(digits_model):
    with roiline.open(digits_model) as model, pytest.raises(UsageError, match=r"cv2\.imread"):
        model.detect(None)


def test_options_are_paired_with_the_datasets_that_take_them():
    mixed = pair_sources(["voc", "a.json", "b.json"], ["pa", "pb"], ["test"])
    assert [(one.source, str(one.images), one.split) for one in mixed] == [
        ("voc", "None", "test"),
        ("a.json", "pa", None),
        ("b.json", "pb", None),
    ]
    assert [one.split for one in pair_sources(["a", "b"], [], ["x", "y"])] == ["x", "y"]
    with pytest.raises(UsageError, match="--images is given 2 times for 1"):
        pair_sources(["voc", "a.json"], ["pa", "pb"], [])
