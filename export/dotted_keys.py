"""Configuration trees as dotted keys (`TEST.NMS`), and back."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any


def flatten_tree(tree: Mapping[Any, Any], sections: Collection[str], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields dotted names and values; descends only where a section is known, so that an unknown one is named once."""
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and name in sections:
            yield from flatten_tree(value, sections, f"{name}.")
        else:
            yield name, value


def nest_keys(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the tree of dotted names and values, its keys sorted."""
    tree: dict[str, Any] = {}
    for name in sorted(flat):
        *sections, last = name.split(".")
        below = tree
        for section in sections:
            below = below.setdefault(section, {})
        below[last] = flat[name]
    return tree
