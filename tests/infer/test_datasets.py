from __future__ import annotations

import dataclasses
import json

import cv2
import numpy as np
import pytest

from roiline.core.errors import DataError, UsageError
from roiline.infer.datasets import load_dataset, with_sizes


@pytest.fixture
def coco(tmp_path):
    cv2.imwrite(str(tmp_path / "p.png"), np.zeros((20, 30, 3), np.uint8))
    images = [{"id": k, "file_name": "p.png", "height": 20, "width": 30} for k in (8, 3, 11, 5, 2, 7)]
    path = tmp_path / "six.json"
    path.write_text(json.dumps({"images": images, "categories": [{"id": 1, "name": "a"}]}))
    return path


def ids(dataset):
    return [entry.image_id for entry in dataset.entries]


def rewrite(path, change):
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def test_the_whole_is_in_ascending_order(coco):
    dataset = load_dataset(coco)
    assert ids(dataset) == [2, 3, 5, 7, 8, 11]
    assert (dataset.total, dataset.id_range, dataset.problems) == (6, (0, 6), ())


@pytest.mark.parametrize(
    ("id_range", "limit", "want"),
    [
        ((0, 4), None, [2, 3, 5, 7]),
        ((4, 6), None, [8, 11]),
        (None, 2, [2, 3]),
        ((2, 6), 2, [5, 7]),
        (None, 99, [2, 3, 5, 7, 8, 11]),
    ],
)
def test_ranges_are_half_open_positions(coco, id_range, limit, want):
    dataset = load_dataset(coco, id_range=id_range, limit=limit)
    assert ids(dataset) == want
    assert dataset.total == 6
    assert dataset.id_range[1] - dataset.id_range[0] == len(want)


def test_a_range_beyond_the_end_is_cut_and_noted(coco):
    dataset = load_dataset(coco, id_range=(4, 10))
    assert ids(dataset) == [8, 11]
    assert dataset.problems == ("range that ends after the last picture (cut to 6): 1 (4 10)",)


@pytest.mark.parametrize("id_range", [(3, 3), (4, 2), (-1, 3), (6, 8)])
def test_a_range_of_nothing_is_a_wrong_call(coco, id_range):
    with pytest.raises(UsageError, match=r"selects nothing; expected 0 <= START < END, and START below 6"):
        load_dataset(coco, id_range=id_range)


@pytest.mark.parametrize("limit", [0, -5])
def test_a_limit_of_nothing_is_a_wrong_call(coco, limit):
    with pytest.raises(UsageError, match="at least 1"):
        load_dataset(coco, limit=limit)


def test_ranges_share_the_fingerprint_of_the_whole(coco):
    whole = load_dataset(coco)
    assert len(whole.fingerprint) == 64
    assert load_dataset(coco, id_range=(1, 3)).fingerprint == whole.fingerprint
    assert load_dataset(coco, limit=1).fingerprint == whole.fingerprint


def test_the_fingerprint_does_not_depend_on_places_or_order(coco, tmp_path):
    before = load_dataset(coco).fingerprint
    rewrite(coco, lambda document: document["images"].reverse())
    moved = tmp_path / "moved"
    moved.mkdir()
    for name in ("six.json", "p.png"):
        (moved / name).write_bytes((tmp_path / name).read_bytes())
    assert load_dataset(moved / "six.json").fingerprint == before


@pytest.mark.parametrize(
    "change",
    [
        lambda document: document["images"].pop(),
        lambda document: document["images"][0].update(id=9),
        lambda document: document["images"][0].update(id=800),
        lambda document: document["images"][0].update(height=21),
        lambda document: document["images"][0].update(file_name="q.png"),
        lambda document: document["categories"][0].update(id=2),
        lambda document: document["categories"][0].update(name="b"),
        lambda document: document["categories"].append({"id": 2, "name": "b"}),
    ],
)
def test_the_fingerprint_changes_with_what_determines_answers(coco, change):
    before = load_dataset(coco).fingerprint
    rewrite(coco, change)
    assert load_dataset(coco).fingerprint != before


def test_options_of_other_kinds_are_wrong_calls(coco, tmp_path):
    with pytest.raises(UsageError, match="--split names a split of a VOC root"):
        load_dataset(coco, split="val")
    with pytest.raises(UsageError, match="--images says where the pictures of a COCO json are"):
        load_dataset(tmp_path, images=tmp_path)


def test_nothing_there_is_an_error(tmp_path):
    with pytest.raises(DataError, match="nowhere: no such dataset"):
        load_dataset(tmp_path / "nowhere")


def test_only_unknown_sizes_are_read(coco):
    entries = load_dataset(coco).entries
    assert with_sizes(entries) == entries
    mixed = (dataclasses.replace(entries[0], height=999), dataclasses.replace(entries[1], height=0))
    assert [(entry.height, entry.width) for entry in with_sizes(mixed)] == [(999, 30), (20, 30)]
