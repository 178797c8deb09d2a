from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from parts_support import PARTS
from run_support import make_request, make_spec, result_bytes, write_model, write_pictures

from roiline.core.rle import decode_rle
from roiline.infer.outputs import merge_outputs
from roiline.infer.run import run_dataset

IMAGES = 11
RANGES = ((0, 5), (5, 11))
FILES = {
    "bbox_results.json",
    "segmentations_results.json",
    "keypoints_results.json",
    "detections.pkl",
    "failed.json",
}


def run(root: Path, out: Path, **changes: Any) -> Path:
    request = make_request(root, out, predictor="parts_support:open_with_parts", **changes)
    assert run_dataset(request, progress=False).exit_code == 0
    return out


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole run with masks and keypoints."""
    folder = tmp_path_factory.mktemp("parts")
    write_model(folder / "model.onnx", make_spec(**PARTS))
    write_pictures(folder / "pictures", IMAGES)
    run(folder, folder / "whole")
    return folder


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def test_a_run_leaves_masks_and_keypoints_in_every_format(root: Path) -> None:
    assert set(result_bytes(root / "whole")) == FILES
    boxes, masks, keypoints = (
        read(root / "whole" / f"{kind}_results.json") for kind in ("bbox", "segmentations", "keypoints")
    )
    sizes = {
        image["id"]: [image["height"], image["width"]] for image in read(root / "pictures" / "data.json")["images"]
    }
    assert len(boxes) > IMAGES
    for box, mask, points in zip(boxes, masks, keypoints, strict=True):
        for key in ("image_id", "category_id"):
            assert box[key] == mask[key] == points[key]
        assert mask["score"] == box["score"]
        assert mask["segmentation"]["size"] == sizes[box["image_id"]]
        assert decode_rle(mask["segmentation"]["counts"], *mask["segmentation"]["size"]).any()
        assert points["keypoints"][:3] == [box["bbox"][0], box["bbox"][1], 1]
        assert points["score"] == pytest.approx((4 * box["score"] + 4) / 3)


def test_the_pickle_has_the_same(root: Path) -> None:
    with (root / "whole" / "detections.pkl").open("rb") as stream:
        content = pickle.load(stream)
    masks = read(root / "whole" / "segmentations_results.json")
    flat = [mask for cells in content["all_segms"] for cell in cells for mask in cell]
    assert [{**mask, "counts": mask["counts"].decode()} for mask in flat] == [mask["segmentation"] for mask in masks]
    points = [one for cells in content["all_keyps"] for cell in cells for one in cell]
    assert len(points) == len(masks)
    assert {(one.shape, str(one.dtype)) for one in points} == {((4, 3), "float32")}
    assert [len(cell) for cells in content["all_segms"] for cell in cells] == [
        len(cell) for cells in content["all_boxes"] for cell in cells
    ]


def test_workers_batches_and_ranges_change_no_byte(root: Path, tmp_path: Path) -> None:
    whole = result_bytes(root / "whole")
    assert result_bytes(run(root, tmp_path / "two", workers=2, batch_size=3)) == whole
    parts = [run(root, tmp_path / f"{ends[0]}", id_range=ends) for ends in RANGES]
    merge_outputs(parts, tmp_path / "joined", formats=("coco", "detectron"))
    assert result_bytes(tmp_path / "joined") == whole


def test_starting_over_removes_what_was_there(root: Path, tmp_path: Path) -> None:
    out = run(root, tmp_path / "out")
    run(root, out, fresh=True, formats=("detectron",), id_range=(0, 2))
    assert set(result_bytes(out)) == {"detection_range_0_2.pkl", "failed.json"}


def test_masks_of_many_images_leave_memory_flat(tmp_path: Path) -> None:
    """Scratch files hold the rows: what Python keeps does not grow with the masks."""
    import tracemalloc

    from roiline.core.structures import Detections
    from roiline.infer.detection_table import DetectionTable
    from roiline.infer.formats import write_coco_masks, write_detection_pickle
    from roiline.infer.merge import MergedResults
    from roiline.infer.shards import ShardFile, shard_path, write_shard

    counts = b"0" * 20_000
    shards = []
    for index in range(60):
        rows = Detections(
            index,
            np.zeros((20, 4), np.float32),
            np.zeros(20, np.float32),
            np.repeat([1, 2], 10),
            masks=(counts,) * 20,
            size_hw=(9, 9),
        )
        path = shard_path(tmp_path, index)
        write_shard(path, identity="i", index=index, task="detections", results=[(index, rows)])
        shards.append(ShardFile(path))
    tracemalloc.start()
    results = MergedResults([(0, shards)], images=60)
    with DetectionTable(results, num_classes=3, order=[0, 1, 2], folder=tmp_path) as table:
        write_coco_masks(tmp_path / "m.json", table, category_ids=[1, 2])
        write_detection_pickle(tmp_path / "d.pkl", table, config_yaml="")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (tmp_path / "m.json").stat().st_size > 60 * 20 * len(counts)
    assert peak < 4_000_000
    assert not list(tmp_path.glob(".rows*"))
