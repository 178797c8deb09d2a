from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from shared_data import shared_path

from roiline.core.errors import DataError, UsageError
from roiline.core.rle import encode_mask
from roiline.infer.datasets import load_dataset
from roiline.infer.roidb import Dataset
from roiline.report.detection_metrics import (
    KEYPOINT_METRIC_NAMES,
    METRIC_NAMES,
    DetectionMetrics,
    find_obstacle,
    measure_detections,
)
from roiline.report.ground_truth import read_ground_truth
from roiline.report.result_columns import DetectionResults, KeypointResults, MaskResults, ProposalResults
from roiline.report.results import read_result_file


def measure_file(path: Path, dataset: Dataset) -> DetectionMetrics:
    results = read_result_file(path, dataset)[0]
    assert isinstance(results, DetectionResults)
    return measure_detections(results, dataset)


def make_results(dataset: Dataset, rows: list[tuple[int, int, list[float], float]]) -> DetectionResults:
    return DetectionResults(
        Path("results"),
        dataset.entries,
        np.array([row[0] for row in rows], np.int64),
        np.array([row[1] for row in rows], np.int64),
        np.array([row[2] for row in rows], np.float64).reshape(-1, 4),
        np.array([row[3] for row in rows], np.float64),
    )


@pytest.mark.golden
@pytest.mark.parametrize(("folder", "name"), [("box", "coco_cc12"), ("catshuffled", "coco_cc12_catshuffled")])
@pytest.mark.parametrize("file", ["detections.pkl", "bbox_{}_results.json"])
def test_made_up_results_score_as_the_originals(folder: str, name: str, file: str) -> None:
    dataset = load_dataset(shared_path(f"golden/dataset/{name}.json"), images=shared_path("golden/dataset/images"))
    root = shared_path(f"golden/dataset/synth/{folder}")
    expected = json.loads((root / "metrics.json").read_text())["detections"][name]["box"]
    metrics = measure_file(root / file.format(name), dataset)
    assert metrics.overall == pytest.approx(expected, abs=1e-12)
    with np.load(root / "detection_results.npz") as arrays:
        precision = arrays["precision"][:, :, :, 0, 2].astype(np.float64)  # kept there as float32: 6e-8 apart at most
    ids = sorted(category.id for category in dataset.categories)
    for category in dataset.categories:
        column = precision[:, :, ids.index(category.id)]
        wanted = column[column > -1].mean() if (column > -1).any() else -1
        assert metrics.per_class[category.name] == pytest.approx(wanted, abs=6e-8), category


@pytest.mark.golden
@pytest.mark.parametrize(("folder", "name"), [("box", "coco_cc12"), ("catshuffled", "coco_cc12_catshuffled")])
@pytest.mark.parametrize("file", ["detections.pkl", "segmentations_{}_results.json"])
def test_made_up_masks_score_as_the_originals(folder: str, name: str, file: str) -> None:
    dataset = load_dataset(shared_path(f"golden/dataset/{name}.json"), images=shared_path("golden/dataset/images"))
    root = shared_path(f"golden/dataset/synth/{folder}")
    expected = json.loads((root / "metrics.json").read_text())["detections"][name]["mask"]
    masks = read_result_file(root / file.format(name), dataset)[-1]
    assert isinstance(masks, MaskResults)
    assert measure_detections(masks, dataset).overall == pytest.approx(expected, abs=1e-12)


@pytest.mark.golden
@pytest.mark.parametrize("confidence", ["bbox", "logit", "prob"])
def test_made_up_keypoints_score_as_the_originals(confidence: str) -> None:
    root = shared_path("golden/dataset")
    dataset = load_dataset(root / "keypoints_coco_cc2.json", images=root / "images_kps")
    metrics = json.loads((root / "synth" / "kps" / "metrics.json").read_text())
    file = root / "synth" / "kps" / confidence / "keypoints_keypoints_coco_cc2_results.json"
    (keypoints,) = read_result_file(file, dataset)
    assert isinstance(keypoints, KeypointResults)
    measured = measure_detections(keypoints, dataset).overall
    assert measured == pytest.approx(metrics[f"keypoints_{confidence}"]["keypoints_coco_cc2"]["keypoint"], abs=1e-12)
    assert tuple(measured) == KEYPOINT_METRIC_NAMES


@pytest.mark.golden
def test_a_pickle_with_everything_scores_as_the_original() -> None:
    root = shared_path("golden/dataset")
    dataset = load_dataset(root / "keypoints_coco_cc2.json", images=root / "images_kps")
    expected = json.loads((root / "synth" / "kps" / "metrics.json").read_text())["detections"]["keypoints_coco_cc2"]
    boxes, _, keypoints = read_result_file(root / "synth" / "kps" / "detections.pkl", dataset)
    for part, results in (("box", boxes), ("keypoint", keypoints)):
        assert not isinstance(results, ProposalResults)
        assert measure_detections(results, dataset).overall == pytest.approx(expected[part], abs=1e-12)


@pytest.mark.golden
@pytest.mark.parametrize("file", ["original_detections.pkl", "original_segmentations_results.json"])
def test_masks_of_a_trained_model_score_as_the_originals(file: str) -> None:
    root = shared_path("models/coco-cc-mask-detectron")
    dataset = load_dataset(root / "coco_cc.json", need_pictures=False)
    expected = json.loads((root / "metrics.json").read_text())
    parts = read_result_file(root / file, dataset)
    if len(parts) == 2:
        assert isinstance(parts[0], DetectionResults)
        assert measure_detections(parts[0], dataset).overall == pytest.approx(expected["box"], abs=1e-9)
    assert isinstance(parts[-1], MaskResults)
    assert measure_detections(parts[-1], dataset).overall == pytest.approx(expected["mask"], abs=1e-9)


@pytest.mark.golden
@pytest.mark.parametrize("folder", ["mask", "mask_3way", "mask_thresh", "mask_catshuffled"])
def test_runs_of_the_original_score_as_it_said(folder: str) -> None:
    root = shared_path("golden/dataset")
    name = "coco_cc12_catshuffled" if folder == "mask_catshuffled" else "coco_cc12"
    dataset = load_dataset(root / f"{name}.json", images=root / "images")
    metrics = json.loads((root / folder / "metrics.json").read_text())
    kinds = {"bbox": "detection", "segmentations": "segmentation"}
    pickled = read_result_file(root / folder / "detections.pkl", dataset)
    for (file, stats), from_pickle in zip(kinds.items(), pickled, strict=True):
        (listed,) = read_result_file(root / folder / f"{file}_{name}_results.json", dataset)
        for results in (listed, from_pickle):
            assert not isinstance(results, ProposalResults)
            overall = list(measure_detections(results, dataset).overall.values())
            assert overall == pytest.approx(metrics[f"{stats}_results_stats"][:6], abs=1e-12)


@pytest.mark.golden
@pytest.mark.parametrize("file", ["original_detections.pkl", "original_bbox_results.json"])
def test_blood_cells_score_as_the_originals(file: str) -> None:
    root = shared_path("models/bccd-detectron")
    dataset = load_dataset(root / "test_coco.json", images=shared_path("data/bccd/JPEGImages"))
    expected = json.loads((root / "metrics.json").read_text())["box"]
    assert measure_file(root / file, dataset).overall == pytest.approx(expected, abs=1e-12)


@pytest.mark.golden
def test_a_voc_root_scores_as_its_coco_file() -> None:
    root = shared_path("models/bccd-detectron")
    dataset = load_dataset(shared_path("data/bccd"), split="test", class_names=("RBC", "WBC", "Platelets"))
    expected = json.loads((root / "metrics.json").read_text())["box"]
    assert measure_file(root / "original_detections.pkl", dataset).overall == pytest.approx(expected, abs=1e-12)


def test_perfect_detections_score_one(dataset: Dataset) -> None:
    rows = [(0, 1, [10, 10, 20, 20], 0.9), (0, 2, [40, 20, 30, 30], 0.8), (1, 1, [20, 20, 60, 60], 0.7)]
    metrics = measure_detections(make_results(dataset, rows), dataset)
    assert metrics.overall == pytest.approx({"AP": 1, "AP50": 1, "AP75": 1, "APs": 1, "APm": 1, "APl": -1})
    assert metrics.per_class == pytest.approx({"cat": 1, "dog": 1})


def test_classes_are_the_datasets_and_not_the_order_of_ids(dataset: Dataset) -> None:
    metrics = measure_detections(make_results(dataset, [(0, 2, [40, 20, 30, 30], 0.8)]), dataset)
    assert metrics.per_class == pytest.approx({"cat": 0, "dog": 1})


def test_detections_in_a_crowd_cost_nothing(dataset: Dataset) -> None:
    rows = [(1, 2, [5, 5, 40, 40], 0.9), (0, 2, [40, 20, 30, 30], 0.8)]
    assert measure_detections(make_results(dataset, rows), dataset).per_class["dog"] == pytest.approx(1)


def test_an_annotation_of_id_zero_can_be_matched(dataset: Dataset) -> None:
    metrics = measure_detections(make_results(dataset, [(0, 1, [10, 10, 20, 20], 0.9)]), dataset)
    assert metrics.per_class["cat"] == pytest.approx(51 / 101)


def test_a_run_without_detections_scores_zero(dataset: Dataset) -> None:
    metrics = measure_detections(make_results(dataset, []), dataset)
    assert metrics.overall == {"AP": 0, "AP50": 0, "AP75": 0, "APs": 0, "APm": 0, "APl": -1}
    assert metrics.per_class == {"cat": 0, "dog": 0}


def test_a_dataset_without_annotations_scores_minus_one(tmp_path: Path, dataset: Dataset) -> None:
    assert dataset.annotation_file is not None
    content = json.loads(dataset.annotation_file.read_text())
    del content["annotations"]
    file = tmp_path / "my_test.json"
    file.write_text(json.dumps(content))
    bare = load_dataset(file, images=dataset.root)
    metrics = measure_detections(make_results(bare, [(0, 1, [10, 10, 20, 20], 0.9)]), bare)
    assert metrics.overall == dict.fromkeys(METRIC_NAMES, -1.0)
    assert metrics.per_class == {"cat": -1, "dog": -1}


def test_only_the_loaded_pictures_count(dataset: Dataset) -> None:
    part = load_dataset(str(dataset.annotation_file), images=dataset.root, limit=1)
    rows = [(0, 1, [10, 10, 20, 20], 0.9), (0, 2, [40, 20, 30, 30], 0.8)]
    assert measure_detections(make_results(part, rows), part).overall["AP"] == pytest.approx(1)


def keypoints_of(dataset: Dataset, joints: int) -> KeypointResults:
    one = np.ones(1)
    return KeypointResults(
        Path("k"), dataset.entries, np.zeros(1, np.int64), np.ones(1, np.int64), one, np.zeros((1, 2, joints))
    )


def masks_of(dataset: Dataset) -> MaskResults:
    whole = np.array([[60, 80]], np.int64)
    return MaskResults(
        Path("m"),
        dataset.entries,
        np.zeros(1, np.int64),
        np.ones(1, np.int64),
        np.ones(1),
        (encode_mask(np.ones((60, 80), np.bool_)),),
        whole,
        whole.prod(axis=1),
    )


def with_annotations(tmp_path: Path, dataset: Dataset, *changes: dict[str, object]) -> Dataset:
    """The dataset with more keys in its annotations, from the first on."""
    assert dataset.annotation_file is not None
    content = json.loads(dataset.annotation_file.read_text())
    for annotation, change in zip(content["annotations"], changes, strict=False):
        annotation.update(change)
    file = tmp_path / "changed.json"
    file.write_text(json.dumps(content))
    return load_dataset(file, images=dataset.root)


BOX_POLYGON = [[10, 10, 30, 10, 30, 30, 10, 30]]
PERSON = [5, 6, 2] * 17


@pytest.mark.parametrize(
    ("changes", "joints", "reason"),
    [
        ([], None, "the dataset has no masks"),
        ([{"segmentation": []}] * 4, None, "the dataset has no masks"),
        ([{"segmentation": BOX_POLYGON}] * 3, None, "1 of the dataset's 4 annotations have no mask"),
        ([{"segmentation": BOX_POLYGON}] * 4, None, None),
        ([], 17, "the dataset has no keypoints"),
        ([{"keypoints": PERSON}], 3, "the dataset has 17 keypoints, the results have 3"),
        ([{"keypoints": PERSON[:9]}], 3, "similarity is defined for 17 keypoints, the dataset has 3"),
        ([{"keypoints": PERSON}], 17, None),
    ],
)
def test_what_cannot_be_scored_is_told_and_scores_minus_one(
    tmp_path: Path, dataset: Dataset, changes: list[dict[str, object]], joints: int | None, reason: str | None
) -> None:
    changed = with_annotations(tmp_path, dataset, *changes)
    results = masks_of(changed) if joints is None else keypoints_of(changed, joints)
    truth = read_ground_truth(changed, changed.entries, parts=("masks", "keypoints"))
    told = find_obstacle(results, truth)
    assert (told is None) == (reason is None)
    assert reason is None or (told is not None and reason in told)
    assert (measure_detections(results, changed).overall["AP"] == -1) == (reason is not None)


def test_a_perfect_mask_and_perfect_keypoints_score_one(tmp_path: Path, dataset: Dataset) -> None:
    full = {"size": [60, 80], "counts": [0, 4800]}
    changed = with_annotations(
        tmp_path,
        load_dataset(str(dataset.annotation_file), images=dataset.root),
        {"segmentation": full, "area": 4800, "keypoints": [*PERSON[:-1], 0]},
        *[{"segmentation": BOX_POLYGON}] * 3,
    )
    assert measure_detections(masks_of(changed), changed).per_class["cat"] == pytest.approx(51 / 101)
    found = keypoints_of(changed, 17)
    found.points[0] = np.array([[5.0], [6.0]])
    metrics = measure_detections(found, changed)
    assert metrics.overall == pytest.approx({"AP": 1, "AP50": 1, "AP75": 1, "APm": 1, "APl": -1})
    assert metrics.per_class == pytest.approx({"cat": 1, "dog": -1})


def test_a_folder_of_pictures_cannot_score(dataset: Dataset) -> None:
    folder = load_dataset(str(dataset.root))
    with pytest.raises(DataError, match="has no ground truth"):
        measure_detections(make_results(folder, []), folder)


def test_the_missing_extra_is_named(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faster_coco_eval", None)
    with pytest.raises(UsageError, match=r"pip install 'roiline\[eval\]'"):
        measure_detections(make_results(dataset, []), dataset)
