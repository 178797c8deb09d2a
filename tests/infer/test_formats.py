from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shared_data import shared_path

from roiline.core.errors import DataError
from roiline.core.structures import Detections, Proposals, Result
from roiline.infer.detection_table import DetectionTable
from roiline.infer.formats import (
    result_names,
    write_coco_boxes,
    write_coco_keypoints,
    write_coco_masks,
    write_detection_pickle,
    write_proposal_pickle,
)
from roiline.infer.merge import FailedImage, MergedResults
from roiline.infer.shards import Failure, ShardFile, shard_path, write_shard


def in_shards(folder: Path, task: Any, results: list[Result | Failure], *, size: int = 5) -> MergedResults:
    """The results, written to shards in a mixed order and opened again."""
    order = np.random.default_rng(3).permutation(len(results)).tolist()
    shards = []
    for index in range(0, len(order), size):
        path = shard_path(folder, index)
        part = [(position, results[position]) for position in order[index : index + size]]
        write_shard(path, identity="i", index=index, task=task, results=part)
        shards.append(ShardFile(path))
    return MergedResults([(0, shards)], images=len(results))


def load(path: Path, encoding: str = "ASCII") -> Any:
    with path.open("rb") as stream:
        return pickle.load(stream, encoding=encoding)


def detections_of(golden: Any, ids: list[int]) -> list[Result | Failure]:
    """Detectron's nested lists as one result an image, its rows in class order; an image that was skipped has empty lists."""
    results: list[Result | Failure] = []
    classes = range(1, len(golden["all_boxes"]))
    for place, image_id in enumerate(ids):
        cells = [np.reshape(golden["all_boxes"][c][place], (-1, 5)).astype(np.float32) for c in classes]
        rows = np.concatenate(cells)
        labels = np.concatenate([np.full(len(cell), c, np.int64) for c, cell in zip(classes, cells, strict=True)])
        masks = [mask for c in classes for mask in golden["all_segms"][c][place]]
        points = [one for c in classes for one in golden["all_keyps"][c][place]]
        result = Detections(image_id, rows[:, :4], rows[:, 4], labels)
        if masks:
            counts = tuple(mask["counts"] for mask in masks)
            result = replace(result, masks=counts, size_hw=tuple(masks[0]["size"]))
        results.append(replace(result, keypoints=np.stack(points)) if points else result)
    return results


def assert_same_cells(got: Any, expected: Any) -> None:
    """Both are pickles of detections; class 0 is empty for each image in ours, whatever the original has there."""
    images = len(expected["all_boxes"][1])
    for key in ("all_boxes", "all_segms", "all_keyps"):
        assert type(got[key]) is list
        assert got[key][0] == [[]] * images
        for mine, theirs in zip(got[key][1:], expected[key][1:], strict=True):
            for cell, other in zip(mine, theirs, strict=True):
                assert_equal(cell, np.zeros((0, 5), np.float32) if key == "all_boxes" and len(other) == 0 else other)


def assert_equal(mine: Any, theirs: Any) -> None:
    if isinstance(theirs, np.ndarray):
        assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape)
        assert np.array_equal(mine, theirs)
    elif isinstance(theirs, list):
        assert type(mine) is list
        for one, other in zip(mine, theirs, strict=True):
            assert_equal(one, other)
    else:
        assert mine == theirs
        assert [type(value) for value in mine.values()] == [type(value) for value in theirs.values()]
        assert list(mine) == list(theirs)


CASES = {
    "mask": "coco_cc12",
    "mask_3way": "coco_cc12",
    "mask_thresh": "coco_cc12",
    "mask_catshuffled": "coco_cc12_catshuffled",
    "fast": "coco_cc12",
    "synth/box": "coco_cc12",
    "synth/catshuffled": "coco_cc12_catshuffled",
    "synth/kps": "keypoints_coco_cc2",
}
"""Folder of golden results -> dataset."""


@pytest.mark.parametrize("run", CASES)
@pytest.mark.parametrize("encoding", ["ASCII", "latin1"])
def test_detections_of_the_original_come_out_as_its_own_files(tmp_path: Path, run: str, encoding: str) -> None:
    golden = shared_path(f"golden/dataset/{run}")
    expected = load(golden / "detections.pkl")
    dataset = json.loads(shared_path(f"golden/dataset/{CASES[run]}.json").read_text())
    ids = sorted(image["id"] for image in dataset["images"])
    count = len(dataset["categories"]) + 1
    categories = [category["id"] for category in dataset["categories"]]
    results = in_shards(tmp_path, "detections", detections_of(expected, ids))
    with DetectionTable(results, num_classes=count, order=list(range(count)), folder=tmp_path) as table:
        write_detection_pickle(tmp_path / "detections.pkl", table, config_yaml=expected["cfg"])
        write_coco_boxes(tmp_path / "bbox.json", table, category_ids=categories, plus_one=True)
        write_coco_masks(tmp_path / "segmentations.json", table, category_ids=categories)
    got = load(tmp_path / "detections.pkl", encoding)
    assert list(got) == list(expected)
    assert got["cfg"] == expected["cfg"]
    assert_same_cells(got, expected)
    for kind in ("bbox", "segmentations"):
        for file in golden.glob(f"{kind}_*_results.json"):
            assert (tmp_path / f"{kind}.json").read_bytes() == file.read_bytes()


@pytest.mark.parametrize("confidence", ["bbox", "logit", "prob"])
def test_keypoints_of_the_original_come_out_as_its_own_file(tmp_path: Path, confidence: Any) -> None:
    golden = shared_path("golden/dataset/synth/kps")
    results = in_shards(tmp_path, "detections", detections_of(load(golden / "detections.pkl"), [785, 128372]))
    with DetectionTable(results, num_classes=2, order=[0, 1], folder=tmp_path) as table:
        write_coco_keypoints(tmp_path / "keypoints.json", table, category_ids=[1], confidence=confidence)
    (file,) = (golden / confidence).glob("keypoints_*_results.json")
    assert (tmp_path / "keypoints.json").read_bytes() == file.read_bytes()


def test_masks_and_keypoints_of_other_detections_keep_their_own_scores_and_classes(tmp_path: Path) -> None:
    boxes, classes = np.zeros((1, 4), np.float32), np.array([1])
    masks = Detections(5, np.zeros((2, 4), np.float32), np.float32([0.75, 0.25]), np.array([2, 1]), size_hw=(3, 4))
    points = Detections(5, np.zeros((1, 4), np.float32), np.float32([0.5]), np.array([2]))
    combined = Detections(
        5,
        boxes,
        np.float32([1.0]),
        classes,
        masks=(b"<", b"04"),
        keypoints=np.ones((1, 4, 2), np.float32),
        mask_rows=masks,
        keypoint_rows=points,
    )
    results = in_shards(tmp_path, "detections", [combined])
    with DetectionTable(results, num_classes=3, order=[0, 2, 1], folder=tmp_path) as table:
        write_coco_masks(tmp_path / "m.json", table, category_ids=[10, 20])
        write_coco_keypoints(tmp_path / "k.json", table, category_ids=[10, 20], confidence="bbox")
    assert json.loads((tmp_path / "m.json").read_text()) == [
        {"image_id": 5, "category_id": 10, "segmentation": {"size": [3, 4], "counts": "<"}, "score": 0.75},
        {"image_id": 5, "category_id": 20, "segmentation": {"size": [3, 4], "counts": "04"}, "score": 0.25},
    ]
    assert json.loads((tmp_path / "k.json").read_text()) == [
        {"image_id": 5, "category_id": 10, "keypoints": [1.0, 1.0, 1, 1.0, 1.0, 1], "score": 0.5}
    ]


def test_proposals_of_the_original_come_out_as_its_own_file(tmp_path: Path) -> None:
    expected = load(shared_path("golden/dataset/rpn/rpn_proposals.pkl"))
    rows = zip(expected["ids"], expected["boxes"], expected["scores"], strict=True)
    results = in_shards(tmp_path, "proposals", [Proposals(*row) for row in rows])
    write_proposal_pickle(tmp_path / "rpn_proposals.pkl", results, config_yaml=expected["cfg"])
    got = load(tmp_path / "rpn_proposals.pkl")
    assert list(got) == list(expected)
    assert got["ids"] == expected["ids"]
    assert got["cfg"] == expected["cfg"]
    for key in ("boxes", "scores"):
        for mine, theirs in zip(got[key], expected[key], strict=True):
            assert mine.dtype == theirs.dtype
            assert np.array_equal(mine, theirs)


def test_classes_of_the_model_become_those_of_the_dataset(tmp_path: Path) -> None:
    boxes = np.arange(16, dtype=np.float32).reshape(4, 4)
    rows = Detections(1, boxes, np.float32([0.4, 0.3, 0.2, 0.1]), np.array([2, 1, 2, 3]))
    results = in_shards(tmp_path, "detections", [rows])
    with DetectionTable(results, num_classes=4, order=[0, 3, 1, 2], folder=tmp_path) as table:
        cells = [[cell.tolist() for cell in table.box_cells(c)] for c in (1, 2, 3)]
        write_coco_boxes(tmp_path / "bbox.json", table, category_ids=[11, 12, 13], plus_one=False)
    assert [[row[4] for row in cell] for (cell,) in cells] == [
        [pytest.approx(0.4), pytest.approx(0.2)],
        [pytest.approx(0.1)],
        [pytest.approx(0.3)],
    ]
    records = json.loads((tmp_path / "bbox.json").read_text())
    assert [(record["category_id"], record["bbox"]) for record in records] == [
        (11, [0.0, 1.0, 2.0, 2.0]),
        (11, [8.0, 9.0, 2.0, 2.0]),
        (12, [12.0, 13.0, 2.0, 2.0]),
        (13, [4.0, 5.0, 2.0, 2.0]),
    ]


def test_an_image_that_failed_has_empty_results(tmp_path: Path) -> None:
    results = in_shards(tmp_path, "detections", [Failure("b", "broken"), Failure("c", "gone")])
    assert results.failed == (FailedImage("b", "broken"), FailedImage("c", "gone"))
    with DetectionTable(results, num_classes=3, order=[0, 1, 2], folder=tmp_path) as table:
        write_detection_pickle(tmp_path / "d.pkl", table, config_yaml="")
        write_coco_boxes(tmp_path / "bbox.json", table, category_ids=[1, 2], plus_one=True)
    cells = load(tmp_path / "d.pkl")["all_boxes"]
    assert cells[0] == [[], []]
    assert [cell.shape for images in cells[1:] for cell in images] == [(0, 5)] * 4
    assert (tmp_path / "bbox.json").read_bytes() == b"[]"
    assert not list(tmp_path.glob(".rows*"))


def test_a_class_that_the_model_does_not_have_is_refused(tmp_path: Path) -> None:
    rows = Detections(9, np.zeros((1, 4), np.float32), np.zeros(1, np.float32), np.array([3]))
    results = in_shards(tmp_path, "detections", [rows])
    with pytest.raises(DataError, match=r"image 9: a class outside 1\.\.2"):
        DetectionTable(results, num_classes=3, order=[0, 1, 2], folder=tmp_path)


def test_images_that_are_missing_or_there_twice_are_refused(tmp_path: Path) -> None:
    path = shard_path(tmp_path, 0)
    write_shard(path, identity="i", index=0, task="proposals", results=[(0, Failure(5, "x")), (1, Failure(6, "x"))])
    shard = ShardFile(path)
    with pytest.raises(DataError, match=r"1 of 3 images have no result yet \(the first is at position 2"):
        MergedResults([(0, [shard])], images=3)
    with pytest.raises(DataError, match="there twice"):
        MergedResults([(0, [shard, shard])], images=2)
    with pytest.raises(DataError, match="beyond the end"):
        MergedResults([(1, [shard])], images=2)


@pytest.mark.parametrize(
    ("task", "form", "named", "names"),
    [
        ("proposals", "detectron", None, ["rpn_proposals.pkl"]),
        ("proposals", "detectron", (0, 4), ["rpn_proposals_range_0_4.pkl"]),
        ("detections", "detectron", None, ["detections.pkl"]),
        ("detections", "detectron", (8, 12), ["detection_range_8_12.pkl"]),
        ("detections", "coco", (8, 12), ["bbox_results.json", "segmentations_results.json", "keypoints_results.json"]),
    ],
)
def test_file_names(task: Any, form: str, named: tuple[int, int] | None, names: list[str]) -> None:
    assert list(result_names(task, form, named, ("masks", "keypoints"))) == names
    assert list(result_names(task, form, named)) == names[:1]


def test_ids_of_the_shards_must_be_those_of_the_dataset(tmp_path: Path) -> None:
    none = np.zeros((0, 4), np.float32), np.zeros(0, np.float32)
    results = in_shards(tmp_path, "proposals", [Proposals(image_id, *none) for image_id in (3, 5, 8)])
    parts = [(0, results._shards)]
    assert MergedResults(parts, images=3, image_ids=[3, 5, 8]).image_ids == [3, 5, 8]
    with pytest.raises(DataError, match="position 1: the shards have image 5, the dataset has 6"):
        MergedResults(parts, images=3, image_ids=[3, 6, 8])
