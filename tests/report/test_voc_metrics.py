"""VOC's average precision against an implementation of its own, written from the description of the challenge's development kit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from shared_data import shared_path

from roiline.core.structures import RoidbEntry
from roiline.infer.datasets import load_dataset
from roiline.infer.roidb import Category, Dataset
from roiline.report.evaluation import evaluate
from roiline.report.result_columns import DetectionResults
from roiline.report.results import read_result_file
from roiline.report.voc_metrics import area_precision, eleven_point_precision, measure_voc


def dataset_of(*entries: RoidbEntry, names: tuple[str, ...] = ("cat", "dog")) -> Dataset:
    categories = tuple(Category(number, name) for number, name in enumerate(names, 1))
    return Dataset("pets", "voc", categories, entries, "", (), Path("pets"), len(entries), (0, len(entries)))


def entry(number: int, boxes: list[list[float]], classes: list[int], difficult: list[bool]) -> RoidbEntry:
    return RoidbEntry(
        number,
        Path(f"{number}.jpg"),
        100,
        100,
        np.array(boxes, np.float32).reshape(-1, 4),
        np.array(classes, np.int32),
        np.array(difficult, np.bool_),
        np.ones(len(boxes), np.float32),
    )


def results_of(dataset: Dataset, rows: list[tuple[int, int, list[float], float]]) -> DetectionResults:
    corners = np.array([row[2] for row in rows], np.float64).reshape(-1, 4)
    corners[:, 2:] -= corners[:, :2] - 1
    return DetectionResults(
        Path("r"),
        dataset.entries,
        np.array([row[0] for row in rows], np.int64),
        np.array([row[1] for row in rows], np.int64),
        corners,
        np.array([row[3] for row in rows], np.float64),
    )


def overlap(a: list[float], b: list[float]) -> float:
    width = min(a[2], b[2]) - max(a[0], b[0]) + 1
    height = min(a[3], b[3]) - max(a[1], b[1]) + 1
    if width <= 0 or height <= 0:
        return 0.0
    shared = width * height
    return shared / ((a[2] - a[0] + 1) * (a[3] - a[1] + 1) + (b[2] - b[0] + 1) * (b[3] - b[1] + 1) - shared)


def voc_by_hand(dataset: Dataset, results: DetectionResults, label: int) -> tuple[float, float]:
    """Area and eleven-point AP of one class, one detection after another, with plain lists."""
    objects = {
        place: [
            {"box": box, "difficult": bool(hard), "taken": False}
            for box, kind, hard in zip(one.boxes.tolist(), one.classes, one.crowd, strict=True)
            if kind == label
        ]
        for place, one in enumerate(dataset.entries)
    }
    total = sum(not item["difficult"] for items in objects.values() for item in items)
    if total == 0:
        return -1.0, -1.0
    rows = [row for row in range(len(results.scores)) if results.classes[row] == label]
    rows.sort(key=lambda row: -results.scores[row])
    points, right, wrong = [], 0, 0
    for row in rows:
        left, top, width, height = results.boxes_xywh[row].tolist()
        box = [left, top, left + width - 1, top + height - 1]
        best, item = max(
            ((overlap(box, one["box"]), one) for one in objects[int(results.images[row])]),
            key=lambda pair: pair[0],
            default=(0.0, None),
        )
        if best > 0.5 and item is not None:
            if item["difficult"]:
                continue
            if item["taken"]:
                wrong += 1
            else:
                item["taken"] = True
                right += 1
        else:
            wrong += 1
        points.append((right / total, right / (right + wrong)))
    area, reached = 0.0, 0.0
    for place, (recall, _) in enumerate(points):
        if recall > reached:
            area += (recall - reached) * max(precision for _, precision in points[place:])
            reached = recall
    eleven = [max((p for r, p in points if r >= tenth), default=0.0) for tenth in np.arange(0.0, 1.1, 0.1)]
    return area, sum(eleven) / 11


@pytest.mark.parametrize("seed", range(12))
def test_both_rules_agree_with_an_implementation_by_hand(seed: int) -> None:
    random = np.random.default_rng(seed)
    entries, rows = [], []
    for place in range(6):
        count = int(random.integers(0, 6))
        corners = np.sort(random.integers(0, 90, (count, 2, 2)), axis=1).reshape(count, 4)
        corners[:, 2:] += 8
        classes = random.integers(1, 3, count)
        entries.append(entry(place, corners.tolist(), classes.tolist(), (random.random(count) < 0.25).tolist()))
        for box, label in zip(corners.tolist(), classes.tolist(), strict=True):
            for _ in range(int(random.integers(0, 4))):
                moved = (np.array(box) + random.integers(-4, 5, 4)).tolist()
                moved[2:] = [max(moved[0], moved[2]), max(moved[1], moved[3])]
                other = label if random.random() < 0.8 else 3 - label
                rows.append((place, other, moved, float(random.random())))
    dataset = dataset_of(*entries)
    results = results_of(dataset, rows)
    measured = measure_voc(results, dataset)
    by_hand = [voc_by_hand(dataset, results, label) for label in (1, 2)]
    for name, (area, eleven) in zip(("cat", "dog"), by_hand, strict=True):
        assert measured.per_class[name] == pytest.approx({"area": area, "11point": eleven}, abs=1e-12)
    known = [pair for pair in by_hand if pair[0] >= 0]
    assert measured.overall["area"] == pytest.approx(np.mean([area for area, _ in known]), abs=1e-12)


def test_the_two_rules_on_a_curve_that_is_known() -> None:
    hits = np.array([True, False, True])
    assert area_precision(hits, 4) == pytest.approx(0.25 * 1 + 0.25 * 2 / 3)
    assert eleven_point_precision(hits, 4) == pytest.approx((3 * 1 + 3 * 2 / 3) / 11)
    assert area_precision(np.zeros(0, np.bool_), 4) == eleven_point_precision(np.zeros(0, np.bool_), 4) == 0


def test_difficult_objects_are_neither_asked_for_nor_held_against_anyone() -> None:
    easy, hard = [10.0, 10, 39, 39], [60.0, 60, 89, 89]
    dataset = dataset_of(entry(0, [easy, hard], [1, 1], [False, True]), names=("cat",))
    rows = [(0, 1, hard, 0.9), (0, 1, hard, 0.8), (0, 1, easy, 0.7)]
    assert measure_voc(results_of(dataset, rows), dataset).overall == {"area": 1.0, "11point": 1.0}
    twice = [(0, 1, easy, 0.9), (0, 1, easy, 0.8)]
    assert measure_voc(results_of(dataset, twice), dataset).overall == {"area": 1.0, "11point": 1.0}
    first_wrong = [(0, 1, [0.0, 60, 20, 80], 0.95), *twice]
    assert measure_voc(results_of(dataset, first_wrong), dataset).overall == {"area": 0.5, "11point": 0.5}


def test_half_an_overlap_is_not_enough() -> None:
    dataset = dataset_of(entry(0, [[0, 0, 9, 9]], [1], [False]), names=("cat",))
    half = results_of(dataset, [(0, 1, [0, 0, 9, 19], 0.9)])
    assert measure_voc(half, dataset).overall["area"] == 0
    more = results_of(dataset, [(0, 1, [0, 0, 9, 18], 0.9)])
    assert measure_voc(more, dataset).overall["area"] == 1


def test_classes_without_objects_do_not_count() -> None:
    dataset = dataset_of(entry(0, [[0, 0, 9, 9]], [1], [False]))
    measured = measure_voc(results_of(dataset, [(0, 1, [0, 0, 9, 9], 0.9), (0, 2, [0, 0, 9, 9], 0.9)]), dataset)
    assert measured.per_class["dog"] == {"area": -1.0, "11point": -1.0}
    assert measured.overall == {"area": 1.0, "11point": 1.0}
    nothing = dataset_of(entry(0, [], [], []))
    assert measure_voc(results_of(nothing, []), nothing).overall == {"area": -1.0, "11point": -1.0}


@pytest.mark.golden
def test_blood_cells_score_as_by_hand_on_their_voc_root(tmp_path: Path) -> None:
    dataset = load_dataset(shared_path("data/bccd"), split="test", class_names=("RBC", "WBC", "Platelets"))
    file = shared_path("models/bccd-detectron/original_detections.pkl")
    (results,) = read_result_file(file, dataset)
    assert isinstance(results, DetectionResults)
    measured = evaluate(file, [dataset], out=tmp_path).metrics[dataset.name]
    for label, category in enumerate(dataset.categories, 1):
        area, eleven = voc_by_hand(dataset, results, label)
        wanted = {"AP50_area": area, "AP50_11point": eleven}
        assert measured["per_class_voc"][category.name] == pytest.approx(wanted, abs=1e-9)
    assert 0.85 < measured["voc"]["AP50_area"] < 0.92
