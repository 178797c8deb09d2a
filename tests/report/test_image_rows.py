from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from parts_support import PARTS
from run_support import make_request, make_spec, write_model, write_pictures

from roiline.core.errors import DataError
from roiline.core.structures import Proposals
from roiline.infer.datasets import load_dataset
from roiline.infer.result_rows import Rows
from roiline.infer.roidb import Dataset
from roiline.infer.run import run_dataset
from roiline.report.image_rows import read_image_rows, split_by_image
from roiline.report.results import read_results

RECORD = {"image_id": 9, "category_id": 20, "bbox": [1, 2, 11, 21], "score": 0.5}


def read_rows(path: Path, dataset: Dataset) -> list[Rows]:
    entries, found = read_image_rows(path, dataset)
    rows = [one for one in found if isinstance(one, Rows)]
    assert len(rows) == len(entries) == len(dataset.entries)
    return rows


def test_boxes_by_image_have_inclusive_corners(tmp_path: Path, dataset: Dataset) -> None:
    file = tmp_path / "r.json"
    file.write_text(json.dumps([RECORD, {**RECORD, "image_id": 4}, {**RECORD, "score": 0.9}]))
    first, second, third = read_rows(file, dataset)
    np.testing.assert_array_equal(second.boxes, [[1, 2, 11, 22]] * 2)
    np.testing.assert_allclose(second.scores, [0.5, 0.9])
    assert second.classes.tolist() == [2, 2]
    assert [len(first.boxes), len(third.boxes)] == [1, 0]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Dataset]:
    """A run with masks and keypoints whose classes are in another order than the dataset's categories."""
    root = tmp_path_factory.mktemp("run")
    write_model(root / "model.onnx", make_spec(**PARTS, class_names=("fox", "cat", "dog")))
    write_pictures(root / "pictures", 6)
    run_dataset(make_request(root, root / "out", predictor="parts_support:open_with_parts"), progress=False)
    return root / "out", load_dataset(root / "pictures" / "data.json", images=root / "pictures")


def test_shards_and_files_say_the_same(run: tuple[Path, Dataset], tmp_path: Path) -> None:
    out, dataset = run
    copy = tmp_path / "copy"
    shutil.copytree(out, copy)
    shutil.rmtree(copy / "shards")
    from_shards, from_lists = read_rows(out, dataset), read_rows(copy, dataset)
    from_pickle = read_rows(out / "detections.pkl", dataset)
    assert sum(len(rows.boxes) for rows in from_shards) > 6
    for rows, listed, pickled in zip(from_shards, from_lists, from_pickle, strict=True):
        order = np.argsort(rows.classes, kind="stable")
        for other in (listed, pickled):
            assert other.classes.tolist() == rows.classes[order].tolist()
            np.testing.assert_allclose(other.boxes, rows.boxes[order], atol=1e-4)
            assert other.masks.counts == tuple(rows.masks.counts[row] for row in order)
            assert other.masks.size_hw == (rows.masks.size_hw if len(order) else (0, 0))
            assert other.masks.classes.tolist() == other.keypoints.classes.tolist() == other.classes.tolist()
            np.testing.assert_array_equal(other.keypoints.points[:, :2], rows.keypoints.points[order, :2])
        if len(order):
            np.testing.assert_array_equal(pickled.keypoints.points[:, 2], rows.keypoints.points[order, 2])
            np.testing.assert_array_equal(pickled.keypoints.scores, rows.scores[order])
            assert np.isposinf(listed.keypoints.points[:, 2]).all()


def test_shards_of_other_pictures_are_refused(run: tuple[Path, Dataset], dataset: Dataset) -> None:
    with pytest.raises(DataError, match="over other pictures than those of dataset `pets`"):
        read_rows(run[0], dataset)


def test_proposals_come_as_they_are(tmp_path: Path, dataset: Dataset) -> None:
    import pickle

    boxes = [np.zeros((1, 4), np.float32)] * 3
    content = {"boxes": boxes, "scores": [np.ones(1, np.float32)] * 3, "ids": [4, 9, 12]}
    (tmp_path / "rpn_proposals.pkl").write_bytes(pickle.dumps(content, protocol=2))
    _, found = read_image_rows(tmp_path, dataset)
    assert [type(one) for one in found] == [Proposals] * 3


def test_no_detections_give_no_rows(tmp_path: Path, dataset: Dataset) -> None:
    (tmp_path / "bbox_results.json").write_text("[]")
    (results,) = read_results(tmp_path, dataset)
    assert not hasattr(results, "proposals")
    assert [len(rows.boxes) for rows in split_by_image([results])] == [0, 0, 0]  # type: ignore[list-item]
