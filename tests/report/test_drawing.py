from __future__ import annotations

import json
import pickle
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from parts_support import PARTS
from run_support import make_request, make_spec, write_model, write_pictures
from shared_data import shared_path

from roiline.core.errors import DataError, UsageError
from roiline.core.rle import encode_mask
from roiline.core.structures import Proposals, RoidbEntry, UInt8
from roiline.infer.datasets import load_dataset
from roiline.infer.result_rows import KeypointRows, MaskRows, Rows
from roiline.infer.roidb import Dataset
from roiline.infer.run import run_dataset
from roiline.report.drawing import DrawingRules, draw_beside_truth, draw_picture
from roiline.report.drawn_results import Drawing, DrawingRequest, choose_stems, draw_results
from roiline.report.labels import choose_class_color, choose_instance_color

BOX = np.array([[100, 100, 250, 220]], np.float32)


def record(image_id: int, score: float) -> dict[str, object]:
    return {"image_id": image_id, "category_id": 30, "bbox": [10, 10, 20, 20], "score": score}


def draw(results: Path, dataset: Dataset, out: Path, **options: Any) -> Drawing:
    return draw_results(results, dataset, out, DrawingRequest(**options))


def write(tmp_path: Path, content: object) -> Path:
    file = tmp_path / "results.json"
    file.write_text(json.dumps(content))
    return file


def picture(height: int = 300, width: int = 400) -> UInt8:
    return np.full((height, width, 3), 90, np.uint8)


def entry(height: int = 300, width: int = 400, boxes: np.ndarray = BOX[:0]) -> RoidbEntry:
    return RoidbEntry(1, Path("one.jpg"), height, width, boxes=boxes)


def detections(score: float = 0.9, boxes: np.ndarray = BOX) -> Rows:
    count = len(boxes)
    return Rows(boxes, np.full(count, score, np.float32), np.full(count, 2, np.int64))


def test_pictures_with_something_to_show_are_drawn(tmp_path: Path, dataset: Dataset) -> None:
    file = write(tmp_path, [record(4, 0.9), record(9, 0.2)])
    drawing = draw(file, dataset, tmp_path / "new" / "drawn")
    assert [path.relative_to(tmp_path).as_posix() for path in drawing.files] == ["new/drawn/p4.jpg"]
    assert cv2.imread(str(drawing.files[0])).shape == (240, 320, 3)
    both = draw(file, dataset, tmp_path / "drawn", thresh=0.1)
    assert [path.name for path in both.files] == ["p4.jpg", "p9.jpg"]


def test_unreadable_pictures_are_reported_and_the_others_drawn(tmp_path: Path, dataset: Dataset) -> None:
    file = write(tmp_path, [record(4, 0.9), record(9, 0.9)])
    (dataset.root / "p4.png").write_bytes(b"no picture")
    drawing = draw(file, dataset, tmp_path / "drawn")
    assert [path.name for path in drawing.files] == ["p9.jpg"]
    assert [key for key, _ in drawing.failed] == [4]
    assert "p4.png" in drawing.failed[0][1]
    (dataset.root / "p9.png").unlink()
    with pytest.raises(DataError, match="none of the 2 pictures"):
        draw(file, dataset, tmp_path / "drawn")


def test_the_datasets_own_pictures_are_never_overwritten(tmp_path: Path, dataset: Dataset) -> None:
    before = {path.name: path.read_bytes() for path in dataset.root.iterdir()}
    with pytest.raises(UsageError, match="choose another folder"):
        draw(write(tmp_path, [record(4, 0.9)]), dataset, dataset.root / ".." / dataset.root.name)
    assert {path.name: path.read_bytes() for path in dataset.root.iterdir()} == before


def test_a_box_has_its_class_colour_on_its_outline() -> None:
    original = picture()
    drawn = draw_picture(original, detections(), DrawingRules())
    assert (original == 90).all()
    assert drawn.shape == original.shape
    assert tuple(drawn[220, 170].tolist()) == choose_class_color(2)
    assert tuple(drawn[160, 100].tolist()) == choose_class_color(2)
    assert (drawn[130:210, 120:240] == 90).all()


@pytest.mark.parametrize("score", [0.69, 0.71])
def test_detections_below_the_threshold_are_left_out(score: float) -> None:
    drawn = draw_picture(picture(), detections(score), DrawingRules())
    assert bool((drawn != 90).any()) == (score > 0.7)


def test_boxes_may_leave_the_picture() -> None:
    huge = np.array([[-1e9, -50, 1e9, 5000]], np.float32)
    drawn = draw_picture(picture(), detections(boxes=huge), DrawingRules())
    assert tuple(drawn[150, 0].tolist()) == tuple(drawn[150, 399].tolist()) == choose_class_color(2)


@pytest.mark.parametrize(("height", "width"), [(1, 1), (2, 3), (40, 32), (6, 900), (900, 6), (4000, 3000)])
def test_any_size_can_be_drawn_and_small_ones_are_enlarged(height: int, width: int) -> None:
    boxes = np.array([[0, 0, width - 1, height - 1]], np.float32)
    drawn = draw_picture(picture(height, width), detections(boxes=boxes), DrawingRules())
    factor = drawn.shape[0] // height
    assert drawn.shape[:2] == (height * factor, width * factor)
    assert max(drawn.shape[:2]) >= 320
    assert factor == 1 or max(height, width) < 320
    assert tuple(drawn[-1, -1].tolist()) == choose_class_color(2)


def test_ground_truth_stands_beside_without_scores() -> None:
    truth = Rows(BOX, np.ones(1, np.float32), np.array([2]))
    both = draw_beside_truth(picture(), detections(boxes=BOX[:0]), truth, DrawingRules(class_names=("a", "b")))
    strip = both.shape[0] - 300
    assert strip > 10
    left, right = both[strip:, :400], both[strip:, -400:]
    assert (right == 90).all()
    assert tuple(left[220, 170].tolist()) == choose_class_color(2)
    wide = draw_beside_truth(picture(300, 900), detections(boxes=BOX[:0]), truth, DrawingRules())
    assert wide.shape[1] == 900
    assert wide.shape[0] > 600


def test_proposals_are_the_best_and_coloured_by_score() -> None:
    boxes = np.array([[20, 60, 60, 90], [100, 60, 140, 90], [200, 60, 240, 90]], np.float32)
    found = Proposals(1, boxes, np.array([0.1, 0.9, 0.5], np.float32))
    drawn = draw_picture(picture(), found, DrawingRules(top=2))
    assert (drawn[50:100, :90] == 90).all()
    blue, _, red = drawn[75, 100].astype(int)
    assert red > blue
    blue, _, red = drawn[75, 200].astype(int)
    assert blue > red
    none = draw_picture(picture(), found, DrawingRules(thresh=0.95))
    assert (none == 90).all()


def test_proposal_files_are_drawn(tmp_path: Path, dataset: Dataset) -> None:
    content = {"boxes": [BOX / 5, BOX[:0], BOX / 5], "scores": [[0.01], [], [0.2]], "ids": [4, 9, 12]}
    file = tmp_path / "rpn_proposals.pkl"
    file.write_bytes(pickle.dumps({**content, "scores": [np.array(row, np.float32) for row in content["scores"]]}))
    assert [path.name for path in draw(file, dataset, tmp_path / "drawn").files] == ["p4.jpg", "p12.jpg"]


def test_equal_stems_are_told_apart() -> None:
    paths = ["a/x.jpg", "b/x.jpg", "x_2.png", "b/X.png", "y.jpg", "größe.jpg"]
    entries = [RoidbEntry(key, Path(path), 1, 1) for key, path in enumerate(paths)]
    assert choose_stems(entries) == ["x", "x_3", "x_2", "X_4", "y", "größe"]


def test_pictures_of_a_folder_take_given_names(tmp_path: Path, dataset: Dataset) -> None:
    folder = load_dataset(str(dataset.root))
    file = write(tmp_path, [{**record(4, 0.9), "image_id": folder.entries[0].image_id, "category_id": 1}])
    named = draw(file, folder, tmp_path / "named", class_names=("zebra",)).files[0].read_bytes()
    plain = draw(file, folder, tmp_path / "plain").files[0].read_bytes()
    assert named != plain


def masks(score: float, height: int = 300, width: int = 400) -> MaskRows:
    pixels = np.zeros((height, width), np.bool_)
    pixels[100:221, 100:251] = True
    return MaskRows(np.float32([score]), np.array([2]), (encode_mask(pixels),), (height, width))


def keypoints(score: float, joints: int = 17) -> KeypointRows:
    points = np.full((1, 4, joints), 5, np.float32)
    points[0, :2] = np.linspace(120, 200, joints)
    return KeypointRows(np.float32([score]), np.array([1]), points)


@pytest.mark.parametrize("score", [0.69, 0.71])
def test_masks_and_keypoints_are_drawn_by_their_own_scores(score: float) -> None:
    for found in (replace(detections(0.1), masks=masks(score)), replace(detections(0.1), keypoints=keypoints(score))):
        drawn = draw_picture(picture(), found, DrawingRules())
        assert bool((drawn[110:210, 110:240] != 90).any()) == (score > 0.7)
        assert (drawn[:90] == 90).all()


def test_objects_with_masks_have_colours_of_their_own() -> None:
    boxes = np.array([[20, 20, 90, 90], [200, 20, 290, 90]], np.float32)
    two = replace(masks(0.9), scores=np.float32([0.9, 0.9]), classes=np.array([2, 2]), counts=masks(0.9).counts * 2)
    drawn = draw_picture(picture(), replace(detections(boxes=boxes), masks=two), DrawingRules())
    assert tuple(drawn[90, 60].tolist()) == choose_instance_color(0)
    assert tuple(drawn[90, 250].tolist()) == choose_instance_color(1)
    others = replace(two, scores=np.float32([0.9, 0.8]))
    drawn = draw_picture(picture(), replace(detections(boxes=boxes), masks=others), DrawingRules())
    assert tuple(drawn[90, 60].tolist()) == tuple(drawn[90, 250].tolist()) == choose_class_color(2)


def test_a_label_stands_on_top_of_masks_and_keypoints() -> None:
    plain = draw_picture(picture(), detections(), DrawingRules())
    drawn = draw_picture(picture(), replace(detections(), masks=masks(0.95), keypoints=keypoints(0.9)), DrawingRules())
    assert (plain[80:99, 100:160] == drawn[80:99, 100:160]).all()
    assert (plain != drawn).any()


def test_masks_of_another_size_are_an_error_of_their_picture(tmp_path: Path, dataset: Dataset) -> None:
    with pytest.raises(DataError, match="masks are of a picture of 30 x 40 pixels, the picture has 300 x 400"):
        draw_picture(picture(), replace(detections(), masks=replace(masks(0.9), size_hw=(30, 40))), DrawingRules())


def test_a_part_of_a_dataset_is_drawn_by_its_run(tmp_path: Path) -> None:
    write_model(tmp_path / "model.onnx", make_spec(**PARTS))
    write_pictures(tmp_path / "pictures", 5)
    request = make_request(tmp_path, tmp_path / "out", predictor="parts_support:open_with_parts", id_range=(1, 4))
    run_dataset(request, progress=False)
    whole = load_dataset(tmp_path / "pictures" / "data.json", images=tmp_path / "pictures")
    shards = draw(tmp_path / "out", whole, tmp_path / "drawn", thresh=0.5)
    assert {path.stem for path in shards.files} <= {"000010", "000013", "000016"}
    shutil.rmtree(tmp_path / "out" / "shards")
    (tmp_path / "out" / "keypoints_results.json").unlink()
    lists = draw(tmp_path / "out", whole, tmp_path / "again", thresh=0.5)
    assert [path.name for path in lists.files] == [path.name for path in shards.files]
    assert lists.files[0].read_bytes() != shards.files[0].read_bytes()


@pytest.mark.golden
def test_turned_pictures_are_drawn_in_the_datasets_frame(tmp_path: Path) -> None:
    turned = shared_path("data/odd-images/Landscape_8.jpg")
    stored = cv2.imread(str(turned), cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION).shape[:2]
    for height, width in (stored, stored[::-1]):
        image = {"id": 1, "file_name": turned.name, "height": height, "width": width}
        content = {"images": [image], "categories": [{"id": 1, "name": "x"}], "annotations": []}
        (tmp_path / "one.json").write_text(json.dumps(content))
        dataset = load_dataset(tmp_path / "one.json", images=turned.parent)
        file = write(tmp_path, [{"image_id": 1, "category_id": 1, "bbox": [1, 1, 50, 50], "score": 0.9}])
        drawn = draw(file, dataset, tmp_path / "drawn").files[0]
        assert cv2.imread(str(drawn)).shape[:2] == (height, width)


def test_ground_truth_is_drawn_where_nothing_was_detected(tmp_path: Path, dataset: Dataset) -> None:
    file = write(tmp_path, [record(4, 0.9)])
    drawing = draw(file, dataset, tmp_path / "drawn", ground_truth=True)
    with_truth = [entry.path.stem for entry in dataset.entries if len(entry.boxes)]
    assert len(with_truth) > 1
    assert [path.stem for path in drawing.files] == with_truth
    none = draw(write(tmp_path, []), dataset, tmp_path / "others", ground_truth=True)
    assert [path.stem for path in none.files] == with_truth


def test_pictures_that_cannot_be_written_are_reported_and_the_others_drawn(tmp_path: Path, dataset: Dataset) -> None:
    file = write(tmp_path, [record(4, 0.9), record(9, 0.9)])
    (tmp_path / "drawn" / "p4.jpg").mkdir(parents=True)
    drawing = draw(file, dataset, tmp_path / "drawn")
    assert [path.name for path in drawing.files] == ["p9.jpg"]
    assert [key for key, _ in drawing.failed] == [4]
    assert "p4.jpg" in drawing.failed[0][1]


def test_names_that_are_too_long_for_a_file_are_reported(tmp_path: Path, dataset: Dataset) -> None:
    long = "x" * 251
    (dataset.root / "p4.png").rename(dataset.root / f"{long}.png")
    entries = tuple(
        replace(one, path=dataset.root / f"{long}.png") if one.image_id == 4 else one for one in dataset.entries
    )
    file = write(tmp_path, [record(4, 0.9), record(9, 0.9)])
    drawing = draw(file, replace(dataset, entries=entries), tmp_path / "drawn")
    assert sorted(len(path.name) for path in drawing.files) == [6, 255]
    assert drawing.failed == ()
