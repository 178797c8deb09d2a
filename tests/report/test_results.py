from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from shared_data import shared_path

from roiline.core.errors import DataError
from roiline.infer.datasets import load_dataset
from roiline.infer.roidb import Dataset
from roiline.report.results import (
    DetectionResults,
    ProposalResults,
    find_result_files,
    read_result_file,
    read_results,
    split_by_image,
)

ROW = np.array([[1, 2, 11, 22, 0.5]], np.float32)
RECORD = {"image_id": 9, "category_id": 20, "bbox": [1, 2, 11, 21], "score": 0.5}


def write_pickle(path: Path, content: object) -> Path:
    path.write_bytes(pickle.dumps(content, protocol=2))
    return path


def write_json(path: Path, content: object) -> Path:
    path.write_text(json.dumps(content))
    return path


def read_detections(path: Path, dataset: Dataset) -> DetectionResults:
    results = read_result_file(path, dataset)
    assert isinstance(results, DetectionResults)
    return results


@pytest.mark.parametrize("background", [[], [[], [], []], [np.zeros((0, 5), np.float32)] * 3])
def test_class_major_pickles_in_every_form(tmp_path: Path, dataset: Dataset, background: object) -> None:
    cells = [background, [ROW, [], np.zeros((0, 5), np.float32)], [[], np.repeat(ROW, 2, axis=0), []]]
    found = read_detections(write_pickle(tmp_path / "x", {"all_boxes": cells, "all_segms": []}), dataset)
    assert found.images.tolist() == [0, 1, 1]
    assert found.classes.tolist() == [1, 2, 2]
    np.testing.assert_array_equal(found.boxes_xywh, [[1, 2, 11, 21]] * 3)
    assert found.scores.tolist() == [0.5] * 3


def test_coco_lists_become_classes_by_the_datasets_order(tmp_path: Path, dataset: Dataset) -> None:
    file = write_json(tmp_path / "any.name", [RECORD, {**RECORD, "image_id": 4, "category_id": 30, "score": 0.1}])
    found = read_detections(file, dataset)
    assert found.images.tolist() == [1, 0]
    assert found.classes.tolist() == [2, 1]
    assert found.scores.tolist() == [0.5, 0.1]


def test_detections_by_image_have_inclusive_corners(tmp_path: Path, dataset: Dataset) -> None:
    file = write_json(tmp_path / "r.json", [RECORD, {**RECORD, "image_id": 4}, {**RECORD, "score": 0.9}])
    first, second, third = split_by_image(read_detections(file, dataset))
    assert [first.image_id, second.image_id, third.image_id] == [4, 9, 12]
    np.testing.assert_array_equal(second.boxes, [[1, 2, 11, 22]] * 2)
    np.testing.assert_allclose(second.scores, [0.5, 0.9])
    assert [len(first.boxes), len(third.boxes)] == [1, 0]


def test_an_empty_list_is_a_run_without_detections(tmp_path: Path, dataset: Dataset) -> None:
    found = read_detections(write_json(tmp_path / "r.json", []), dataset)
    assert found.boxes_xywh.shape == (0, 4)
    assert [len(item.boxes) for item in split_by_image(found)] == [0, 0, 0]


def test_proposals_follow_the_entries(tmp_path: Path, dataset: Dataset) -> None:
    content = {"boxes": [ROW[:, :4] + i for i in range(3)], "scores": [ROW[:, 4]] * 3, "ids": [12, 4, 9]}
    results = read_result_file(write_pickle(tmp_path / "x", content), dataset)
    assert isinstance(results, ProposalResults)
    assert [item.boxes[0, 0] for item in results.proposals] == [2, 3, 1]


def test_range_files_cover_the_pictures_of_their_name(tmp_path: Path, dataset: Dataset) -> None:
    cells = {"all_boxes": [[[]], [ROW], [[]]]}
    file = write_pickle(tmp_path / "detection_range_1_2.pkl", cells)
    found = read_detections(file, dataset)
    assert [entry.image_id for entry in found.entries] == [9]
    part = load_dataset(str(dataset.annotation_file), images=dataset.root, id_range=(1, 3))
    assert [entry.image_id for entry in read_detections(file, part).entries] == [9]
    outside = write_pickle(tmp_path / "detection_range_2_4.pkl", cells)
    with pytest.raises(DataError, match=r"pictures 2 to 4 .* pictures 0 to 3 were loaded"):
        read_result_file(outside, dataset)


def test_folders_are_searched_by_dataset_name_first(tmp_path: Path, dataset: Dataset) -> None:
    out = tmp_path / "out"
    (out / "pets").mkdir(parents=True)
    write_json(out / "bbox_results.json", [])
    write_json(out / "pets" / "bbox_results.json", [])
    write_pickle(out / "pets" / "detections.pkl", {})
    write_pickle(out / "pets" / "rpn_proposals.pkl", {})
    assert find_result_files(out, "pets") == (out / "pets" / "bbox_results.json", out / "pets" / "rpn_proposals.pkl")
    assert find_result_files(out, "other") == (out / "bbox_results.json",)


def test_folders_without_one_clear_result_are_refused(tmp_path: Path, dataset: Dataset) -> None:
    with pytest.raises(DataError, match=r"no results in this folder.*roiline status"):
        read_results(tmp_path, dataset)
    for name in ("rpn_proposals_range_0_1.pkl", "rpn_proposals_range_1_3.pkl"):
        write_pickle(tmp_path / name, {})
    with pytest.raises(DataError, match=r"holds 2 range files .*roiline merge"):
        read_results(tmp_path, dataset)
    with pytest.raises(DataError, match="no such file or folder"):
        read_results(tmp_path / "absent", dataset)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([{**RECORD, "image_id": 5}], r"1 image_ids are not in dataset `pets`: 5; it has 4, 9, 12"),
        ([{**RECORD, "image_id": "9"}], r"1 image_ids are not in dataset `pets`: '9'"),
        ([{**RECORD, "category_id": 1}], r"1 category_ids are not in dataset `pets`: 1; it has 30, 20"),
        ([{**RECORD, "image_id": [9]}], r"image_ids are not in dataset"),
        ([RECORD, {**RECORD, "bbox": [1, 2, 3]}], "expected numbers in every `bbox`"),
        ([{**RECORD, "bbox": [1, 2, 3]}], r"expected \(4,\) finite numbers in every `bbox`"),
        ([{**RECORD, "score": float("nan")}], "finite numbers in every `score`"),
        ([{**RECORD, "score": "high"}], "expected numbers in every `score`"),
        (
            [{"image_id": 9, "category_id": 20, "segmentation": {}, "score": 0.5}],
            "item 0: expected .* got .*segmentation",
        ),
        ([7], "item 0: expected .* got int"),
        ({"images": [], "annotations": []}, "got a JSON object of annotations, images; this is no result file"),
    ],
)
def test_faults_of_coco_lists_are_named(tmp_path: Path, dataset: Dataset, content: object, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_result_file(write_json(tmp_path / "r.json", content), dataset)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"all_boxes": [[], [ROW] * 3]}, "holds 1 classes, but dataset `pets` has 2"),
        ({"all_boxes": [[], [ROW] * 3, [ROW] * 2]}, r"all_boxes\[2\] covers 2 pictures, but 3 of dataset `pets`"),
        ({"all_boxes": [[ROW], [ROW] * 3, [ROW] * 3]}, "is the background and must be empty"),
        (
            {"all_boxes": [[], [ROW[:, :4]] * 3, [ROW] * 3]},
            r"all_boxes\[1\]\[0\]: expected \(n, 5\) .* got shape \(1, 4\)",
        ),
        ({"all_boxes": [[], [ROW * np.nan] * 3, [ROW] * 3]}, "finite numbers"),
        ({"all_boxes": [[], ["x"] * 3, [ROW] * 3]}, "expected .* numbers, got str"),
        ({"all_boxes": 3}, "expected all_boxes to be a list of classes"),
        ({"blobs": {}}, "expected a pickle with all_boxes .* got blobs"),
        ([1], "got list"),
        ({"boxes": [], "scores": [], "ids": []}, "has no proposals for 3 of the dataset's 3 pictures"),
    ],
)
def test_faults_of_pickles_are_named(tmp_path: Path, dataset: Dataset, content: object, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_result_file(write_pickle(tmp_path / "r.pkl", content), dataset)


def test_damaged_files_are_named(tmp_path: Path, dataset: Dataset) -> None:
    whole = write_json(tmp_path / "r.json", [RECORD])
    whole.write_bytes(whole.read_bytes()[:-20])
    with pytest.raises(DataError, match="may be truncated"):
        read_result_file(whole, dataset)
    (tmp_path / "empty.json").write_bytes(b"")
    with pytest.raises(DataError, match="the file is empty"):
        read_result_file(tmp_path / "empty.json", dataset)
    (tmp_path / "deep.json").write_bytes(b"[" * 200_000)
    with pytest.raises(DataError, match="may be truncated"):
        read_result_file(tmp_path / "deep.json", dataset)
    pickled = write_pickle(tmp_path / "r.pkl", {"all_boxes": [[], [ROW] * 3, [ROW] * 3]})
    pickled.write_bytes(pickled.read_bytes()[:-30])
    with pytest.raises(DataError):
        read_result_file(pickled, dataset)


def test_a_folder_of_pictures_has_class_numbers_for_categories(tmp_path: Path, dataset: Dataset) -> None:
    folder = load_dataset(str(dataset.root))
    file = write_json(tmp_path / "r.json", [{**RECORD, "image_id": folder.entries[0].image_id, "category_id": 3}])
    assert read_detections(file, folder).classes.tolist() == [3]


@pytest.mark.golden
@pytest.mark.parametrize(("folder", "name"), [("box", "coco_cc12"), ("catshuffled", "coco_cc12_catshuffled")])
def test_both_files_of_a_run_hold_the_same_detections(folder: str, name: str) -> None:
    golden = load_dataset(shared_path(f"golden/dataset/{name}.json"), images=shared_path("golden/dataset/images"))
    pickled = read_detections(shared_path(f"golden/dataset/synth/{folder}/detections.pkl"), golden)
    listed = read_detections(shared_path(f"golden/dataset/synth/{folder}/bbox_{name}_results.json"), golden)
    for column in ("images", "classes", "boxes_xywh", "scores"):
        np.testing.assert_array_equal(getattr(pickled, column), getattr(listed, column), err_msg=column)
