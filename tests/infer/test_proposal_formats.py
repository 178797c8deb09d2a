"""Proposal files of other frameworks, read back as their own loaders read them."""

from __future__ import annotations

import os.path
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_support import make_request, write_model, write_pictures

from roiline.core.errors import DataError
from roiline.infer.datasets import load_dataset
from roiline.infer.merge import MergedResults
from roiline.infer.outputs import open_shards
from roiline.infer.proposal_files import load_proposal_file, read_proposal_file
from roiline.infer.proposal_formats import check_file_names
from roiline.infer.request import DataSource
from roiline.infer.run import run_dataset
from roiline.report.results import read_results

IMAGES = 7
BROKEN = 16


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of proposals in every format, one picture of which cannot be read."""
    folder = tmp_path_factory.mktemp("proposals")
    write_model(folder / "model.onnx")
    write_pictures(folder / "pictures", IMAGES)
    (folder / "pictures" / f"{BROKEN:06d}.png").write_bytes(b"not a picture")
    formats = ("detectron", "detectron2", "mmdet")
    run_dataset(make_request(folder, folder / "out", task="proposals", formats=formats), progress=False)
    return folder


def dataset_of(root: Path) -> Any:
    return load_dataset(root / "pictures" / "data.json")


def results_of(root: Path) -> MergedResults:
    from roiline.infer.manifest import read_manifest

    manifest = read_manifest(root / "out")
    assert manifest is not None
    return MergedResults([(0, open_shards(root / "out", manifest))], images=IMAGES)


def load(path: Path) -> Any:
    with path.open("rb") as stream:
        return pickle.load(stream, encoding="latin1")


def read_as_detectron2(file: Path, records: list[dict[str, Any]]) -> None:
    """Gives records their proposals by detectron2's rule: rows are found by the text of ids, and sorted by score."""
    content = load(file)
    for old, new in (("indexes", "ids"), ("scores", "objectness_logits")):
        if old in content:
            content[new] = content.pop(old)
    place = {str(image_id): index for index, image_id in enumerate(content["ids"])}
    for record in records:
        index = place[str(record["image_id"])]
        order = content["objectness_logits"][index].argsort()[::-1]
        record["boxes"] = content["boxes"][index][order]
        record["scores"] = content["objectness_logits"][index][order]
        record["mode"] = content["bbox_mode"]


def read_as_mmdet(file: Path, infos: list[dict[str, Any]]) -> None:
    """Gives data infos their proposals by the rule of mmdet 3: by the picture's folder and name; as many pictures as infos."""
    content = load(file)
    assert len(content) == len(infos)
    for info in infos:
        folder, name = os.path.split(info["img_path"])
        proposals = content[os.path.join(os.path.split(folder)[-1], name)]
        assert isinstance(proposals, dict)
        assert proposals["bboxes"].shape[1] == 4
        assert len(proposals["bboxes"]) == len(proposals["scores"])
        info |= {"boxes": proposals["bboxes"].astype(np.float32), "scores": proposals["scores"].astype(np.float32)}


def test_detectron2_reads_what_the_run_found(root: Path) -> None:
    results = results_of(root)
    records = [{"image_id": entry.image_id} for entry in dataset_of(root).entries]
    read_as_detectron2(root / "out" / "box_proposals.pkl", records)
    assert list(results.image_ids) == [record["image_id"] for record in records]
    assert {record["mode"] for record in records} == {0}
    for record, rows in zip(records, results, strict=True):
        order = rows.scores.argsort()[::-1]
        assert record["boxes"].dtype == np.float32
        np.testing.assert_array_equal(record["boxes"], rows.boxes[order])
        np.testing.assert_array_equal(record["scores"], rows.scores[order])
    assert [len(record["boxes"]) == 0 for record in records] == [one["image_id"] == BROKEN for one in records]


def test_detectron2_finds_the_same_in_both_of_its_forms(root: Path) -> None:
    ids = [{"image_id": entry.image_id} for entry in dataset_of(root).entries]
    both = [dict(one) for one in ids], [dict(one) for one in ids]
    read_as_detectron2(root / "out" / "box_proposals.pkl", both[0])
    old = load(root / "out" / "rpn_proposals.pkl")
    (root / "old.pkl").write_bytes(pickle.dumps({**old, "bbox_mode": 0}))
    read_as_detectron2(root / "old.pkl", both[1])
    for mine, theirs in zip(*both, strict=True):
        np.testing.assert_array_equal(mine["boxes"], theirs["boxes"])


def test_mmdet_reads_what_the_run_found(root: Path) -> None:
    results = results_of(root)
    infos = [{"img_path": str(entry.path), "id": entry.image_id} for entry in dataset_of(root).entries]
    read_as_mmdet(root / "out" / "proposals.pkl", infos)
    assert list(results.image_ids) == [info["id"] for info in infos]
    for info, rows in zip(infos, results, strict=True):
        np.testing.assert_array_equal(info["boxes"], rows.boxes)
        np.testing.assert_array_equal(info["scores"], rows.scores)


@pytest.mark.parametrize("name", ["box_proposals.pkl", "proposals.pkl", "rpn_proposals.pkl"])
def test_every_format_serves_as_given_proposals_and_as_results(root: Path, name: str) -> None:
    dataset, results = dataset_of(root), results_of(root)
    given = load_proposal_file(root / "out" / name, dataset.entries, limit=0)
    expected = load_proposal_file(root / "out" / "rpn_proposals.pkl", dataset.entries, limit=0)
    for mine, theirs in zip(given, expected, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    (read,) = read_results(root / "out" / name, dataset)
    for one, image_id, rows in zip(read.proposals, results.image_ids, results, strict=True):
        assert one.image_id == image_id
        np.testing.assert_array_equal(one.boxes, rows.boxes)


def test_a_file_by_names_that_lacks_a_picture_is_refused(root: Path, tmp_path: Path) -> None:
    content = load(root / "out" / "proposals.pkl")
    del content["pictures/000007.png"]
    (tmp_path / "p.pkl").write_bytes(pickle.dumps(content))
    assert read_proposal_file(tmp_path / "p.pkl").by_file
    with pytest.raises(DataError, match=r"no proposals for 1 of the dataset's 7 pictures: 'pictures/000007\.png'"):
        load_proposal_file(tmp_path / "p.pkl", dataset_of(root).entries, limit=0)


def test_ranges_name_their_files(root: Path, tmp_path: Path) -> None:
    request = make_request(root, tmp_path / "out", task="proposals", formats=("detectron2", "mmdet"), id_range=(2, 5))
    names = [path.name for path in run_dataset(request, progress=False).files]
    assert names == ["box_proposals_range_2_5.pkl", "proposals_range_2_5.pkl"]
    content = load(tmp_path / "out" / names[0])
    assert content["ids"] == [13, 16, 19]


def test_pictures_of_one_folder_and_name_are_refused_before_the_run(root: Path, tmp_path: Path) -> None:
    for place in ("a/same", "b/same"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "1.png").write_bytes((root / "pictures" / "000007.png").read_bytes())
    request = make_request(root, tmp_path / "out", task="proposals", formats=("mmdet",))
    request = replace(request, data=(DataSource(str(tmp_path / "**" / "*.png")),))
    with pytest.raises(DataError, match=r"several have one: same/1\.png"):
        run_dataset(request, progress=False)
    assert not list((tmp_path / "out").glob("shards/*"))
    check_file_names(["a/1", "b/1"])
