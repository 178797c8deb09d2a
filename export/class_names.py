"""The names that a model's classes get: those that were given, or numbers, since most checkpoints hold none."""

from __future__ import annotations

from collections.abc import Sequence

from roiline.core.errors import UsageError


def name_classes(count: int, given: Sequence[str] | None) -> tuple[str, ...]:
    """Returns the names of `count` classes beside the background: the given ones, else class_1, class_2 and so on.

    Raises:
        UsageError: another number of names was given, or one twice.
    """
    if given is None:
        return tuple(f"class_{index}" for index in range(1, count + 1))
    wanted = f"expected {count} different names"
    if len(given) != count:
        raise UsageError(
            f"--classes: the model has {count} classes beside the background, {len(given)} were named; {wanted}"
        )
    if len(set(given)) != count:
        raise UsageError(f"--classes: a name is given twice; {wanted}")
    return tuple(given)
