from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from shared_data import shared_path

from roiline.core.boxes import box_ious
from roiline.core.structures import Float32, Proposals, RoidbEntry
from roiline.infer.datasets import load_dataset
from roiline.infer.proposal_files import select_proposals
from roiline.infer.roidb import Dataset
from roiline.report.proposal_recall import (
    AREAS,
    LIMITS,
    average_recall,
    mean_class_recall,
    measure_recall,
    pair_greedily,
    recall_keys,
)
from roiline.report.result_columns import ProposalResults
from roiline.report.results import read_result_file


def golden_dataset(name: str) -> Dataset:
    return load_dataset(shared_path(f"golden/dataset/{name}.json"), images=shared_path("golden/dataset/images"))


def read_proposals(path: Path, dataset: Dataset) -> ProposalResults:
    (results,) = read_result_file(path, dataset)
    assert isinstance(results, ProposalResults)
    return results


@pytest.mark.golden
@pytest.mark.parametrize(
    ("folder", "name", "part"),
    [
        ("synth/box", "coco_cc12", "proposals"),
        ("synth/catshuffled", "coco_cc12_catshuffled", "proposals"),
        ("rpn", "coco_cc12", "recall"),
        ("rpn_3way", "coco_cc12", "recall"),
    ],
)
def test_recalls_equal_the_originals(folder: str, name: str, part: str) -> None:
    root = shared_path(f"golden/dataset/{folder}")
    expected = json.loads((root / "metrics.json").read_text())[part][name]["box_proposal"]
    recalls = measure_recall(read_proposals(root / "rpn_proposals.pkl", golden_dataset(name)))
    assert list(recalls) == list(expected) == list(recall_keys())
    assert recalls == pytest.approx(expected, abs=1e-12)


@pytest.mark.golden
@pytest.mark.parametrize("voc", [False, True])
def test_recalls_of_blood_cells_equal_the_originals(voc: bool) -> None:
    root = shared_path("models/bccd-detectron")
    dataset = load_dataset(root / "test_coco.json", images=shared_path("data/bccd/JPEGImages"))
    results = read_proposals(root / "original_rpn_proposals.pkl", dataset)
    if voc:
        entries = load_dataset(shared_path("data/bccd"), split="test", class_names=("RBC", "WBC", "Platelets")).entries
        results = ProposalResults(results.path, entries, results.proposals)
    expected = json.loads((root / "metrics.json").read_text())["box_proposal"]
    assert measure_recall(results) == pytest.approx(expected, abs=1e-12)


def recall_with_upstream_classes(results: ProposalResults, *, by_position: bool) -> dict[str, float]:
    """The original's class-specific bookkeeping: overlaps best first, beside classes in box order."""
    recalls = {}
    for limit in LIMITS:
        for suffix, (low, high) in AREAS.items():
            overlaps, classes = [], []
            for entry, found in zip(results.entries, results.proposals, strict=True):
                plain = np.flatnonzero((entry.classes > 0) & ~entry.crowd)
                inside = np.flatnonzero((entry.areas[plain] >= low) & (entry.areas[plain] <= high))
                boxes = select_proposals(found.boxes, entry, limit=0)[:limit]
                paired = pair_greedily(box_ious(boxes, entry.boxes[plain[inside]]))
                overlaps.append(np.sort(paired)[::-1])
                classes.append(entry.classes[inside if by_position else plain[inside]].astype(np.int64))
            recalls[f"AR{suffix}@{limit}"] = mean_class_recall(np.concatenate(overlaps), np.concatenate(classes))
    return recalls


@pytest.mark.golden
@pytest.mark.parametrize(
    ("folder", "part", "by_position"),
    [("synth/box", "proposals_class_specific", False), ("rpn_class_specific_ar", "recall", True)],
)
def test_class_specific_recalls_differ_from_the_originals_by_its_bookkeeping_only(
    folder: str, part: str, by_position: bool
) -> None:
    root = shared_path(f"golden/dataset/{folder}")
    expected = json.loads((root / "metrics.json").read_text())[part]["coco_cc12"]["box_proposal"]
    results = read_proposals(root / "rpn_proposals.pkl", golden_dataset("coco_cc12"))
    assert recall_with_upstream_classes(results, by_position=by_position) == pytest.approx(expected, abs=1e-12)
    assert measure_recall(results, class_specific=True) != pytest.approx(expected, abs=1e-3)


def picture(boxes: list[list[float]], **changes: object) -> RoidbEntry:
    count = len(boxes)
    fields = {
        "boxes": np.array(boxes, np.float32).reshape(-1, 4),
        "classes": np.ones(count, np.int32),
        "crowd": np.zeros(count, np.bool_),
        "areas": np.full(count, 400, np.float32),
        **changes,
    }
    return RoidbEntry(1, Path("1.jpg"), 200, 200, **fields)  # type: ignore[arg-type]


def results_of(*pairs: tuple[RoidbEntry, list[list[float]]]) -> ProposalResults:
    proposals = tuple(
        Proposals(1, np.array(boxes, np.float32).reshape(-1, 4), np.zeros(len(boxes), np.float32)) for _, boxes in pairs
    )
    return ProposalResults(Path("p.pkl"), tuple(entry for entry, _ in pairs), proposals)


FIRST, SECOND = [10.0, 10, 29, 29], [100.0, 100, 119, 119]


def test_covered_and_uncovered_boxes() -> None:
    recalls = measure_recall(results_of((picture([FIRST, SECOND]), [FIRST])))
    assert recalls["AR@100"] == pytest.approx(0.5)
    assert recalls["ARs@100"] == pytest.approx(0.5)
    assert recalls["ARm@100"] == recalls["ARl@1000"] == -1


def test_pictures_without_proposals_count_their_ground_truth() -> None:
    recalls = measure_recall(results_of((picture([FIRST]), [FIRST]), (picture([FIRST, SECOND, FIRST]), [])))
    assert recalls["AR@1000"] == pytest.approx(0.25)


def test_area_bounds_are_inclusive_on_both_sides() -> None:
    recalls = measure_recall(results_of((picture([FIRST], areas=np.array([32.0**2], np.float32)), [FIRST])))
    assert recalls["ARs@100"] == recalls["ARm@100"] == pytest.approx(1)


def test_crowds_do_not_count() -> None:
    entry = picture([FIRST, SECOND], crowd=np.array([False, True]))
    assert measure_recall(results_of((entry, [FIRST])))["AR@100"] == pytest.approx(1)


def test_the_limit_cuts_after_the_loaders_rules() -> None:
    noise = [[150.0, 150, 160 + i % 30, 160 + i // 30] for i in range(99)]
    entry = picture([FIRST])
    assert measure_recall(results_of((entry, [*noise, noise[0], FIRST])))["AR@100"] == pytest.approx(1)
    late = measure_recall(results_of((entry, [*noise, [1, 1, 9, 9], FIRST])))
    assert (late["AR@100"], late["AR@1000"]) == (0, pytest.approx(1))


def test_each_class_weighs_the_same() -> None:
    entry = picture([FIRST, SECOND, [50, 50, 69, 69]], classes=np.array([3, 1, 1], np.int32))
    results = results_of((entry, [FIRST]))
    assert measure_recall(results)["AR@100"] == pytest.approx(1 / 3)
    assert measure_recall(results, class_specific=True)["AR@100"] == pytest.approx(1 / 2)


def test_no_ground_truth_at_all() -> None:
    assert set(measure_recall(results_of((picture([]), [FIRST]))).values()) == {-1.0}
    assert set(measure_recall(results_of(), class_specific=True).values()) == {-1.0}


def pair_one_by_one(ious: Float32) -> list[float]:
    """The definition, spelled out: the best pair of all that is left, again and again."""
    left = {(r, g): float(ious[r, g]) for r in range(ious.shape[0]) for g in range(ious.shape[1])}
    overlaps = [0.0] * ious.shape[1]
    while left:
        row, column = max(left, key=lambda key: (left[key], -key[1], -key[0]))
        overlaps[column] = left[row, column]
        left = {key: value for key, value in left.items() if key[0] != row and key[1] != column}
    return overlaps


@pytest.mark.parametrize("seed", range(20))
def test_pairing_agrees_with_its_definition(seed: int) -> None:
    random = np.random.default_rng(seed)
    ious = np.round(random.random(tuple(random.integers(0, 7, 2))), 1).astype(np.float32)
    assert pair_greedily(ious).tolist() == pair_one_by_one(ious)


def test_average_recall_counts_thresholds_reached() -> None:
    assert average_recall(np.array([0.5])) == pytest.approx(0.1)
    assert average_recall(np.array([0.77, 0.2])) == pytest.approx(0.3)
