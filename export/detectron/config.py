"""Reads a Detectron configuration as Detectron merges it, and says everything that is wrong with it at once.

Precedence: defaults, then the file, then the command line. A text value is read as a Python literal where it is one;
a value must have the type of its default; an unknown key is an error. Afterwards derived values are inferred and the
conditions that Detectron's builders assert are checked. Nothing is downloaded: URLs stay texts.

Which fork a file belongs to shows in its keys. PEST and DPEST differ from Detectron in one default that changes
answers, FPN.ROI_CANONICAL_LEVEL (5, not 4). The rule: a configuration that sets a key which only those forks know, or
weights whose own configuration has one, take 5 unless the level is set; a warning says so. A file of those forks
that sets none of their keys cannot be told from Detectron's: set the level.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from roiline.core.errors import ConfigError
from roiline.core.files import YAML_LIMIT, read_input
from roiline.core.yamls import decode_literal, dump_yaml, load_yaml
from roiline.export.detectron.conditions import list_violations
from roiline.export.detectron.defaults import (
    DEPRECATED,
    KEYS,
    PEST_CANONICAL_LEVEL,
    PEST_FORKS,
    RENAMED,
    RENAMED_FUNCTIONS,
    SECTIONS,
    Use,
)
from roiline.export.dotted_keys import flatten_tree, nest_keys

_CANONICAL_LEVEL = "FPN.ROI_CANONICAL_LEVEL"
_IN_WEIGHTS = "the configuration inside the weights file"


@dataclass(frozen=True, slots=True)
class DetectronConfig:
    """Holds a merged configuration: a value for every key of `defaults.KEYS`.

    Attributes:
        source: where it was read from, for messages.
        values: the values by dotted key; tuples, lists, numbers, texts, and the array PIXEL_MEANS (1, 1, 3) float64.
        set_keys: the keys that the file or the command line set.
        warnings: what was ignored, renamed or decided while reading.
    """

    source: str
    values: Mapping[str, Any]
    set_keys: frozenset[str]
    warnings: tuple[str, ...]

    def __getitem__(self, key: str) -> Any:
        """Answers the value of a dotted key, `config["TEST.NMS"]`.

        Raises:
            KeyError: when there is no such key; a fault of the caller, since files are checked while they are read.
        """
        return self.values[key]

    def get_section(self, name: str) -> dict[str, Any]:
        """Answers a section and those below it as nested dictionaries; the empty name is the whole tree."""
        prefix = f"{name}." if name else ""
        return nest_keys({key[len(prefix) :]: value for key, value in self.values.items() if key.startswith(prefix)})

    def function(self, key: str) -> str | None:
        """Answers the builder function that a key names, by its present name; None where none is named."""
        name: str = self.values[key]
        return RENAMED_FUNCTIONS.get(name, name) or None

    def yaml_text(self) -> str:
        """Writes the whole merged tree as plain YAML, which `load_config` and Detectron read back.

        BBOX_XFORM_CLIP is left out while it has its default: Detectron refuses a plain number for it.
        """
        kept = dict(self.values)
        if kept["BBOX_XFORM_CLIP"] == KEYS["BBOX_XFORM_CLIP"].default:
            del kept["BBOX_XFORM_CLIP"]
        return dump_yaml(nest_keys(kept))


def load_config(
    path: str | Path,
    overrides: Sequence[tuple[str, str]] = (),
    *,
    cfg_in_weights: str | None = None,
    check: bool = True,
) -> DetectronConfig:
    """Reads a configuration file; see `config_from_text`.

    Raises:
        ConfigError: when the file cannot be read, or its content is wrong.
    """
    text = read_input(path, error=ConfigError, limit=YAML_LIMIT)
    return config_from_text(text, overrides, source=str(path), cfg_in_weights=cfg_in_weights, check=check)


def config_from_text(
    text: str | bytes,
    overrides: Sequence[tuple[str, str]] = (),
    *,
    source: str = _IN_WEIGHTS,
    cfg_in_weights: str | None = None,
    check: bool = True,
) -> DetectronConfig:
    """Merges a configuration's text and command-line overrides over the defaults.

    Args:
        text: YAML, hand-written or as Detectron dumped it into a weights file (give that text to use it alone).
        overrides: (dotted key, text of the value) pairs, which win over the text.
        source: what the text is called in messages.
        cfg_in_weights: the configuration text of the weights file, where it has one: decides
            MODEL.BBOX_REG_WEIGHTS for old weights and shows the fork.
        check: whether the conditions between values are checked; off for a configuration that only lends some values.

    Raises:
        ConfigError: lists every unknown, renamed or wrongly typed key, else every violated condition.
    """
    tree = load_yaml(text, source=source)
    if not isinstance(tree, dict):
        raise ConfigError(f"{source}: expected a mapping of sections (MODEL, TEST, ...), got {_describe(tree)}")
    merge = _Merge()
    merge.add_tree(tree)
    merge.add_overrides(overrides)
    merge.raise_problems(source)
    _infer_values(merge)
    _apply_weights(merge, cfg_in_weights)
    if check:
        _raise_all(source, "cannot be built", list_violations(merge.values))
    return DetectronConfig(source, merge.values, frozenset(merge.set_keys), tuple(merge.warnings))


def bbox_reg_weights_override(cfg_text: str | None) -> tuple[float, float, float, float] | None:
    """Answers the box regression weights that a weights file forces, or None when it forces none.

    Weights whose own configuration knows no MODEL.BBOX_REG_WEIGHTS were trained with normalised targets that are
    folded into them: (1, 1, 1, 1). A file without a configuration forces nothing.

    Raises:
        ConfigError: when the configuration inside the weights cannot be read.
    """
    if cfg_text is None:
        return None
    model = _read_saved_tree(cfg_text).get("MODEL")
    return None if isinstance(model, dict) and "BBOX_REG_WEIGHTS" in model else (1.0, 1.0, 1.0, 1.0)


def list_differences(config: DetectronConfig, cfg_text: str) -> list[str]:
    """Lists the keys that decide what a model computes and differ from the configuration inside the weights file.

    TEST settings are left out, since they are made to be changed.

    Raises:
        ConfigError: when the configuration inside the weights cannot be read.
    """
    merge = _Merge()
    merge.add_tree(_read_saved_tree(cfg_text))
    return [
        f"{key}: {_show(config[key])} here, {_show(merge.values[key])} in the weights file"
        for key in sorted(merge.set_keys)
        if KEYS[key].use is Use.TAKEN
        and not key.startswith(("TEST.", "TRAIN.", "RPN.RPN_ON"))
        and not np.array_equal(config[key], merge.values[key])
    ]


class _Merge:
    """Collects values over the defaults, and every problem met on the way."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {name: key.default for name, key in KEYS.items()}
        self.set_keys: set[str] = set()
        self.warnings: list[str] = []
        self.problems: list[str] = []

    def add_tree(self, tree: Mapping[Any, Any]) -> None:
        for name, value in flatten_tree(tree, SECTIONS):
            self._set(name, value)

    def add_overrides(self, overrides: Sequence[tuple[str, str]]) -> None:
        for name, text in overrides:
            if name in SECTIONS:
                self.problems.append(f"{name}: names a section; set one of its keys, for example {_example(name)}")
            else:
                self._set(name, text)

    def raise_problems(self, source: str) -> None:
        _raise_all(source, "cannot be used", self.problems)

    def _set(self, name: str, value: Any) -> None:
        if name in DEPRECATED:
            self.warnings.append(f"{name} is deprecated and has no effect; it was ignored")
        elif name in RENAMED:
            new, change = RENAMED[name]
            self.problems.append(f"{name}: is called {new} now{' ' + change if change else ''}")
        elif name in KEYS:
            self._set_known(name, value)
        elif name in SECTIONS:
            self.problems.append(f"{name}: is a section; expected keys below it, got {_describe(value)}")
        else:
            self.problems.append(f"{name}: unknown key{_suggest(name)}")

    def _set_known(self, name: str, value: Any) -> None:
        try:
            decoded = decode_literal(value) if isinstance(value, str) else value
            self.values[name] = _match_type(KEYS[name].default, decoded)
        except (ConfigError, TypeError, ValueError) as exc:
            self.problems.append(f"{name}: {exc}")
            return
        self.set_keys.add(name)
        if isinstance(decoded, str) and decoded in RENAMED_FUNCTIONS:
            self.warnings.append(f"{name}: {decoded} is called {RENAMED_FUNCTIONS[decoded]} now; it was taken as that")


def _match_type(default: Any, value: Any) -> Any:
    """Answers the value in the type of its default, by Detectron's rules (`type` equality and three exceptions).

    A plain number is taken for BBOX_XFORM_CLIP too, where Detectron wants a NumPy one.

    Raises:
        TypeError: when the types differ otherwise.
        ValueError: when an array cannot be made of the value.
    """
    if isinstance(value, dict):
        raise TypeError(f"expected {_describe_type(default)}, got a mapping of keys")
    if isinstance(default, np.ndarray):
        return _match_array(default, value)
    if isinstance(default, np.floating):
        if isinstance(value, float):
            return np.float64(value)
    elif isinstance(value, np.generic):
        value = value.item()
    if type(value) is type(default):
        return value
    if isinstance(default, str):
        return str(value)
    if isinstance(default, list) and isinstance(value, tuple):
        return list(value)
    if isinstance(default, tuple) and isinstance(value, list):
        return tuple(value)
    hint = f"; write {float(value)}" if isinstance(default, float) and type(value) is int else ""
    raise TypeError(f"expected {_describe_type(default)} like {_show(default)}, got {_describe(value)}{hint}")


def _match_array(default: np.ndarray[Any, Any], value: Any) -> np.ndarray[Any, Any]:
    array = np.array(value, default.dtype)
    if array.size != default.size or not np.isfinite(array).all():
        raise ValueError(f"expected {default.size} finite numbers, [[[B, G, R]]], got {_describe(value)}")
    array = array.reshape(default.shape)
    array.flags.writeable = False
    return array


def _infer_values(merge: _Merge) -> None:
    values = merge.values
    if values["MODEL.RPN_ONLY"] or values["MODEL.FASTER_RCNN"]:
        values["RPN.RPN_ON"] = True
    if values["RPN.RPN_ON"] or values["RETINANET.RETINANET_ON"]:
        values["TEST.PRECOMPUTED_PROPOSALS"] = False
    if values["TRAIN.DOMAIN_ADAPTATION"]:
        values["TRAIN.DOMAIN_ADAPTATION"] = False
        merge.warnings.append("TRAIN.DOMAIN_ADAPTATION was switched off: its branches serve training only")


def _apply_weights(merge: _Merge, cfg_in_weights: str | None) -> None:
    """Applies what depends on the configuration inside the weights: the regression weights and the fork's default."""
    saved = {} if cfg_in_weights is None else _read_saved_tree(cfg_in_weights)
    forced = bbox_reg_weights_override(cfg_in_weights)
    if forced is not None and merge.values["MODEL.BBOX_REG_WEIGHTS"] != forced:
        merge.values["MODEL.BBOX_REG_WEIGHTS"] = forced
        merge.warnings.append(
            "MODEL.BBOX_REG_WEIGHTS was set to (1, 1, 1, 1): these weights are older than that key, "
            "and were trained with normalised targets"
        )
    evidence = [
        name
        for name in sorted(merge.set_keys | {name for name, _ in flatten_tree(saved, SECTIONS)})
        if name in KEYS and KEYS[name].fork in PEST_FORKS
    ]
    if evidence and _CANONICAL_LEVEL not in merge.set_keys:
        merge.values[_CANONICAL_LEVEL] = PEST_CANONICAL_LEVEL
        merge.warnings.append(
            f"{_CANONICAL_LEVEL} is {PEST_CANONICAL_LEVEL}, the default of the forks that know {evidence[0]} "
            "(Detectron: 4); set it to decide otherwise"
        )


def _read_saved_tree(cfg_text: str) -> dict[Any, Any]:
    tree = load_yaml(cfg_text, source=_IN_WEIGHTS)
    if not isinstance(tree, dict):
        raise ConfigError(f"{_IN_WEIGHTS}: expected a mapping of sections, got {_describe(tree)}")
    return tree


def _raise_all(source: str, verdict: str, problems: Sequence[str]) -> None:
    if problems:
        lines = "".join(f"\n  {problem}" for problem in problems)
        raise ConfigError(f"{source}: this configuration {verdict}:{lines}")


def _suggest(name: str) -> str:
    last = name.rpartition(".")[2]
    near = difflib.get_close_matches(name, KEYS, n=2, cutoff=0.75)
    near = near or [key for key in KEYS if key.rpartition(".")[2] == last][:3]
    near = near or difflib.get_close_matches(name, SECTIONS, n=1, cutoff=0.75)
    return f"; did you mean {' or '.join(near)}?" if near else ""


def _example(section: str) -> str:
    return next(key for key in KEYS if key.startswith(section + "."))


def _show(value: Any) -> str:
    text = repr(value.tolist() if isinstance(value, np.ndarray | np.generic) else value)
    return text if len(text) <= 60 else text[:57] + "..."


def _describe(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        return "a mapping of keys"
    return f"{type(value).__name__} {_show(value)}"


def _describe_type(default: Any) -> str:
    names = {"bool": "True or False", "int": "an integer", "str": "a text", "ndarray": "numbers"}
    kind = type(default).__name__
    return names.get(kind, f"a {kind.removesuffix('64')}")
