"""Parquet files read back with pyarrow, and how its absence is said."""

from __future__ import annotations

import importlib.util
import json
import pickle
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_support import CLASSES, make_request, write_model, write_pictures

from roiline.core.errors import UsageError
from roiline.core.structures import Detections, Proposals
from roiline.infer import parquet_results
from roiline.infer.manifest import DatasetRecord, Manifest, ResultClass, RunSettings
from roiline.infer.merge import MergedResults
from roiline.infer.outputs import choose_formats
from roiline.infer.parquet_results import write_parquet
from roiline.infer.request import RunOverrides
from roiline.infer.run import run_dataset
from roiline.infer.shards import Failure, ShardFile, shard_path, write_shard

needs_pyarrow = pytest.mark.skipif(importlib.util.find_spec("pyarrow") is None, reason="pyarrow is not installed")


def manifest_of(task: Any, images: int, classes: int = 2) -> Manifest:
    settings = RunSettings(
        "0" * 64, "fake", "fp32", task, "0" * 64, (0, images), "ignore", "exact", None, RunOverrides()
    )
    named = tuple(ResultClass(10 * k, f"class {k}") for k in range(1, classes + 1)) if task == "detections" else ()
    order = (0, 2, 1) if task == "detections" else (0,)
    record = DatasetRecord("d", "coco", "d.json", images)
    return Manifest(1, settings.identity, settings, record, named, order, True, "", (), None, 0.0, False)


def read(path: Path) -> Any:
    import pyarrow.parquet as pq

    return pq.ParquetFile(path)


@needs_pyarrow
def test_every_image_is_a_row_also_those_without_boxes(tmp_path: Path) -> None:
    boxes = np.arange(8, dtype=np.float32).reshape(2, 4)
    points = np.arange(8, dtype=np.float32).reshape(1, 4, 2)
    rows = Detections(3, boxes, np.float32([0.5, 0.25]), np.array([1, 2]), masks=(b"04", b"PlZ8"), size_hw=(5, 6))
    rows = replace(rows, keypoints=points, keypoint_rows=Detections(3, boxes[:1], np.float32([0.75]), np.array([2])))
    none = Detections(5, np.zeros((0, 4), np.float32), np.zeros(0, np.float32), np.zeros(0, np.int64))
    shard = shard_path(tmp_path, 0)
    write_shard(
        shard,
        identity="i",
        index=0,
        task="detections",
        results=[(1, none), (2, Failure(8, "gone")), (0, rows)],
        files={0: "d/a b.jpg", 1: "d/ä.jpg", 2: "d/c.jpg"},
        degraded={1: "cut short"},
    )
    results = MergedResults([(0, [ShardFile(shard)])], images=3)
    write_parquet(tmp_path / "d.parquet", results, manifest_of("detections", 3))
    found = read(tmp_path / "d.parquet").read().to_pylist()
    assert [(row["image_id"], row["file_name"], row["failure"], row["degraded"]) for row in found] == [
        (3, "d/a b.jpg", None, None),
        (5, "d/ä.jpg", None, "cut short"),
        (8, "d/c.jpg", "gone", None),
    ]
    assert found[0]["boxes"] == boxes.tolist()
    assert found[0]["scores"] == [0.5, 0.25]
    assert found[0]["category_ids"] == [20, 10], "the model's classes are the dataset's in another order"
    assert found[0]["mask_size"] == [5, 6]
    assert found[0]["masks"][1] == {"category_id": 10, "score": 0.25, "counts": "PlZ8"}
    assert found[0]["keypoints"] == [{"category_id": 10, "score": 0.75, "points": points.reshape(-1).tolist()}]
    for row in found[1:]:
        assert (row["boxes"], row["scores"], row["category_ids"], row["masks"], row["keypoints"]) == (
            [],
            [],
            [],
            [],
            [],
        )
        assert row["mask_size"] is None
    described = json.loads(read(tmp_path / "d.parquet").schema_arrow.metadata[b"roiline"])
    assert described["exif"] == "ignore"
    assert described["categories"] == [{"id": 10, "name": "class 1"}, {"id": 20, "name": "class 2"}]


@needs_pyarrow
@pytest.mark.parametrize("ids", [[7, 2**40, 3], ["a", "b c", "ö"]])
def test_ids_out_are_ids_in_over_many_row_groups(tmp_path: Path, ids: list[Any], monkeypatch: Any) -> None:
    monkeypatch.setattr(parquet_results, "_GROUP_IMAGES", 2)
    shard = shard_path(tmp_path, 0)
    one = np.ones((1, 4), np.float32)
    results = [(place, Proposals(image_id, place * one, np.float32([0.5]))) for place, image_id in enumerate(ids)]
    write_shard(shard, identity="i", index=0, task="proposals", results=results)
    write_parquet(
        tmp_path / "p.parquet", MergedResults([(0, [ShardFile(shard)])], images=3), manifest_of("proposals", 3)
    )
    file = read(tmp_path / "p.parquet")
    assert file.num_row_groups == 2
    assert file.schema_arrow.names == ["image_id", "file_name", "failure", "degraded", "boxes", "scores"]
    table = file.read().to_pylist()
    assert [row["image_id"] for row in table] == (ids)
    assert [row["boxes"] for row in table] == [[[float(place)] * 4] for place in range(3)]


@needs_pyarrow
def test_a_run_writes_what_its_other_formats_hold(tmp_path: Path) -> None:
    write_model(tmp_path / "model.onnx")
    write_pictures(tmp_path / "pictures", 6)
    formats = ("detectron", "parquet")
    run_dataset(make_request(tmp_path, tmp_path / "a", formats=formats), progress=False)
    run_dataset(make_request(tmp_path, tmp_path / "b", formats=("parquet",), workers=2, batch_size=3), progress=False)
    assert (tmp_path / "a" / "detections.parquet").read_bytes() == (tmp_path / "b" / "detections.parquet").read_bytes()
    boxes = pickle.loads((tmp_path / "a" / "detections.pkl").read_bytes())["all_boxes"]
    for place, row in enumerate(read(tmp_path / "a" / "detections.parquet").read().to_pylist()):
        for label in range(1, len(CLASSES) + 1):
            chosen = [i for i, category in enumerate(row["category_ids"]) if category == 10 * label]
            cell = [[*row["boxes"][i], row["scores"][i]] for i in chosen]
            assert cell == boxes[label][place].tolist()
        assert row["file_name"].startswith("pictures/")


def test_without_the_library_the_run_does_not_start(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"needs pyarrow.*roiline\[parquet\]"):
        choose_formats("detections", ["parquet"])
    assert choose_formats("detections", ["coco"]) == ("coco",)
