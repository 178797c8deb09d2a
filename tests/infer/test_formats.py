from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shared_data import shared_path

from roiline.core.errors import DataError
from roiline.core.structures import Detections, Proposals, Result
from roiline.infer.formats import result_name, write_coco_boxes, write_detection_pickle, write_proposal_pickle
from roiline.infer.merge import DetectionTable, FailedImage, MergedResults
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


def load(path: Path) -> Any:
    with path.open("rb") as stream:
        return pickle.load(stream)


def detections_of(golden: Any, ids: list[int]) -> list[Result | Failure]:
    """Detectron's nested lists as one result an image, its rows in class order."""
    results: list[Result | Failure] = []
    for place, image_id in enumerate(ids):
        cells = [golden["all_boxes"][c][place] for c in range(1, len(golden["all_boxes"]))]
        rows = np.concatenate(cells).astype(np.float32)
        classes = np.concatenate([np.full(len(cell), c, np.int64) for c, cell in enumerate(cells, 1)])
        results.append(Detections(image_id, rows[:, :4], rows[:, 4], classes))
    return results


@pytest.mark.parametrize("run", ["mask", "fast", "mask_thresh", "mask_catshuffled"])
def test_detections_of_the_original_come_out_as_its_own_files(tmp_path: Path, run: str) -> None:
    golden = shared_path(f"golden/dataset/{run}")
    expected = load(golden / "detections.pkl")
    name = "coco_cc12_catshuffled.json" if run == "mask_catshuffled" else "coco_cc12.json"
    dataset = json.loads((golden.parent / name).read_text())
    ids = sorted(image["id"] for image in dataset["images"])
    results = in_shards(tmp_path, "detections", detections_of(expected, ids))
    with DetectionTable(results, num_classes=20, order=list(range(20)), folder=tmp_path) as table:
        write_detection_pickle(tmp_path / "detections.pkl", table, config_yaml=expected["cfg"])
        categories = [category["id"] for category in dataset["categories"]]
        write_coco_boxes(tmp_path / "bbox.json", table, category_ids=categories, plus_one=True)
    got = load(tmp_path / "detections.pkl")
    assert list(got) == list(expected)
    assert got["cfg"] == expected["cfg"]
    assert got["all_boxes"][0] == [[]] * 12
    for mine, theirs in zip(got["all_boxes"][1:], expected["all_boxes"][1:], strict=True):
        for cell, other in zip(mine, theirs, strict=True):
            assert cell.dtype == np.float32
            assert cell.shape == other.shape
            assert np.array_equal(cell, other)
    assert got["all_segms"] == got["all_keyps"] == [[[] for _ in range(12)] for _ in range(20)]
    (file,) = golden.glob("bbox_*_results.json")
    assert (tmp_path / "bbox.json").read_bytes() == file.read_bytes()


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
        cells = [[cell.tolist() for cell in table.cells(c)] for c in (1, 2, 3)]
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
    ("task", "form", "named", "name"),
    [
        ("proposals", "detectron", None, "rpn_proposals.pkl"),
        ("proposals", "detectron", (0, 4), "rpn_proposals_range_0_4.pkl"),
        ("detections", "detectron", None, "detections.pkl"),
        ("detections", "detectron", (8, 12), "detection_range_8_12.pkl"),
        ("detections", "coco", (8, 12), "bbox_results.json"),
    ],
)
def test_file_names(task: Any, form: str, named: tuple[int, int] | None, name: str) -> None:
    assert result_name(task, form, named) == name
