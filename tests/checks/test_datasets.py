"""Datasets with every fault that one can have: all is told at once, with counts."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from run_support import CLASSES, make_spec, write_model, write_pictures

from roiline.checks.findings import Inspection
from roiline.checks.inspection import inspect_path, inspect_paths


def inspect(path: Path) -> Inspection:
    return inspect_path(str(path)).inspection


def write_json(path: Path, **content: Any) -> Path:
    path.write_text(json.dumps(content))
    return path


def change_json(path: Path, **content: Any) -> Path:
    return write_json(path, **{**json.loads(path.read_text()), **content})


def test_faults_and_oddities_of_a_json_are_all_told(tmp_path: Path) -> None:
    data = write_json(
        tmp_path / "data.json",
        images=[
            {"id": 1, "file_name": "a.jpg", "width": 10, "height": 10},
            {"id": 1, "file_name": "b.jpg", "width": 10, "height": 10},
            {"id": "7", "file_name": "c.jpg"},
            {"id": 9},
        ],
        categories=[{"id": 1, "name": "cat"}, {"id": 1, "name": "dog"}, {"id": 4, "name": "fox"}],
        annotations=[
            {"id": 5, "image_id": 1, "category_id": 9, "bbox": [0, 0, 5, 5]},
            {"id": 5, "image_id": 1, "category_id": 1, "bbox": [0, 0, 5], "area": 1, "iscrowd": 0},
            {"id": 6, "image_id": 1, "category_id": 1, "bbox": [1, 1, 10, 5], "area": 1, "iscrowd": 0},
            {"id": 7, "image_id": 1, "category_id": 1, "bbox": [-3, 1, 10, 5], "area": 1, "iscrowd": 0},
            {"id": 8, "image_id": 1, "category_id": 1, "bbox": [2, 2, 0, 5], "area": 1, "iscrowd": 0},
        ],
    )
    found = inspect(data)
    assert sorted(found.problems) == [
        "annotation of a category that is not listed: 1 (annotations[0]: category_id 9)",
        "annotation whose `bbox` is not four numbers [x, y, width, height]: 1 (annotations[1]: [0, 0, 5])",
        "category id that is used twice: 1 (1)",
        "image id that is used twice: 1 (1)",
        "image ids are integers and text in one file: 1 (1 and '7')",
        "image without a `file_name`: 1 (images[3])",
    ]
    assert list(found.notes) == [
        "image id that is text (results carry it as it is): 1 ('7')",
        "image ids with gaps (results carry these ids): 1 (2 from 1 to 9, 7 between are not used)",
        "category ids with gaps (results carry these ids): 1 (2 from 1 to 4, 2 between are not used)",
        "annotation without `iscrowd` (no crowd is taken): 1 (annotations[0])",
        "annotation without `area` (width * height of its box is taken): 1 (annotations[0])",
        "annotation id that is used twice (no result depends on it): 1 (5)",
        "box that reaches beyond its picture by one pixel (does the file count from 1?): 1 (annotations[2])",
        "box that reaches beyond its picture: 1 (annotations[3])",
        "box without width or height: 1 (annotations[4]: [2, 2, 0, 5])",
    ]


def test_a_file_without_annotations(tmp_path: Path) -> None:
    data = write_pictures(tmp_path, 3)
    content = json.loads(data.read_text())
    del content["annotations"]
    found = inspect(write_json(data, **content))
    assert found.problems == ()
    assert "no `annotations` in the file: there is no ground truth to compare with: 1 (data.json)" in found.notes
    assert (found.facts["pictures"], found.facts["pictures without boxes"]) == (3, 3)


def test_sizes_that_are_no_sizes_are_counted(tmp_path: Path) -> None:
    data = write_pictures(tmp_path, 4)
    images = json.loads(data.read_text())["images"]
    images[0] |= {"width": -1, "height": -1}
    images[1] |= {"width": 0, "height": 0}
    del images[2]["width"]
    (problem,) = inspect(change_json(data, images=images)).problems
    assert problem.startswith("image without a valid width and height (taken from the picture file): 3 (")


def test_a_picture_beyond_the_limit(tmp_path: Path) -> None:
    data = write_pictures(tmp_path, 2)
    header = struct.pack(">I4sIIBBBBB", 13, b"IHDR", 30000, 30000, 8, 2, 0, 0, 0)
    (tmp_path / "000007.png").write_bytes(b"\x89PNG\r\n\x1a\n" + header + bytes(4))
    assert inspect(data).problems == ("picture that needs a higher --max-pixels: 1 (7: 900000000 pixels)",)


def test_names_of_files(tmp_path: Path) -> None:
    names = ["plain.png", "with space.png", "кот/größe 1.png"]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(cv2.imencode(".png", np.zeros((5, 6, 3), np.uint8))[1].tobytes())
    images = [{"id": k, "file_name": name, "width": 6, "height": 5} for k, name in enumerate(names)]
    found = inspect(write_json(tmp_path / "data.json", images=images, categories=[], annotations=[]))
    assert found.problems == ()
    assert found.notes == (
        "file name with spaces (other tools may stumble over it): 2 (with space.png, кот/größe 1.png)",
        "file name with letters beyond ASCII (other tools may stumble over it): 1 (кот/größe 1.png)",
    )


def test_names_too_long_for_a_file(tmp_path: Path) -> None:
    write_pictures(tmp_path, 1)
    listing = tmp_path / "list.txt"
    listing.write_text(f"{'x' * 5000}.jpg\n{next(tmp_path.glob('*.png'))}\n")
    assert any("picture that is not there: 1" in problem for problem in inspect(listing).problems)
    listing.write_text(f"{'x' * 5000}.jpg\n")
    assert "none of the 1 pictures" in str(inspect(listing).problems)
    assert "no such file" in str(inspect(tmp_path / ("x" * 5000)).problems)


def test_a_voc_root_of_odd_files(tmp_path: Path) -> None:
    (tmp_path / "Annotations").mkdir()
    (tmp_path / "JPEGImages").mkdir()
    cv2.imwrite(str(tmp_path / "JPEGImages" / "1.jpg"), np.zeros((40, 60, 3), np.uint8))
    corners = [(0, 1, 20, 20), (1, 1, 60, 40), (5, 5, 5, 5)]
    objects = "".join(
        f"<object><name>cat</name>{'<difficult>0</difficult>' if k else ''}<bndbox><xmin>{a}</xmin><ymin>{b}</ymin>"
        f"<xmax>{c}</xmax><ymax>{d}</ymax></bndbox></object>"
        for k, (a, b, c, d) in enumerate(corners)
    )
    (tmp_path / "Annotations" / "1.xml").write_text(f"<annotation>{objects}</annotation>")
    found = inspect(tmp_path)
    assert list(found.problems) == [
        "image without a valid width and height (taken from the picture file): 1 (1)",
        "object without extent inside its picture (left out): 1 (1.xml)",
    ]
    assert list(found.notes) == [
        "object without `difficult` (not difficult is taken): 1 (1.xml)",
        "object that begins before pixel 1, where VOC begins to count (does the file count from 0?): 1 (1.xml)",
    ]


@pytest.mark.parametrize(("order", "notes"), [((0, 1, 2), 0), ((2, 1, 0), 1)])
def test_categories_in_another_order_than_the_models(tmp_path: Path, order: tuple[int, ...], notes: int) -> None:
    model, data = write_model(tmp_path / "model.onnx"), write_pictures(tmp_path / "pictures", 1)
    categories = [{"id": 10 * place, "name": CLASSES[k]} for place, k in enumerate(order, 1)]
    report = inspect_paths([str(model), str(change_json(data, categories=categories))])
    (pair,) = report.pairs
    assert pair.kind == "model with a dataset"
    assert pair.facts == {
        "paired": "by name",
        "classes to category ids": {name: 10 * (order.index(k) + 1) for k, name in enumerate(CLASSES)},
    }
    assert len(pair.notes) == notes
    if notes:
        assert "class 1 is cat, category 1 of the dataset is fox" in pair.notes[0]
        assert "class 2" not in pair.notes[0]


def test_categories_that_are_not_the_models(tmp_path: Path) -> None:
    model, data = write_model(tmp_path / "model.onnx"), write_pictures(tmp_path / "pictures", 1)
    change_json(data, categories=[{"id": 1, "name": "cat"}, {"id": 2, "name": "cow"}, {"id": 3, "name": "fox"}])
    report = inspect_paths([str(model), str(data)])
    assert not report.ok
    assert "not in the dataset: dog" in report.pairs[0].problems[0]
    assert "not in the model: cow" in report.pairs[0].problems[0]


def test_a_model_that_knows_no_names_is_paired_by_order(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model.onnx", make_spec(class_names_known=False))
    report = inspect_paths([str(write_pictures(tmp_path / "pictures", 1)), str(model)])
    (pair,) = report.pairs
    assert pair.facts["paired"] == "by order"
    assert "cannot be checked" in pair.notes[0]


def test_a_model_that_knows_no_names_cannot_be_paired_with_a_voc_root(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model.onnx", make_spec(class_names_known=False))
    root = tmp_path / "voc"
    for name in ("Annotations", "JPEGImages"):
        (root / name).mkdir(parents=True)
    cv2.imwrite(str(root / "JPEGImages" / "1.jpg"), np.zeros((40, 60, 3), np.uint8))
    rows = "".join(
        f"<object><name>{name}</name><bndbox><xmin>2</xmin><ymin>2</ymin><xmax>9</xmax><ymax>9</ymax></bndbox></object>"
        for name in CLASSES
    )
    (root / "Annotations" / "1.xml").write_text(f"<annotation>{rows}</annotation>")
    (pair,) = inspect_paths([str(root), str(model)]).pairs
    assert "does not say the order of its classes" in pair.problems[0]
