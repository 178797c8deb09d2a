"""Reads a detectron2 configuration as detectron2 merges it, and says everything that is wrong with it at once.

Precedence: defaults, the files under `_BASE_`, the file, the command line. A text value is read as a Python literal where it is one; a
value must have the type of its default; an unknown key is an error. Files of format version 1 are read by their old names. Expressions
that detectron2 gives to Python's `eval` are read as arithmetic. Nothing is downloaded: URLs stay texts.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roiline.core.errors import ConfigError
from roiline.core.files import YAML_LIMIT, read_input
from roiline.core.yamls import decode_literal, dump_yaml, load_yaml
from roiline.export.detectron2.arithmetic import evaluate_arithmetic
from roiline.export.detectron2.defaults import DEFAULTS, DROPPED, OLD_ANCHORS, RENAMED, SECTIONS
from roiline.export.dotted_keys import flatten_tree, nest_keys

_BASE = "_BASE_"
_LATEST_VERSION = 2
_REMOTE = ("http://", "https://", "detectron2://", "catalog://")


@dataclass(frozen=True, slots=True)
class Detectron2Config:
    """Holds a merged configuration: `values` has one for every key of `defaults.DEFAULTS`, by dotted name.

    `source` is what messages call it; `warnings` say what was renamed while reading.
    """

    source: str
    values: Mapping[str, Any]
    warnings: tuple[str, ...]

    def __getitem__(self, key: str) -> Any:
        """Returns the value of a dotted key.

        Raises:
            KeyError: there is no such key; a fault of the caller, since files are checked while they are read.
        """
        return self.values[key]

    def yaml_text(self) -> str:
        """Writes the whole merged tree as plain YAML, which detectron2 reads back."""
        return dump_yaml(nest_keys(self.values))


def load_config(path: Path, overrides: Sequence[tuple[str, str]] = ()) -> Detectron2Config:
    """Reads a configuration file, those that it is based on, and command-line overrides (dotted key, text of the value).

    Raises:
        ConfigError: a file cannot be read, bases form a circle, or keys or values are wrong; these are all listed.
    """
    tree = _load_tree(path, ())
    merge = _Merge()
    merge.add_tree(_upgrade(tree, merge, path))
    merge.add_overrides(overrides)
    merge.raise_problems(str(path))
    return Detectron2Config(str(path), merge.values, tuple(merge.warnings))


# --- files -----------------------------------------------------------------------------------------------------------


def _load_tree(path: Path, below: tuple[Path, ...]) -> dict[Any, Any]:
    """Returns the tree of a file over those of its bases; `below` are the files that led here."""
    try:
        text = read_input(path, error=ConfigError, limit=YAML_LIMIT)
    except ConfigError as error:
        if not below:
            raise
        raise ConfigError(f"{error} (it is the base of {below[-1]})") from error
    resolved = path.resolve()
    if resolved in below:
        circle = " -> ".join(str(one) for one in (*below[below.index(resolved) :], resolved))
        raise ConfigError(f"{path}: `{_BASE}` goes in a circle: {circle}")
    tree = load_yaml(text, source=str(path), calls={"eval": evaluate_arithmetic})
    if tree is None:
        tree = {}
    if not isinstance(tree, dict):
        raise ConfigError(f"{path}: expected a mapping of sections (MODEL, INPUT, ...), got a {type(tree).__name__}")
    named = tree.pop(_BASE, [])
    merged: dict[Any, Any] = {}
    for base in named if isinstance(named, list | tuple) else [named]:
        merged = _merge_trees(merged, _load_tree(_find_base(base, path), (*below, resolved)), path)
    return _merge_trees(merged, tree, path)


def _find_base(base: object, path: Path) -> Path:
    if not isinstance(base, str) or not base:
        raise ConfigError(f"{path}: `{_BASE}` names a configuration file, got {base!r}")
    if base.startswith(_REMOTE):
        raise ConfigError(f"{path}: `{_BASE}` is {base}; nothing is downloaded: fetch it, and name the file")
    return path.parent / Path(base).expanduser()


def _merge_trees(base: dict[Any, Any], tree: Mapping[Any, Any], path: Path) -> dict[Any, Any]:
    merged = dict(base)
    for key, value in tree.items():
        if isinstance(value, dict) and key in merged:
            if not isinstance(merged[key], dict):
                raise ConfigError(f"{path}: {key} is a section here and a value in the base")
            merged[key] = _merge_trees(merged[key], value, path)
        else:
            merged[key] = value
    return merged


# --- versions --------------------------------------------------------------------------------------------------------


def _upgrade(tree: dict[Any, Any], merge: _Merge, path: Path) -> list[tuple[str, Any]]:
    """Returns the (dotted name, value) pairs of a tree under the names of the latest version."""
    names = {name for key in (*RENAMED, *DROPPED) for name in _sections_of(key)}
    pairs = list(flatten_tree(tree, SECTIONS | names))
    known = dict(pairs)
    version = known.get("VERSION", 1 if {"MODEL.WEIGHT", "TEST.AUG_ON"} & set(known) else _LATEST_VERSION)
    if type(version) is not int or not 0 <= version <= _LATEST_VERSION:
        raise ConfigError(f"{path}: VERSION is {version!r}; configurations up to version {_LATEST_VERSION} are read")
    if version == _LATEST_VERSION:
        return pairs
    retinanet = known.get("MODEL.META_ARCHITECTURE") == "RetinaNet"
    anchors, others = (OLD_ANCHORS[part] for part in (("RETINANET", "RPN") if retinanet else ("RPN", "RETINANET")))
    renamed = {**RENAMED, **anchors}
    merge.warnings.append(f"VERSION is {version}: keys were taken by the names that version {_LATEST_VERSION} has")
    return [
        (renamed.get(name, name), value)
        for name, value in pairs
        if name not in DROPPED and name not in others and name != "VERSION"
    ]


def _sections_of(key: str) -> Iterator[str]:
    parts = key.split(".")
    return (".".join(parts[:end]) for end in range(1, len(parts)))


# --- values ----------------------------------------------------------------------------------------------------------


class _Merge:
    """Collects values over the defaults, and every problem met on the way."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = dict(DEFAULTS)
        self.warnings: list[str] = []
        self._problems: list[str] = []

    def add_tree(self, pairs: Sequence[tuple[str, Any]]) -> None:
        for name, value in pairs:
            self._set(name, value)

    def add_overrides(self, overrides: Sequence[tuple[str, str]]) -> None:
        for name, text in overrides:
            self._set(name, text)

    def raise_problems(self, source: str) -> None:
        if self._problems:
            lines = "".join(f"\n  {problem}" for problem in self._problems)
            raise ConfigError(f"{source}: this configuration cannot be used:{lines}")

    def _set(self, name: str, value: Any) -> None:
        if name in SECTIONS:
            self._problems.append(f"{name}: is a section; expected keys below it, got {_describe(value)}")
        elif name not in DEFAULTS:
            new = {**RENAMED, **OLD_ANCHORS["RPN"], **OLD_ANCHORS["RETINANET"]}.get(name)
            hint = f"; it is called {new} now" if new else _suggest(name)
            self._problems.append(f"{name}: unknown key{hint}")
        else:
            try:
                decoded = decode_literal(value) if isinstance(value, str) else value
                self.values[name] = _match_type(DEFAULTS[name], decoded)
            except (ConfigError, TypeError) as error:
                self._problems.append(f"{name}: {error}")


def _match_type(default: Any, value: Any) -> Any:
    """Returns the value in the type of its default: lists and tuples are exchangeable, a whole number serves as a real one.

    Raises:
        TypeError: the types differ otherwise.
    """
    if type(value) is type(default) or default is None or value is None:
        if value is None and default is not None:
            raise TypeError(f"expected {_describe_type(default)} like {default!r}, got nothing")
        return value
    if isinstance(default, float) and type(value) is int:
        return float(value)
    if isinstance(default, list | tuple) and isinstance(value, list | tuple):
        return type(default)(value)
    raise TypeError(f"expected {_describe_type(default)} like {_show(default)}, got {_describe(value)}")


def _suggest(name: str) -> str:
    last = name.rpartition(".")[2]
    near = difflib.get_close_matches(name, DEFAULTS, n=2, cutoff=0.75)
    near = near or [key for key in DEFAULTS if key.rpartition(".")[2] == last][:3]
    return f"; did you mean {' or '.join(near)}?" if near else ""


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _describe(value: Any) -> str:
    if value is None:
        return "nothing"
    return "a mapping of keys" if isinstance(value, dict) else f"{type(value).__name__} {_show(value)}"


def _describe_type(default: Any) -> str:
    names = {"bool": "True or False", "int": "an integer", "str": "a text", "float": "a number"}
    return names.get(type(default).__name__, f"a {type(default).__name__}")
