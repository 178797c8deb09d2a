from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from shared_data import shared_path

from roiline.core.errors import DataError, UsageError
from roiline.infer.datasets import load_dataset
from roiline.infer.roidb import Dataset
from roiline.report.detection_metrics import METRIC_NAMES, DetectionMetrics, measure_detections
from roiline.report.results import DetectionResults, read_result_file


def measure_file(path: Path, dataset: Dataset) -> DetectionMetrics:
    results = read_result_file(path, dataset)
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


def test_a_folder_of_pictures_cannot_score(dataset: Dataset) -> None:
    folder = load_dataset(str(dataset.root))
    with pytest.raises(DataError, match="has no ground truth"):
        measure_detections(make_results(folder, []), folder)


def test_the_missing_extra_is_named(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faster_coco_eval", None)
    with pytest.raises(UsageError, match=r"pip install 'roiline\[eval\]'"):
        measure_detections(make_results(dataset, []), dataset)
