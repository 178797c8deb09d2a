from __future__ import annotations

import json

import cv2
import numpy as np
import pytest
from shared_data import shared_path

from roiline.core.errors import DataError
from roiline.infer.datasets import Category, Dataset, load_dataset


def write_dataset(folder, *, sizes=((20, 30), (40, 50)), **changes):
    """Writes pictures 1.png, 2.png, .. and a COCO json of them; `changes` replace its keys (None removes one)."""
    images = []
    for number, (height, width) in enumerate(sizes, start=1):
        cv2.imwrite(str(folder / f"{number}.png"), np.zeros((height, width, 3), np.uint8))
        images.append({"id": number, "file_name": f"{number}.png", "height": height, "width": width})
    document = {
        "images": images,
        "annotations": [],
        "categories": [{"id": 7, "name": "cell"}, {"id": 3, "name": "dot"}],
    }
    document = {key: value for key, value in {**document, **changes}.items() if value is not None}
    path = folder / "set.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def annotation(image_id=1, category_id=7, bbox=(2, 3, 4, 5), **changes):
    row = {
        "id": 1,
        "image_id": image_id,
        "category_id": category_id,
        "bbox": list(bbox),
        "area": 20,
        "iscrowd": 0,
        **changes,
    }
    return {key: value for key, value in row.items() if value is not None}


def load(path, **options) -> Dataset:
    return load_dataset(path, **options)


@pytest.mark.parametrize(("file", "golden"), [("coco_cc12.json", "box"), ("coco_cc12_catshuffled.json", "catshuffled")])
def test_ground_truth_is_detectrons(file, golden):
    """The recorded roidb has no crowd rows, so that those are looked at apart."""
    dataset = load(shared_path("golden/dataset") / file)
    roidb = np.load(shared_path("golden/dataset/synth") / golden / "roidb_limit50.npz")
    ids = sorted({int(key.split("_")[0]) for key in roidb.files})
    assert [entry.image_id for entry in dataset.entries] == ids
    for entry in dataset.entries:
        truth = {key: roidb[f"{entry.image_id}_{key}"] for key in ("boxes", "gt_classes", "seg_areas")}
        own = truth["gt_classes"] > 0
        assert np.array_equal(entry.boxes[~entry.crowd], truth["boxes"][own])
        assert np.array_equal(entry.classes[~entry.crowd], truth["gt_classes"][own])
        assert np.array_equal(entry.areas[~entry.crowd], truth["seg_areas"][own])
    crowds = {entry.image_id: entry.boxes[entry.crowd].tolist() for entry in dataset.entries if entry.crowd.any()}
    assert crowds == {
        257: [[16, 305, 626, 479]],
        5001: [[523, 26, 639, 311]],
        7511: [[337, 272, 604, 300]],
    }
    assert dataset.problems == ()


def test_categories_keep_their_order_and_ids():
    dataset = load(shared_path("golden/dataset/coco_cc12_catshuffled.json"))
    listed = json.loads(shared_path("golden/dataset/coco_cc12_catshuffled.json").read_text())["categories"]
    assert dataset.categories == tuple(Category(row["id"], row["name"]) for row in listed)
    assert [category.id for category in dataset.categories] != sorted(category.id for category in dataset.categories)


def test_pictures_in_sub_folders_and_the_blood_cells():
    cells = load(shared_path("models/bccd-detectron/test_coco.json"), images=shared_path("data/bccd/JPEGImages"))
    assert (cells.total, sum(len(entry.boxes) for entry in cells.entries)) == (72, 945)
    mixed = load(shared_path("models/coco-cc-mask-detectron/coco_cc.json"), images=shared_path("data/coco-cc"))
    assert (mixed.total, sum(len(entry.boxes) for entry in mixed.entries)) == (55, 369)


def test_fields_and_dtypes(tmp_path):
    dataset = load(write_dataset(tmp_path, annotations=[annotation(), annotation(category_id=3, iscrowd=1)]))
    assert (dataset.name, dataset.kind, dataset.total, dataset.id_range) == ("set", "coco", 2, (0, 2))
    assert dataset.annotation_file == tmp_path / "set.json"
    entry, empty = dataset.entries
    assert (entry.image_id, entry.path, entry.height, entry.width) == (1, tmp_path / "1.png", 20, 30)
    assert entry.boxes.tolist() == [[2, 3, 5, 7], [2, 3, 5, 7]]
    assert entry.classes.tolist() == [1, 2]
    assert entry.crowd.tolist() == [False, True]
    for row in (entry, empty):
        assert (row.boxes.dtype, row.classes.dtype, row.crowd.dtype, row.areas.dtype) == (
            np.float32,
            np.int32,
            np.bool_,
            np.float32,
        )
    assert empty.boxes.shape == (0, 4)


@pytest.mark.parametrize(
    ("bbox", "changes", "kept"),
    [
        ((2, 3, 4, 5), {}, [[2, 3, 5, 7]]),
        ((-2, -3, 6, 8), {}, [[0, 0, 3, 4]]),
        ((25, 15, 50, 50), {}, [[25, 15, 29, 19]]),
        ((2.5, 3.25, 4.5, 5.75), {}, [[2.5, 3.25, 6, 8]]),
        ((2, 3, 1, 5), {}, []),
        ((2, 3, 0.5, 5), {}, []),
        ((2, 3, -4, 5), {}, []),
        ((40, 3, 4, 5), {}, []),
        ((2, 3, 4, 5), {"area": 0}, []),
        ((2, 3, 4, 5), {"ignore": 1}, []),
        ((2, 3, 4, 5), {"ignore": 0}, [[2, 3, 5, 7]]),
        ((2, 3, 4, 5), {"segmentation": [[1, 2, 3, 4]]}, [[2, 3, 5, 7]]),
        ((2, 3, 4, 5), {"iscrowd": None, "id": None}, [[2, 3, 5, 7]]),
    ],
)
def test_cleaning(tmp_path, bbox, changes, kept):
    dataset = load(write_dataset(tmp_path, annotations=[annotation(bbox=bbox, **changes)]))
    assert dataset.entries[0].boxes.tolist() == kept
    assert len(dataset.problems) == (0 if kept else 1)


def test_a_missing_area_is_that_of_the_box_and_noted(tmp_path):
    dataset = load(write_dataset(tmp_path, annotations=[annotation(area=None)]))
    assert dataset.entries[0].areas.tolist() == [20]
    assert "without an `area`" in dataset.problems[0]


@pytest.mark.parametrize("changes", [{"annotations": None}, {"annotations": None, "categories": None}])
def test_a_file_without_annotations_is_fine(tmp_path, changes):
    dataset = load(write_dataset(tmp_path, **changes))
    assert [len(entry.boxes) for entry in dataset.entries] == [0, 0]
    assert dataset.problems == ()


@pytest.mark.parametrize("size", [-1, 0, None, "20", 20.5, True, float("nan"), float("inf")])
def test_invalid_sizes_are_taken_from_the_files(tmp_path, size):
    images = [{"id": k, "file_name": f"{k}.png", "height": size, "width": -1} for k in (1, 2)]
    dataset = load(write_dataset(tmp_path, images=images, annotations=[annotation(bbox=(25, 15, 50, 50))]))
    assert [(entry.height, entry.width) for entry in dataset.entries] == [(20, 30), (40, 50)]
    assert dataset.entries[0].boxes.tolist() == [[25, 15, 29, 19]]
    assert dataset.problems == ("image without a valid width and height (taken from the picture file): 2 (1, 2)",)


def test_ids_that_are_text_stay_text(tmp_path):
    images = [{"id": name, "file_name": "1.png", "height": 20, "width": 30} for name in ("b", "10", "9")]
    dataset = load(write_dataset(tmp_path, images=images, annotations=[annotation(image_id="9")]))
    assert [entry.image_id for entry in dataset.entries] == ["10", "9", "b"]
    assert len(dataset.entries[1].boxes) == 1


@pytest.mark.parametrize(("image_id", "written"), [(1, "1"), ("1", 1)])
def test_ids_of_another_type_in_the_annotations_are_matched(tmp_path, image_id, written):
    images = [{"id": image_id, "file_name": "1.png", "height": 20, "width": 30}]
    dataset = load(write_dataset(tmp_path, images=images, annotations=[annotation(image_id=written)]))
    assert dataset.entries[0].image_id == image_id
    assert len(dataset.entries[0].boxes) == 1
    assert "another type" in dataset.problems[0]


def test_ids_are_ordered_by_value_not_as_text(tmp_path):
    images = [{"id": k, "file_name": "1.png", "height": 20, "width": 30} for k in (100, 9, 20)]
    assert [entry.image_id for entry in load(write_dataset(tmp_path, images=images)).entries] == [9, 20, 100]


def test_annotations_of_images_that_are_not_listed_are_noted(tmp_path):
    dataset = load(write_dataset(tmp_path, annotations=[annotation(image_id=5), annotation(image_id="x")]))
    assert dataset.problems == (
        "annotation of an image that is not listed (left out): 2 (annotations[0]: image_id 5, annotations[1]: image_id 'x')",
    )


def test_all_faults_are_told_at_once(tmp_path):
    image = {"id": 1, "file_name": "1.png", "height": 20, "width": 30}
    path = write_dataset(
        tmp_path,
        images=[image, image, {"id": "2", "file_name": "2.png"}, {"id": 3}, {"id": 1.5, "file_name": "x"}, "text"],
        categories=[{"id": 1, "name": "a"}, {"id": 1, "name": "b"}, {"id": 2}, {"name": "c"}, {"id": "4", "name": "d"}],
        annotations=[
            annotation(category_id=99),
            annotation(category_id="1"),
            annotation(category_id=1, bbox=(1, 2, 3)),
            annotation(category_id=1, bbox=(1, 2, 3, float("nan"))),
            annotation(category_id=1, area="large"),
            annotation(image_id=None),
            annotation(image_id=[1]),
            17,
        ],
    )
    with pytest.raises(DataError) as caught:
        load(path)
    lines = str(caught.value).splitlines()
    assert lines[0] == f"{path}: the dataset cannot be used:"
    assert [line.strip() for line in lines[1:]] == [
        "category id that is used twice: 1 (1)",
        "category without a `name`: 1 (id 2)",
        "category whose `id` is not an integer: 2 (categories[3]: None, categories[4]: '4')",
        "entry of `images` that is not an object: 1 (images[5])",
        "image id that is used twice: 1 (1)",
        "image without a `file_name`: 1 (images[3])",
        "image whose `id` is neither an integer nor text: 1 (images[4]: 1.5)",
        "image ids are integers and text in one file: 1 (1 and '2')",
        "entry of `annotations` that is not an object: 1 (annotations[7])",
        "annotation of a category that is not listed: 1 (annotations[0]: category_id 99)",
        "annotation whose `category_id` is not an integer: 1 (annotations[1]: '1')",
        "annotation whose `bbox` is not four numbers [x, y, width, height]: "
        "2 (annotations[2]: [1, 2, 3], annotations[3]: [1, 2, 3, nan])",
        "annotation whose `area` is not a number: 1 (annotations[4]: 'large')",
        "annotation whose `image_id` is neither an integer nor text: 2 (annotations[5], annotations[6])",
    ]


def test_many_faults_are_counted(tmp_path):
    rows = [annotation(category_id=k) for k in range(100, 1100)]
    with pytest.raises(DataError, match=r"not listed: 1000 \(.*category_id 104, \.\.\.\)"):
        load(write_dataset(tmp_path, annotations=rows))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "the file is empty"),
        ("<html>", "an HTML page"),
        ('{"images": [', "expected a COCO json, the file is JSON text"),
        ("[" * 100000, "expected a COCO json"),
        ("17", "the file holds 17"),
        ("[]", "the file holds a list"),
        ('[{"image_id": 1}]', "a result file is not a dataset"),
        ('{"info": {}}', r"missing or not a list \(keys: 'info'\)"),
        ('{"images": []}', "it is empty"),
        ('{"images": {}}', "missing or not a list"),
    ],
)
def test_other_files_are_named(tmp_path, text, reason):
    path = tmp_path / "set.json"
    path.write_text(text)
    with pytest.raises(DataError, match=reason) as caught:
        load(path)
    assert str(path) in str(caught.value)


def test_a_byte_order_mark_does_no_harm(tmp_path):
    path = write_dataset(tmp_path)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert load(path).total == 2


def test_where_pictures_are_looked_for(tmp_path):
    name = "sub folder/größe 鳥.png"
    images = [{"id": 1, "file_name": name, "height": 20, "width": 30}]
    path = write_dataset(tmp_path, images=images)
    with pytest.raises(DataError, match="say where they are with --images"):
        load(path)
    elsewhere = tmp_path / "elsewhere"
    for root in (elsewhere, tmp_path / "images", tmp_path):
        (root / "sub folder").mkdir(parents=True)
        cv2.imwrite(str(root / name), np.zeros((20, 30, 3), np.uint8))
        given = {"images": elsewhere} if root == elsewhere else {}
        dataset = load(path, **given)
        assert dataset.root == root
        assert dataset.entries[0].path == root / name
    with pytest.raises(DataError, match=r"the image folder .*nowhere does not exist"):
        load(path, images=tmp_path / "nowhere")


def test_missing_pictures(tmp_path):
    path = write_dataset(tmp_path)
    (tmp_path / "2.png").unlink()
    dataset = load(path)
    assert len(dataset.entries) == 2
    assert dataset.problems == ("picture that is not there (will be recorded as failed): 1 (2.png)",)
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        DataError, match=r"none of the 2 pictures is in .*empty \(looked for 1.png, 2.png\); .*--images"
    ):
        load(path, images=tmp_path / "empty")


def test_a_missing_picture_of_unknown_size_keeps_its_ground_truth(tmp_path):
    images = [{"id": 1, "file_name": "1.png"}, {"id": 2, "file_name": "gone.png"}]
    dataset = load(write_dataset(tmp_path, images=images, annotations=[annotation(image_id=2, bbox=(1000, 3, 4, 5))]))
    assert (dataset.entries[1].height, dataset.entries[1].width) == (0, 0)
    assert dataset.entries[1].boxes.tolist() == [[1000, 3, 1003, 7]]
    assert any("its file cannot be read either: 1" in problem for problem in dataset.problems)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"iscrowd": "abc"}, "annotation whose `iscrowd` is neither 0 nor 1: 1 (annotations[0]: 'abc')"),
        ({"iscrowd": "0"}, "annotation whose `iscrowd` is neither 0 nor 1"),
        ({"iscrowd": []}, "annotation whose `iscrowd` is neither 0 nor 1"),
        ({"area": 10**400}, "annotation whose `area` is not a number"),
        ({"bbox": [1, 2, 3, 10**400]}, "annotation whose `bbox` is not four numbers"),
        ({"bbox": [1, 2, 1e308, 1e308]}, "annotation whose `bbox` is not four numbers"),
        ({"category_id": 10**400}, "annotation whose `category_id` is not an integer"),
    ],
)
def test_hostile_annotations_are_faults(tmp_path, changes, fault):
    with pytest.raises(DataError) as caught:
        load(write_dataset(tmp_path, annotations=[annotation(**changes)]))
    assert fault in str(caught.value)


def test_a_crowd_that_is_null_is_a_fault(tmp_path):
    row = {**annotation(), "iscrowd": None}
    with pytest.raises(DataError, match="neither 0 nor 1"):
        load(write_dataset(tmp_path, annotations=[row]))


@pytest.mark.parametrize(
    ("image", "fault"),
    [
        (
            {"id": 1, "file_name": "a\ud800.jpg"},
            r"image whose `file_name` no file can have: 1 \(images\[0\]: 'a\\ud800.jpg'\)",
        ),
        ({"id": "a\ud800", "file_name": "a.jpg"}, "image whose `id` is neither an integer nor text"),
        ({"id": 10**400, "file_name": "a.jpg"}, "image whose `id` is neither an integer nor text"),
    ],
)
def test_hostile_images_are_faults(tmp_path, image, fault):
    with pytest.raises(DataError, match=fault):
        load(write_dataset(tmp_path, images=[image]))


def test_a_category_with_half_a_character_is_a_fault(tmp_path):
    with pytest.raises(DataError, match="halves of characters"):
        load(write_dataset(tmp_path, categories=[{"id": 1, "name": "\ud800"}]))


@pytest.mark.parametrize("side", [10**400, 1 << 21, 1e308, float("inf")])
def test_sizes_that_no_picture_has_are_taken_from_the_file(tmp_path, side):
    path = write_dataset(tmp_path)
    document = json.loads(path.read_text())
    document["images"][0]["width"] = side
    path.write_text(json.dumps(document))
    dataset = load(path)
    assert (dataset.entries[0].height, dataset.entries[0].width) == (20, 30)
    assert "taken from the picture file" in dataset.problems[0]
