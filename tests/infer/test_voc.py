from __future__ import annotations

import cv2
import numpy as np
import pytest
from shared_data import shared_path

from roiline.core.errors import DataError, UsageError
from roiline.infer.datasets import Category, load_dataset

CLASSES = ("cat", "dog")


def box_xml(name="cat", corners=(3, 4, 10, 12), extra="<difficult>0</difficult>"):
    sides = "".join(
        f"<{key}>{value}</{key}>" for key, value in zip(("xmin", "ymin", "xmax", "ymax"), corners, strict=True)
    )
    return f"<object><name>{name}</name>{extra}<bndbox>{sides}</bndbox></object>"


def annotation_xml(*objects, size="<size><width>30</width><height>20</height></size>"):
    return f"<annotation>{size}{''.join(objects)}</annotation>"


@pytest.fixture
def root(tmp_path):
    for name in ("Annotations", "JPEGImages", "ImageSets/Main"):
        (tmp_path / name).mkdir(parents=True)
    for stem in ("a", "b 1"):
        add_picture(tmp_path, stem, annotation_xml(box_xml()))
    return tmp_path


def add_picture(root, stem, xml):
    cv2.imwrite(str(root / "JPEGImages" / f"{stem}.png"), np.zeros((20, 30, 3), np.uint8))
    (root / "Annotations" / f"{stem}.xml").write_text(xml)


def test_the_blood_cells_equal_their_coco_conversion():
    classes = ("RBC", "WBC", "Platelets")
    voc = load_dataset(shared_path("data/bccd"), split="test", class_names=classes)
    coco = load_dataset(shared_path("models/bccd-detectron/test_coco.json"), images=shared_path("data/bccd/JPEGImages"))
    assert voc.categories == coco.categories
    assert [entry.image_id for entry in voc.entries] == [entry.path.stem for entry in coco.entries]
    for mine, theirs in zip(voc.entries, coco.entries, strict=True):
        assert (mine.height, mine.width) == (theirs.height, theirs.width)
        for field in ("boxes", "classes", "areas", "crowd"):
            assert np.array_equal(getattr(mine, field), getattr(theirs, field))


def test_the_whole_of_the_blood_cells():
    dataset = load_dataset(shared_path("data/bccd"), class_names=("RBC", "WBC", "Platelets"))
    assert dataset.total == 364
    assert dataset.problems == (
        "object without extent inside its picture (left out): 2 (BloodImage_00338.xml, BloodImage_00343.xml)",
    )


def test_fields(root):
    dataset = load_dataset(root, class_names=CLASSES)
    assert (dataset.kind, dataset.name, dataset.total) == ("voc", root.name, 2)
    assert dataset.categories == (Category(1, "cat"), Category(2, "dog"))
    entry = dataset.entries[0]
    assert (entry.image_id, entry.height, entry.width) == ("a", 20, 30)
    assert entry.path == root / "JPEGImages" / "a.png"
    assert entry.boxes.tolist() == [[2, 3, 9, 11]]
    assert entry.areas.tolist() == [72]


def test_splits(root):
    main = root / "ImageSets" / "Main"
    (main / "plain.txt").write_text("b 1\n\n")
    (main / "cat_val.txt").write_text("a  1\nb 1 -1\r\n")
    (main / "empty.txt").write_text("\n")
    (main / "twice.txt").write_text("a\na\n")
    (main / "ghost.txt").write_text("a\nghost\n")
    plain = load_dataset(root, split="plain", class_names=CLASSES)
    assert [entry.image_id for entry in plain.entries] == ["b 1"]
    assert plain.name == f"{root.name}_plain"
    flagged = load_dataset(root, split="cat_val", class_names=CLASSES)
    assert [entry.image_id for entry in flagged.entries] == ["a", "b 1"]
    with pytest.raises(DataError, match="the split is empty"):
        load_dataset(root, split="empty", class_names=CLASSES)
    with pytest.raises(DataError, match="1 images are listed twice: a"):
        load_dataset(root, split="twice", class_names=CLASSES)
    ghost = load_dataset(root, split="ghost", class_names=CLASSES)
    assert len(ghost.entries) == 2
    assert "without an annotation file" in ghost.problems[0]
    with pytest.raises(UsageError, match=r"no split `nope` .* there are: cat_val, empty, ghost, plain, twice"):
        load_dataset(root, split="nope", class_names=CLASSES)


def test_names_are_needed_and_must_be_known(root):
    with pytest.raises(DataError, match="a model that knows its class names, or give --classes"):
        load_dataset(root)
    add_picture(root, "c", annotation_xml(box_xml("cow"), box_xml("ape")))
    with pytest.raises(DataError, match=r"the model has cat, dog: 1 \(ape, cow\)"):
        load_dataset(root, class_names=CLASSES)


def test_difficult_objects_become_crowd_and_degenerate_ones_are_dropped(root):
    add_picture(
        root,
        "c",
        annotation_xml(
            box_xml(extra=""),
            box_xml("dog", extra="<difficult>1</difficult>"),
            box_xml(corners=(5, 5, 5, 5)),
            box_xml(corners=(9, 9, 5, 12)),
            box_xml(corners=("25.5", "15.25", 99, 99)),
        ),
    )
    dataset = load_dataset(root, class_names=CLASSES)
    entry = dataset.entries[-1]
    assert entry.crowd.tolist() == [False, True, False]
    assert entry.classes.tolist() == [1, 2, 1]
    assert entry.boxes.tolist() == [[2, 3, 9, 11], [2, 3, 9, 11], [24.5, 14.25, 29, 19]]
    assert dataset.problems == ("object without extent inside its picture (left out): 2 (c.xml, c.xml)",)


def test_parts_of_an_object_are_no_objects(root):
    part = "<part><name>head</name><bndbox><xmin>1</xmin></bndbox></part>"
    add_picture(root, "c", annotation_xml(box_xml(extra=part)))
    assert load_dataset(root, class_names=CLASSES).entries[-1].boxes.tolist() == [[2, 3, 9, 11]]


@pytest.mark.parametrize(
    "size", ["", "<size><width>0</width><height>0</height></size>", "<size><width>?</width></size>"]
)
def test_sizes_that_are_not_stated_are_read(root, size):
    add_picture(root, "c", annotation_xml(box_xml(corners=(20, 10, 99, 99)), size=size))
    dataset = load_dataset(root, class_names=CLASSES)
    assert (dataset.entries[-1].height, dataset.entries[-1].width) == (20, 30)
    assert dataset.entries[-1].boxes.tolist() == [[19, 9, 29, 19]]
    assert dataset.problems == ("image without a valid width and height (taken from the picture file): 1 (c)",)


@pytest.mark.parametrize(
    ("xml", "reason"),
    [
        ("<annotation>", "not well-formed XML"),
        ("", "not well-formed XML"),
        ("<html/>", "expected an <annotation> document, got <html>"),
        (annotation_xml(box_xml(corners=(1, 2, "x", 4))), "expected a number as xmax of an object, got 'x'"),
        (annotation_xml(box_xml(corners=(1, 2, "nan", 4))), "expected a number as xmax"),
        (annotation_xml(box_xml(corners=(1, 2, "9" * 400, 4))), "expected a number as xmax"),
        (annotation_xml(box_xml(corners=(1, 2, "1e308", 4))), "expected a number as xmax"),
        (annotation_xml("<object><name>cat</name></object>"), "expected a number as xmin of an object, got None"),
        (annotation_xml("<object/>"), "an object has no name"),
        (
            '<!DOCTYPE a [<!ENTITY l "ha"><!ENTITY m "&l;&l;&l;">]><annotation>&m;</annotation>',
            "document types and entities are not allowed",
        ),
        ('<!DOCTYPE a SYSTEM "file:///etc/passwd"><annotation/>', "document types and entities are not allowed"),
    ],
)
def test_unusable_annotation_files_are_all_named(root, xml, reason):
    for stem in ("c", "d"):
        add_picture(root, stem, xml)
    with pytest.raises(DataError) as caught:
        load_dataset(root, class_names=CLASSES)
    assert "annotation file that cannot be used: 2 (c.xml: " in str(caught.value)
    assert f"d.xml: {reason}" in str(caught.value)


def test_a_document_type_is_refused_in_any_encoding(root):
    text = '<?xml version="1.0" encoding="utf-16"?><!DOCTYPE a [<!ENTITY l "x">]><annotation>&l;</annotation>'
    (root / "Annotations" / "a.xml").write_bytes(text.encode("utf-16"))
    with pytest.raises(DataError, match="entities are not allowed"):
        load_dataset(root, class_names=CLASSES)


def test_pictures_of_one_stem_are_ambiguous(root):
    cv2.imwrite(str(root / "JPEGImages" / "a.jpg"), np.zeros((20, 30, 3), np.uint8))
    with pytest.raises(DataError, match=r"two pictures of one stem: 1 \(a.jpg and a.png\)"):
        load_dataset(root, class_names=CLASSES)


def test_pictures_without_annotations_and_the_reverse_do_not_vanish(root):
    cv2.imwrite(str(root / "JPEGImages" / "c.png"), np.zeros((20, 30, 3), np.uint8))
    (root / "Annotations" / "d.xml").write_text(annotation_xml(box_xml()))
    dataset = load_dataset(root, class_names=CLASSES)
    assert [entry.image_id for entry in dataset.entries] == ["a", "b 1", "c", "d"]
    assert dataset.problems == (
        "image without an annotation file (no ground truth): 1 (c)",
        "picture that is not there (will be recorded as failed): 1 (JPEGImages/d.jpg)",
    )
