from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from shared_data import shared_path

from roiline.core.errors import DataError
from roiline.core.rle import encode_mask
from roiline.infer.datasets import load_dataset
from roiline.infer.manifest import DatasetRecord, Manifest, RunSettings, write_manifest
from roiline.infer.request import RunOverrides
from roiline.infer.roidb import Dataset
from roiline.report.result_columns import DetectionResults, KeypointResults, MaskResults, ProposalResults
from roiline.report.results import dataset_of_run, find_result_files, read_result_file, read_results

ROW = np.array([[1, 2, 11, 22, 0.5]], np.float32)
RECORD = {"image_id": 9, "category_id": 20, "bbox": [1, 2, 11, 21], "score": 0.5}


def write_pickle(path: Path, content: object) -> Path:
    path.write_bytes(pickle.dumps(content, protocol=2))
    return path


def write_json(path: Path, content: object) -> Path:
    path.write_text(json.dumps(content))
    return path


def read_detections(path: Path, dataset: Dataset) -> DetectionResults:
    (results,) = read_result_file(path, dataset)
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


def test_an_empty_list_is_a_run_without_detections(tmp_path: Path, dataset: Dataset) -> None:
    found = read_detections(write_json(tmp_path / "r.json", []), dataset)
    assert found.boxes_xywh.shape == (0, 4)


def test_proposals_follow_the_entries(tmp_path: Path, dataset: Dataset) -> None:
    content = {"boxes": [ROW[:, :4] + i for i in range(3)], "scores": [ROW[:, 4]] * 3, "ids": [12, 4, 9]}
    (results,) = read_result_file(write_pickle(tmp_path / "x", content), dataset)
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
        ([{**RECORD, "score": 10**400}], "finite numbers in every `score`"),
        ([{**RECORD, "bbox": [1, 2, 3, 10**400]}], "finite numbers in every `bbox`"),
        ([{**RECORD, "bbox": [1, 2, 3, 1e308]}], "finite numbers in every `bbox`"),
        ([{**RECORD, "category_id": 10**400}], "category_ids are not in dataset"),
        ([{**RECORD, "image_id": 10**400}], "image_ids are not in dataset"),
        (
            [{"image_id": 9, "category_id": 20, "segmentation": {}, "score": 0.5}],
            r"item 0: expected a mask of the form \{size: \[height, width\]",
        ),
        ([RECORD, {"image_id": 9, "category_id": 20, "score": 0.5}], "item 1: expected image_id, .* got .*score"),
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
        ({"all_boxes": [[], [ROW * 1j] * 3, [ROW] * 3]}, "expected .* numbers, got ndarray"),
        ({"all_boxes": [[], [[[1, 2, 3, 10**400, 0.5]]] * 3, [ROW] * 3]}, "finite numbers"),
        ({"all_boxes": [[], [ROW.astype(np.float64) * 1e300] * 3, [ROW] * 3]}, "finite numbers"),
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


def write_run(folder: Path, id_range: tuple[int, int], total: int = 3) -> None:
    settings = RunSettings("m", "fake", "fp32", "detections", "d", id_range, "apply", "exact", None, RunOverrides())
    manifest = Manifest(
        format_version=1,
        identity=settings.identity,
        settings=settings,
        dataset=DatasetRecord("pets", "coco", "pets.json", total),
        classes=(),
        class_order=(0,),
        plus_one=True,
        config_yaml="",
        shard_sizes=(),
        named_range=None,
        started_at=0.0,
        finished=True,
    )
    folder.mkdir(parents=True, exist_ok=True)
    write_manifest(folder, manifest)


def test_a_run_covers_the_part_of_the_dataset_that_it_was_over(tmp_path: Path, dataset: Dataset) -> None:
    assert dataset_of_run(tmp_path, dataset) is dataset
    write_run(tmp_path / "out", (1, 3))
    part = dataset_of_run(tmp_path / "out", dataset)
    assert [entry.image_id for entry in part.entries] == [9, 12]
    assert (part.id_range, part.total) == ((1, 3), 3)
    assert dataset_of_run(tmp_path / "out" / "bbox_results.json", dataset) == part
    assert dataset_of_run(tmp_path / "out", part) == part
    write_run(tmp_path / "out" / "pets", (0, 1))
    assert [entry.image_id for entry in dataset_of_run(tmp_path / "out", dataset).entries] == [4]
    with pytest.raises(DataError, match="covers pictures 0 to 1, but pictures 1 to 3 were loaded"):
        dataset_of_run(tmp_path / "out", part)
    write_run(tmp_path / "other", (0, 3), total=5)
    with pytest.raises(DataError, match=r"over a dataset of 5 pictures .* `pets` has 3"):
        dataset_of_run(tmp_path / "other", dataset)


def mask(height: int = 100, width: int = 120, fill: int = 7) -> dict[str, object]:
    pixels = np.zeros((height, width), np.uint8)
    pixels[2:5, :fill] = 1
    return {"size": [height, width], "counts": encode_mask(pixels)}


def test_pickles_may_hold_masks_and_keypoints_too(tmp_path: Path, dataset: Dataset) -> None:
    points = np.arange(12, dtype=np.float32).reshape(4, 3)
    boxes = [[], [[], [], []], [[], np.concatenate([ROW, ROW / 2]), []]]
    content = {
        "all_boxes": boxes,
        "all_segms": [[], [[], [], []], [[], [mask(), mask(fill=3)], []]],
        "all_keyps": [[], [[], [], []], [[], [points, points + 1], []]],
        "cfg": "KRCNN:\n  KEYPOINT_CONFIDENCE: logit\n",
    }
    _, masks, keypoints = read_result_file(write_pickle(tmp_path / "x", content), dataset)
    assert isinstance(masks, MaskResults)
    assert isinstance(keypoints, KeypointResults)
    assert (masks.images.tolist(), masks.classes.tolist(), masks.scores.tolist()) == ([1, 1], [2, 2], [0.5, 0.25])
    assert (masks.areas.tolist(), masks.sizes_hw.tolist()) == ([21, 9], [[100, 120]] * 2)
    assert masks.counts[0] == mask()["counts"]
    assert keypoints.scores.tolist() == [7, 8]
    assert keypoints.box_scores is not None
    assert keypoints.box_scores.tolist() == [0.5, 0.25]
    np.testing.assert_array_equal(keypoints.points[0], points[:2])
    boxed = write_pickle(tmp_path / "y", {**content, "cfg": None})
    assert read_result_file(boxed, dataset)[2].scores.tolist() == [0.5, 0.25]
    plain = write_pickle(tmp_path / "z", {"all_boxes": boxes, "all_segms": [[[]] * 3] * 3, "all_keyps": [[[]] * 3] * 3})
    assert len(read_result_file(plain, dataset)) == 1


@pytest.mark.parametrize(
    ("part", "cell", "message"),
    [
        ("all_segms", [mask(), mask()], r"all_segms\[2\]\[1\] has more rows than all_boxes"),
        (
            "all_segms",
            [mask(50, 60)],
            r"all_segms\[2\]\[1\]\[0\]: the mask is of a picture of 50 x 60 .* has 100 x 120",
        ),
        ("all_segms", [{"size": [10**5000, 120], "counts": b"04"}], "expected a mask of the form"),
        ("all_segms", [{"size": [100, 120], "counts": b"\x00"}], r"\[0\]: .*is not COCO's compressed form"),
        (
            "all_segms",
            [{"size": [100, 120], "counts": b"04"}],
            r"\[0\]: the mask's run lengths add up to 4, expected 100 x 120",
        ),
        ("all_segms", [7], "expected a mask of the form"),
        ("all_segms", ROW, "expected a list, got ndarray"),
        ("all_keyps", [ROW], r"expected \(4, J\) finite numbers"),
        ("all_keyps", ["x"], r"expected \(4, J\) numbers"),
    ],
)
def test_faults_of_masks_and_keypoints_are_named(
    tmp_path: Path, dataset: Dataset, part: str, cell: object, message: str
) -> None:
    content = {"all_boxes": [[], [[]] * 3, [[], ROW, []]], part: [[], [[]] * 3, [[], cell, []]]}
    with pytest.raises(DataError, match=message):
        read_result_file(write_pickle(tmp_path / "r.pkl", content), dataset)


def test_an_unknown_confidence_is_refused(tmp_path: Path, dataset: Dataset) -> None:
    cells = [[], [[]] * 3, [[], ROW, []]]
    keypoints = [[], [[]] * 3, [[], [np.zeros((4, 2))], []]]
    content = {"all_boxes": cells, "all_keyps": keypoints, "cfg": "KRCNN: {KEYPOINT_CONFIDENCE: area}"}
    with pytest.raises(DataError, match="KEYPOINT_CONFIDENCE is one of bbox, logit, prob, got 'area'"):
        read_result_file(write_pickle(tmp_path / "r.pkl", content), dataset)


def test_coco_lists_of_masks_and_keypoints(tmp_path: Path, dataset: Dataset) -> None:
    common = {"image_id": 9, "category_id": 20, "score": 0.5}
    listed = {**mask(), "counts": str(mask()["counts"], "ascii")}  # type: ignore[call-overload]
    (masks,) = read_result_file(write_json(tmp_path / "m.json", [{**common, "segmentation": listed}]), dataset)
    assert isinstance(masks, MaskResults)
    assert (masks.images.tolist(), masks.classes.tolist(), masks.areas.tolist()) == ([1], [2], [21])
    (points,) = read_result_file(
        write_json(tmp_path / "k.json", [{**common, "keypoints": [1, 2, 1, 3, 4, 1]}]), dataset
    )
    assert isinstance(points, KeypointResults)
    assert points.points.tolist() == [[[1, 3], [2, 4]]]
    assert points.logits is None
    for keypoints, message in (([1, 2], "x, y, v of the same number"), (["a", 2, 3], "numbers in every `keypoints`")):
        file = write_json(tmp_path / "k.json", [{**common, "keypoints": keypoints}])
        with pytest.raises(DataError, match=message):
            read_result_file(file, dataset)


def test_an_empty_list_is_of_what_its_name_says(tmp_path: Path, dataset: Dataset) -> None:
    kinds = {
        "segmentations_results.json": MaskResults,
        "keypoints_results.json": KeypointResults,
        "x": DetectionResults,
    }
    for name, kind in kinds.items():
        (found,) = read_result_file(write_json(tmp_path / name, []), dataset)
        assert isinstance(found, kind)
        assert found.scores.shape == (0,)


def test_a_folder_gives_all_lists_of_a_run(tmp_path: Path, dataset: Dataset) -> None:
    names = ("bbox_results.json", "segmentations_results.json", "keypoints_results.json")
    for name in names:
        write_json(tmp_path / name, [])
    write_pickle(tmp_path / "detections.pkl", {})
    assert [path.name for path in find_result_files(tmp_path, "pets")] == list(names)
    assert [type(part) for part in read_results(tmp_path, dataset)] == [DetectionResults, MaskResults, KeypointResults]


@pytest.mark.golden
@pytest.mark.parametrize(
    ("folder", "name", "images"),
    [
        ("box", "coco_cc12", "images"),
        ("catshuffled", "coco_cc12_catshuffled", "images"),
        ("kps", "keypoints_coco_cc2", "images_kps"),
    ],
)
def test_all_files_of_a_run_hold_the_same(folder: str, name: str, images: str) -> None:
    golden = load_dataset(shared_path(f"golden/dataset/{name}.json"), images=shared_path(f"golden/dataset/{images}"))
    root = shared_path(f"golden/dataset/synth/{folder}")
    columns = {
        DetectionResults: ("images", "classes", "boxes_xywh", "scores"),
        MaskResults: ("images", "classes", "scores", "counts", "sizes_hw", "areas"),
        KeypointResults: ("images", "classes", "scores", "points"),
    }
    files = {DetectionResults: "bbox", MaskResults: "segmentations", KeypointResults: "keypoints"}
    parts = read_result_file(root / "detections.pkl", golden)
    assert len(parts) == (3 if folder == "kps" else 2)
    for pickled in parts:
        for file in root.glob(f"{files[type(pickled)]}_*_results.json"):
            (listed,) = read_result_file(file, golden)
            for column in columns[type(pickled)]:
                np.testing.assert_array_equal(getattr(pickled, column), getattr(listed, column), err_msg=column)
