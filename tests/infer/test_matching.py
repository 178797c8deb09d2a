from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from roiline.core.errors import DataError
from roiline.core.spec import Conventions, ImageRules, ModelSpec, Source
from roiline.infer.datasets import Category, Dataset
from roiline.infer.matching import match_classes


def model(*names: str, known: bool = True) -> ModelSpec:
    return ModelSpec(
        architecture="faster_rcnn",
        tasks=("detections",),
        class_names=names,
        class_names_known=known,
        conventions=Conventions("detectron", True, True, False, 4.135),
        images=ImageRules("BGR", (0.0, 0.0, 0.0), (1.0, 1.0, 1.0), 800, 1333, "detectron", 32, "apply"),
        detection=None,
        seams={},
        source=Source("detectron", "", ""),
    )


def dataset(**categories: int) -> Dataset:
    listed = tuple(Category(number, name) for name, number in categories.items())
    return Dataset("cells", "coco", listed, (), "", (), Path(), 0, (0, 0))


def test_names_pair_whatever_the_order():
    pairs = match_classes(model("cat", "dog", "cow"), dataset(cow=40, cat=10, dog=30))
    assert pairs.category_ids == (10, 30, 40)
    assert pairs.names == ("cat", "dog", "cow")
    assert pairs.by_name
    assert [pairs.category_id(k) for k in (1, 2, 3)] == [10, 30, 40]


def test_without_names_the_order_pairs():
    pairs = match_classes(model("class_1", "class_2", known=False), dataset(cow=40, cat=10))
    assert pairs.category_ids == (40, 10)
    assert pairs.names == ("cow", "cat")
    assert not pairs.by_name


@pytest.mark.parametrize("known", [True, False])
def test_a_dataset_without_categories_has_class_numbers(known):
    pairs = match_classes(model("cat", "dog", known=known), dataset())
    assert pairs.category_ids == (1, 2)
    assert pairs.names == ("cat", "dog")


def test_other_names_are_shown_side_by_side():
    with pytest.raises(DataError) as caught:
        match_classes(model("cat", "dog", "cow"), dataset(cat=10, bird=20))
    assert str(caught.value).splitlines() == [
        "cells: the classes of the model and the categories of the dataset differ",
        "  model  dataset",
        "  cat    cat (id 10)",
        "  dog    bird (id 20)",
        "  cow    -",
        "  not in the dataset: dog, cow",
        "  not in the model: bird",
        "use the dataset that the model was trained for, or export the model with the right --classes",
    ]


@pytest.mark.parametrize("categories", [{"cat": 1}, {"cat": 1, "dog": 2, "cow": 3}])
def test_a_subset_or_superset_is_an_error(categories):
    with pytest.raises(DataError, match="differ"):
        match_classes(model("cat", "dog"), dataset(**categories))


@pytest.mark.parametrize("categories", [{"cat": 1}, {"cat": 1, "dog": 2, "cow": 3}])
def test_another_number_is_an_error_that_gives_both(categories):
    with pytest.raises(DataError, match=f"the model has 2 classes .* the dataset has {len(categories)} categories"):
        match_classes(model("class_1", "class_2", known=False), dataset(**categories))


def test_names_that_stand_for_several_cannot_pair():
    twice = Dataset("cells", "coco", (Category(1, "a"), Category(2, "a")), (), "", (), Path(), 0, (0, 0))
    with pytest.raises(DataError, match="stand for several: a"):
        match_classes(model("a", "b"), twice)
    with pytest.raises(DataError, match="stand for several: a"):
        match_classes(model("a", "a"), dataset(a=1, b=2))
    assert match_classes(model("class_1", "class_2", known=False), twice).category_ids == (1, 2)


def test_labels_that_are_category_ids_pair_by_id_where_numbers_differ():
    labels = replace(model("class_1", "class_2", "class_3", "class_4", known=False), labels_are_category_ids=True)
    assert match_classes(labels, dataset(dog=4, cat=2)).category_ids == (0, 2, 0, 4)
    with pytest.raises(DataError, match="4 classes"):
        match_classes(labels, dataset(dog=5, cat=2))
    assert match_classes(labels, dataset(a=10, b=20, c=30, d=40)).category_ids == (10, 20, 30, 40)
