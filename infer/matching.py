"""Which dataset category each class of a model is: by name where the model knows names, else by the categories' order."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest

from roiline.core.errors import DataError
from roiline.core.spec import ModelSpec
from roiline.infer.roidb import Category, Dataset, shorten


@dataclass(frozen=True, slots=True)
class ClassMap:
    """Is the pairing of a model's classes with a dataset's categories.

    `category_ids[k - 1]` and `names[k - 1]` are the category id and the name of class k (class 0 is background). `by_name` says how
    they were paired. Where the dataset has no categories, ids are the class numbers. A label that no category stands behind has the id 0.
    """

    category_ids: tuple[int, ...]
    names: tuple[str, ...]
    by_name: bool

    def category_id(self, class_index: int) -> int:
        """Returns the dataset's category id of class `class_index` (from 1)."""
        return self.category_ids[class_index - 1]


def match_classes(spec: ModelSpec, dataset: Dataset) -> ClassMap:
    """Pairs the foreground classes of a model with the categories of a dataset.

    Raises:
        DataError: the names differ (both lists are shown), names are ambiguous, or the numbers differ.
    """
    names, categories = spec.class_names, dataset.categories
    if not categories:
        return ClassMap(tuple(range(1, len(names) + 1)), names, by_name=False)
    if spec.class_names_known:
        return _match_names(names, categories, dataset.name)
    ids = {category.id for category in categories}
    if spec.labels_are_category_ids and len(names) > len(categories) and all(1 <= one <= len(names) for one in ids):
        return ClassMap(tuple(label if label in ids else 0 for label in range(1, len(names) + 1)), names, by_name=False)
    if len(names) != len(categories):
        raise DataError(
            f"{dataset.name}: the model has {len(names)} classes (without background) and does not know their names, the dataset has "
            f"{len(categories)} categories ({shorten(category.name for category in categories)}); "
            "use the dataset that the model was trained for, or export the model with --classes"
        )
    return ClassMap(
        tuple(category.id for category in categories), tuple(category.name for category in categories), by_name=False
    )


def _match_names(names: tuple[str, ...], categories: tuple[Category, ...], where: str) -> ClassMap:
    ids = {category.name: category.id for category in categories}
    twice = sorted(
        {name for name in names if names.count(name) > 1}
        | {category.name for category in categories if ids[category.name] != category.id}
    )
    if twice:
        raise DataError(f"{where}: classes cannot be matched by name, these names stand for several: {shorten(twice)}")
    not_in_dataset = [name for name in names if name not in ids]
    not_in_model = [name for name in ids if name not in set(names)]
    if not_in_dataset or not_in_model:
        raise DataError(
            f"{where}: the classes of the model and the categories of the dataset differ\n"
            f"{_show_side_by_side(names, categories)}\n"
            f"  not in the dataset: {', '.join(not_in_dataset) or 'none'}\n"
            f"  not in the model: {', '.join(not_in_model) or 'none'}\n"
            "use the dataset that the model was trained for, or export the model with the right --classes"
        )
    return ClassMap(tuple(ids[name] for name in names), names, by_name=True)


def _show_side_by_side(names: tuple[str, ...], categories: tuple[Category, ...]) -> str:
    """Returns a table: the model's class names on the left, the dataset's categories on the right, in their own orders."""
    right = [f"{category.name} (id {category.id})" for category in categories]
    width = max(len("model"), *(len(name) for name in names)) if names else len("model")
    rows = [("model", "dataset"), *zip_longest(names, right, fillvalue="-")]
    return "\n".join(f"  {left:<{width}}  {other}" for left, other in rows)
