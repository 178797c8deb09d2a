"""The gallery's files and the numbers in its page; what the page does with them is tried in a browser beside."""

from __future__ import annotations

import json
import pickle
import re
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from roiline.core.errors import DataError, UsageError
from roiline.core.rle import encode_mask
from roiline.infer.datasets import load_dataset
from roiline.infer.result_rows import KeypointRows, MaskRows, Rows
from roiline.infer.roidb import Dataset
from roiline.report.drawn_results import DrawingRequest
from roiline.report.gallery.content import describe_picture
from roiline.report.gallery.making import make_gallery


def record(image_id: int, box: list[float], score: float, category: int = 30) -> dict[str, Any]:
    return {"image_id": image_id, "category_id": category, "bbox": box, "score": score}


def write(path: Path, records: list[dict[str, Any]]) -> Path:
    path.write_text(json.dumps(records))
    return path


def content_of(page: Path) -> dict[str, Any]:
    (found,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page.read_text(), re.DOTALL)
    return json.loads(found)


def test_boxes_name_their_partners_in_the_other_run(tmp_path: Path, dataset: Dataset) -> None:
    a = write(tmp_path / "a.json", [record(4, [10, 10, 20, 20], 0.9), record(4, [40, 20, 30, 30], 0.8, 20)])
    b = write(tmp_path / "b.json", [record(4, [11, 10, 20, 20], 0.4), record(4, [10, 10, 20, 20], 0.3, 20)])
    made = make_gallery(a, dataset, tmp_path / "out", DrawingRequest(ground_truth=True), against=b)
    content = content_of(made.page)
    assert (content["names"], content["classes"], content["kind"]) == (
        ["a.json", "b.json"],
        ["cat", "dog"],
        "detections",
    )
    picture = content["pictures"][0]
    assert [side["boxes"] for side in picture["sides"]] == [
        [[1, 0.9, 10, 10, 29, 29, 0], [2, 0.8, 40, 20, 69, 49, -1]],
        [[1, 0.4, 11, 10, 30, 29, 0], [2, 0.3, 10, 10, 29, 29, -1]],
    ]
    assert len(picture["truth"]["boxes"]) == 2
    assert [one["src"] for one in content["pictures"]] == [f"pictures/p{key}.jpg" for key in (4, 9, 12)]
    assert (picture["h"], picture["w"]) == (60, 80)
    assert cv2.imread(str(tmp_path / "out" / "pictures" / "p4.jpg")).shape == (60, 80, 3)


def test_outlines_and_keypoints_are_in_original_pixels() -> None:
    pixels = np.zeros((60, 80), np.bool_)
    pixels[10:31, 20:51] = True
    masks = MaskRows(np.float32([0.9]), np.array([2]), (encode_mask(pixels),), (60, 80))
    points = np.array([[[5, 9], [6, 8], [3, 1], [1, 1]]], np.float32)
    rows = Rows(
        np.zeros((0, 4), np.float32),
        np.zeros(0, np.float32),
        np.zeros(0, np.int64),
        masks,
        KeypointRows(np.float32([0.8]), np.array([1]), points),
    )
    entry = load_entry(60, 80)
    (side,) = describe_picture(entry, "x.jpg", (60, 80), [rows], None)["sides"]
    label, score, path = side["masks"][0]
    corners = {tuple(map(int, pair.split())) for pair in re.findall(r"\d+ \d+", path)}
    assert (label, score, corners) == (2, 0.9, {(20, 10), (50, 10), (50, 30), (20, 30)})
    assert side["keypoints"] == [[1, 0.8, [[5, 6, 1], [9, 8, 0]]]]


def load_entry(height: int, width: int) -> Any:
    from roiline.core.structures import RoidbEntry

    return RoidbEntry(7, Path("x.jpg"), height, width)


def test_names_cannot_break_the_page(tmp_path: Path, dataset: Dataset) -> None:
    assert dataset.annotation_file is not None
    content = json.loads(dataset.annotation_file.read_text())
    content["categories"][0]["name"] = "</script><b>&"
    path = dataset.entries[0].path.rename(dataset.root / "a #1 100%.png")
    content["images"][0]["file_name"] = path.name
    (tmp_path / "odd.json").write_text(json.dumps(content))
    odd = load_dataset(tmp_path / "odd.json", images=dataset.root)
    made = make_gallery(
        write(tmp_path / "a.json", [record(4, [1, 1, 9, 9], 0.9)]), odd, tmp_path / "out", DrawingRequest()
    )
    page = made.page.read_text()
    assert page.count("</script>") == 2
    assert "<b>&" not in page
    assert content_of(made.page)["classes"][0] == "</script><b>&"
    assert content_of(made.page)["pictures"][0]["src"] == "pictures/a%20%231%20100%25.jpg"


def test_low_scores_are_left_out_unless_they_are_asked_for(tmp_path: Path, dataset: Dataset) -> None:
    a = write(tmp_path / "a.json", [record(4, [1, 1, 9, 9], score) for score in (0.9, 0.04, 0.01)])
    for thresh, count in ((None, 1), (0.02, 2)):
        made = make_gallery(a, dataset, tmp_path / str(count), DrawingRequest(thresh=thresh))
        content = content_of(made.page)
        assert len(content["pictures"][0]["sides"][0]["boxes"]) == count
        assert content["thresh"] == (0.7 if thresh is None else thresh)


def test_proposals_are_the_best_of_each_picture(tmp_path: Path, dataset: Dataset) -> None:
    boxes = np.arange(40, dtype=np.float32).reshape(10, 4)
    proposals = {"boxes": [boxes] * 3, "scores": [np.linspace(0, 1, 10, dtype=np.float32)] * 3, "ids": [4, 9, 12]}
    file = tmp_path / "rpn_proposals.pkl"
    file.write_bytes(pickle.dumps(proposals))
    content = content_of(make_gallery(file, dataset, tmp_path / "out", DrawingRequest(top=3)).page)
    assert content["kind"] == "proposals"
    assert [box[1] for box in content["pictures"][0]["sides"][0]["boxes"]] == [1, 0.8889, 0.7778]
    detections = write(tmp_path / "a.json", [record(4, [1, 1, 9, 9], 0.9)])
    with pytest.raises(DataError, match="one has detections, the other proposals"):
        make_gallery(file, dataset, tmp_path / "two", DrawingRequest(), against=detections)


def test_what_cannot_be_read_is_named(tmp_path: Path, dataset: Dataset) -> None:
    a = write(tmp_path / "a.json", [record(4, [1, 1, 9, 9], 0.9)])
    (dataset.root / "p9.png").write_bytes(b"no picture")
    made = make_gallery(a, dataset, tmp_path / "out", DrawingRequest())
    assert (made.pictures, [key for key, _ in made.failed]) == (2, [9])
    for path in dataset.root.iterdir():
        path.write_bytes(b"no picture")
    with pytest.raises(DataError, match="none of the 3 pictures"):
        make_gallery(a, dataset, tmp_path / "none", DrawingRequest())


def test_the_datasets_own_pictures_are_never_overwritten(tmp_path: Path, dataset: Dataset) -> None:
    with pytest.raises(UsageError, match="choose another folder"):
        make_gallery(write(tmp_path / "a.json", []), dataset, dataset.root.parent, DrawingRequest())


def test_runs_over_different_pictures_are_refused(tmp_path: Path, dataset: Dataset) -> None:
    part = tmp_path / "detection_range_0_2.pkl"
    part.write_bytes(pickle.dumps({"all_boxes": [[], [[], []], [[], []]]}))
    with pytest.raises(DataError, match=r"over 3 pictures and .* over 2 others"):
        make_gallery(write(tmp_path / "a.json", []), dataset, tmp_path / "out", DrawingRequest(), against=part)
