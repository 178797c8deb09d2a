from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from roiline.core.errors import DataError
from roiline.core.rle import compress_runs
from roiline.infer.datasets import load_dataset
from roiline.infer.roidb import Dataset
from roiline.report.ground_truth import GroundTruth, read_ground_truth

TRIANGLE = [1, 1, 9, 1, 9, 9]


def truth_of(tmp_path: Path, dataset: Dataset, **change: Any) -> GroundTruth:
    """The ground truth of the dataset with `change` in its first annotation, of a picture of 60 x 80 pixels."""
    assert dataset.annotation_file is not None
    content = json.loads(dataset.annotation_file.read_text())
    content["annotations"][0].update(change)
    file = tmp_path / "changed.json"
    file.write_text(json.dumps(content))
    changed = load_dataset(file, images=dataset.root)
    return read_ground_truth(changed, changed.entries, parts=("masks", "keypoints"))


def test_records_have_numbers_for_ids_and_ranks_for_classes(tmp_path: Path, dataset: Dataset) -> None:
    truth = truth_of(tmp_path, dataset)
    assert truth.ranks == {1: 2, 2: 1}
    assert [record["id"] for record in truth.records] == [1, 2, 3, 4]
    assert [record["image_id"] for record in truth.records] == [1, 1, 2, 2]
    assert [record["category_id"] for record in truth.records] == [2, 1, 2, 1]
    assert (truth.masks, truth.joints) == (0, None)


def compressed(*runs: int) -> dict[str, Any]:
    return {"size": [60, 80], "counts": compress_runs(np.array(runs, np.int64)).decode()}


@pytest.mark.parametrize(
    "mask",
    [
        [TRIANGLE],
        [TRIANGLE, [1.5, 2, 3, 4]],
        {"size": [60, 80], "counts": [100, 20, 4680]},
        compressed(100, 20, 4680),
    ],
)
def test_masks_of_every_form(tmp_path: Path, dataset: Dataset, mask: Any) -> None:
    assert truth_of(tmp_path, dataset, segmentation=mask).masks == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"segmentation": [[1, 2, 3, 4]]}, "fewer than three corners"),
        ({"segmentation": [TRIANGLE[:5]]}, "polygons to be lists of numbers"),
        ({"segmentation": [["a", 1] * 3]}, "polygons to be lists of numbers"),
        ({"segmentation": "x"}, "expected a mask of 60 x 80 pixels .*, got str"),
        ({"segmentation": {"size": [80, 60], "counts": [4800]}}, r"expected a mask of 60 x 80 .*, got \[80, 60\]"),
        ({"segmentation": {"size": [60, 80], "counts": [4799]}}, "add up to 4799, expected 4800"),
        ({"segmentation": {"size": [60, 80], "counts": [-1, 4801]}}, "expected run lengths"),
        ({"segmentation": compressed(10)}, "add up to 10, expected 4800"),
        ({"segmentation": {"size": [60, 80], "counts": "\x00"}}, "is not COCO's compressed form"),
        ({"segmentation": [[1, 1, float("nan"), 1, 9, 9]]}, "polygons to be lists of numbers"),
        ({"segmentation": [[1, 1, 10**400, 1, 9, 9]]}, "polygons to be lists of numbers"),
        ({"segmentation": [[1, 1, 1e7, 1, 9, 9]]}, r"within its picture of 80 x 60 .* to \[10000000.0, 9.0\]"),
        ({"segmentation": [[1, 1, 9, -61, 9, 9]]}, "expected a polygon within its picture"),
        ({"segmentation": [[-80, 0, 160, 0] * 10_000]}, "the outline of its polygon is 4800000 pixels long"),
        ({"segmentation": {"size": [60, 80], "counts": [10**400]}}, "add up to"),
        ({"iscrowd": "abc"}, "neither 0 nor 1"),
        ({"iscrowd": None}, "neither 0 nor 1"),
        ({"keypoints": [1, 2, 1], "num_keypoints": "x"}, "num_keypoints to be a number of keypoints, got 'x'"),
        ({"keypoints": [1, 2, float("nan")]}, "keypoints to be numbers"),
        ({"keypoints": [1, 2]}, "keypoints to be numbers"),
        ({"keypoints": [1, 2, "v"]}, "keypoints to be numbers"),
        ({"bbox": [1, 2, 3, "x"]}, "four numbers|4 numbers"),
    ],
)
def test_faults_are_named_with_their_annotation(
    tmp_path: Path, dataset: Dataset, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=message) as caught:
        truth_of(tmp_path, dataset, **change)
    assert "changed.json" in str(caught.value)
    assert "annotation 0" in str(caught.value) or "annotations[0]" in str(caught.value)


def test_faults_of_masks_are_nothing_to_who_scores_boxes(tmp_path: Path, dataset: Dataset) -> None:
    with pytest.raises(DataError):
        truth_of(tmp_path, dataset, segmentation="x")
    changed = load_dataset(tmp_path / "changed.json", images=dataset.root)
    assert len(read_ground_truth(changed, changed.entries).records) == 4


def test_visible_keypoints_are_counted_where_the_file_does_not(tmp_path: Path, dataset: Dataset) -> None:
    truth = truth_of(tmp_path, dataset, keypoints=[1, 2, 2, 3, 4, 0, 5, 6, 1])
    assert truth.joints == 3
    assert truth.records[0]["num_keypoints"] == 2
    assert truth_of(tmp_path, dataset, keypoints=[1, 2, 2], num_keypoints=0).records[0]["num_keypoints"] == 0


def test_annotations_may_write_the_ids_of_images_as_text(tmp_path: Path, dataset: Dataset) -> None:
    """As the dataset's reader has it, which notes the other type and goes on."""
    assert dataset.annotation_file is not None
    content = json.loads(dataset.annotation_file.read_text())
    first = content["annotations"][0]["image_id"]
    truth = truth_of(tmp_path, dataset, image_id=str(first))
    assert [record["image_id"] for record in truth.records] == [1, 1, 2, 2]
