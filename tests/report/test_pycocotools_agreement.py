"""Every number of a COCO evaluation equals pycocotools', to the last digit: boxes, masks and keypoints, averages and single classes."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shared_data import shared_path

from roiline.infer.datasets import load_dataset
from roiline.report.detection_metrics import measure_detections
from roiline.report.evaluation import EvaluationOptions, evaluate
from roiline.report.result_columns import ProposalResults
from roiline.report.results import read_result_file
from roiline.report.single_hits import single_hit_probes

CASES = [
    ("box", "coco_cc12", "images", "synth/box/bbox_coco_cc12_results.json", "bbox"),
    ("mask", "coco_cc12", "images", "synth/box/segmentations_coco_cc12_results.json", "segm"),
    (
        "keypoint",
        "keypoints_coco_cc2",
        "images_kps",
        "synth/kps/keypoints_keypoints_coco_cc2_results.json",
        "keypoints",
    ),
]


def score_with_pycocotools(truth: Path, results: Path, kind: str) -> Any:
    coco = pytest.importorskip("pycocotools.coco", reason="pycocotools is not installed")
    scoring = pytest.importorskip("pycocotools.cocoeval")
    with contextlib.redirect_stdout(io.StringIO()) as said:
        known = coco.COCO(str(truth))
        evaluator = scoring.COCOeval(known, known.loadRes(str(results)), kind)
        if kind == "keypoints":  # its default leaves out classes without keypoints; so do we, in effect
            evaluator.params.catIds = sorted(known.getCatIds())
        evaluator.evaluate()
        evaluator.accumulate()
        evaluator.summarize()
    return evaluator, said.getvalue()


def mean(values: np.ndarray) -> float:
    return float(np.mean(values[values > -1])) if (values > -1).any() else -1.0


@pytest.mark.golden
@pytest.mark.parametrize(("part", "name", "images", "file", "kind"), CASES)
def test_numbers_and_summary_lines_are_pycocotools(part: str, name: str, images: str, file: str, kind: str) -> None:
    root = shared_path("golden/dataset")
    dataset = load_dataset(root / f"{name}.json", images=root / images)
    evaluator, said = score_with_pycocotools(root / f"{name}.json", root / file, kind)
    (results,) = read_result_file(root / file, dataset)
    assert not isinstance(results, ProposalResults)
    measured = measure_detections(results, dataset)
    ours = [*measured.overall.values(), *measured.recall.values()]
    assert ours == evaluator.stats.tolist()
    precision = evaluator.eval["precision"]
    order = sorted(category.id for category in dataset.categories)
    for category in dataset.categories:
        column = precision[:, :, order.index(category.id), 0, -1]
        assert measured.per_class[category.name] == mean(column)
        assert measured.classes[category.name]["AP50"] == mean(column[:1])
        assert measured.classes[category.name]["AR"] == mean(
            evaluator.eval["recall"][:, order.index(category.id), 0, -1]
        )
    lines = evaluate(root / file, [dataset], options=EvaluationOptions(log_form=True)).table.splitlines()
    assert [line for line in lines if line.startswith(" Average")] == [
        line for line in said.splitlines() if line.startswith(" Average")
    ]
    assert any(value > 0 for value in ours)


@pytest.mark.golden
@pytest.mark.parametrize(("kind", "part"), [("bbox", 0), ("segm", 1)])
def test_a_trained_models_numbers_are_pycocotools(tmp_path: Path, kind: str, part: int) -> None:
    root = shared_path("models/coco-cc-mask-detectron")
    names = ("original_bbox_results.json", "original_segmentations_results.json")
    dataset = load_dataset(root / "coco_cc.json", need_pictures=False)
    evaluator, _ = score_with_pycocotools(root / "coco_cc.json", root / names[part], kind)
    (results,) = read_result_file(root / names[part], dataset)
    assert not isinstance(results, ProposalResults)
    measured = measure_detections(results, dataset)
    ours = [*measured.overall.values(), *measured.recall.values()]
    assert ours == evaluator.stats.tolist()


@pytest.mark.parametrize("seed", range(8))
def test_random_boxes_score_as_with_pycocotools(tmp_path: Path, seed: int) -> None:
    random = np.random.default_rng(seed)
    images = [{"id": 7 * number, "file_name": f"{number}.png", "height": 200, "width": 300} for number in range(9)]
    categories = [{"id": 9, "name": "nine"}, {"id": 2, "name": "two"}, {"id": 5, "name": "five"}]
    annotations, records = [], []
    for image in images:
        for _ in range(int(random.integers(0, 7))):
            box = [*random.uniform(0, 150, 2).tolist(), *random.uniform(5, 140, 2).tolist()]
            label = int(random.choice([2, 5]))
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": image["id"],
                    "category_id": label,
                    "bbox": box,
                    "area": box[2] * box[3] * 0.8,
                    "iscrowd": int(random.random() < 0.15),
                }
            )
            for _ in range(int(random.integers(0, 4))):
                moved = (np.array(box) + random.uniform(-8, 8, 4)).clip(1).tolist()
                score = round(float(random.random()), 1)
                records.append({"image_id": image["id"], "category_id": label, "bbox": moved, "score": score})
    truth, results = tmp_path / "truth.json", tmp_path / "results.json"
    truth.write_text(json.dumps({"images": images, "categories": categories, "annotations": annotations}))
    results.write_text(json.dumps(records))
    evaluator, _ = score_with_pycocotools(truth, results, "bbox")
    dataset = load_dataset(truth, need_pictures=False)
    (found,) = read_result_file(results, dataset)
    assert not isinstance(found, ProposalResults)
    measured = measure_detections(found, dataset)
    ours = [*measured.overall.values(), *measured.recall.values()]
    assert ours == evaluator.stats.tolist()
    assert measured.per_class["nine"] == -1
    for column, name in enumerate(("two", "five", "nine")):
        precision = evaluator.eval["precision"][:, :, column, 0, -1]
        assert measured.per_class[name] == mean(precision)


def test_a_recall_to_ask_at_lies_between_the_first_and_the_second_object() -> None:
    probes = single_hit_probes(70_000)
    for objects in [*range(1, 300), 4095, 4096, 4097, 65_535, 65_536, 70_000]:
        assert 1 / objects < probes[objects.bit_length() - 1] <= 2 / objects
