"""A model and a dataset together: whether the dataset's categories are the model's classes, and in which order."""

from __future__ import annotations

from roiline.checks.findings import Inspection, shorten_error
from roiline.core.errors import DataError
from roiline.core.spec import ModelSpec
from roiline.infer.matching import match_classes
from roiline.infer.roidb import Dataset

KIND = "model with a dataset"


def compare_classes(model: object, dataset: object) -> Inspection | None:
    """Compares a model's classes with a dataset's categories; None where one is no model, or the other no dataset with categories."""
    if not isinstance(model, ModelSpec) or not isinstance(dataset, Dataset) or not dataset.categories:
        return None
    if "detections" not in model.tasks:
        return None
    name = f"{model.architecture} with {dataset.name}"
    if dataset.kind == "voc" and not model.class_names_known:
        fault = "the model does not know its classes' names, and a VOC root does not say the order of its classes: give both --classes"
        return Inspection(name, KIND, problems=(fault,))
    try:
        paired = match_classes(model, dataset)
    except DataError as error:
        return Inspection(name, KIND, problems=(shorten_error(error, dataset.name),))
    labels = ((label, one) for label, one in zip(paired.names, paired.category_ids, strict=True) if one)
    facts = {"paired": "by name" if paired.by_name else "by order", "classes to category ids": dict(labels)}
    in_order = tuple(one.name for one in dataset.categories)
    if dataset.kind == "voc":
        return Inspection(name, KIND, facts)
    if not paired.by_name:
        note = "the model does not know its classes' names: that the dataset has them in the model's order cannot be checked"
        return Inspection(name, KIND, facts, (note,))
    if paired.names == in_order:
        return Inspection(name, KIND, facts)
    moved = [
        f"class {place} is {ours}, category {place} of the dataset is {theirs}"
        for place, (ours, theirs) in enumerate(zip(paired.names, in_order, strict=True), 1)
        if ours != theirs
    ]
    note = "\n".join(
        ["the dataset lists its categories in another order (they are paired by name, so nothing is swapped):", *moved]
    )
    return Inspection(name, KIND, facts, (note,))
