"""Inspecting weights: pickles of Detectron and its forks, and checkpoints of detectron2 and torchvision."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from roiline.checks.findings import Inspected, Inspection, failed
from roiline.checks.pairing import compare_detectron
from roiline.checks.suggestion import (
    Arrays,
    count_classes,
    count_values,
    is_torchvision,
    name_torchvision_model,
    suggest_settings,
)
from roiline.core.errors import ConfigError, RoilineError
from roiline.export.checkpoints import Checkpoint, read_checkpoint
from roiline.export.detectron.blobs import name_part
from roiline.export.detectron.config import config_from_text
from roiline.export.detectron.weights import DetectronWeights, Structure, derive_structure
from roiline.export.detectron2.weights import Parameters, read_parameters

KIND = "weights"
_NAMED = 8
_LIKELY_PARTS = (
    "box outputs",
    "mask head",
    "keypoint head",
    "RetinaNet head",
    "R-FCN head",
    "classification head",
    "tracking head",
)


# --- Detectron -------------------------------------------------------------------------------------------------------


def inspect_detectron_weights(stored: DetectronWeights) -> Inspection:
    """Says which network weights of Detectron are of, what in them is wrong, and whether their own configuration fits them."""
    blobs = stored.blobs
    structure = derive_structure(blobs)
    parts = Counter(name_part(name) or "of no known part" for name in blobs)
    unknown = sorted(name for name in blobs if name_part(name) is None)
    facts: dict[str, Any] = {
        "source": "detectron",
        **_count(blobs),
        "body": _name_body(structure),
        "norm": {"gn": "group normalisation", "bn": "affine channels"}.get(structure.norm or "", "none"),
        "feature pyramid": structure.has_fpn,
        "RPN": structure.has_rpn,
        "heads": [part for part in _LIKELY_PARTS if part in parts],
        "classes with background": count_classes(blobs),
        "blobs by part": dict(sorted(parts.items())),
        "configuration inside": stored.cfg_text is not None,
        "settings that they show": suggest_settings(blobs),
    }
    notes = list(stored.notes)
    if stored.dropped_momentum:
        notes.append(f"{stored.dropped_momentum} momentum arrays are for training and were passed over")
    if unknown:
        notes.append(f"{len(unknown)} blobs of no known part: {_shorten(unknown)}")
    problems = _list_non_finite(blobs)
    own, wrong = _try_own_configuration(stored)
    return Inspection(stored.source, KIND, facts, (*notes, *own), (*problems, *wrong))


def _name_body(structure: Structure) -> str:
    if structure.family is None:
        return "of no known family"
    if not structure.blocks:
        return structure.family
    name = f"{structure.family}-{structure.depth}" if structure.depth else structure.family
    if structure.groups is not None and structure.groups > 1:
        name = f"ResNeXt-{structure.depth}, {structure.groups} groups of {structure.width_per_group}"
    blocks = ", ".join(f"res{stage} x {count}" for stage, count in structure.blocks.items())
    return f"{name} ({blocks})"


def _try_own_configuration(stored: DetectronWeights) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns notes and problems of the weights with the configuration inside their own file."""
    if stored.cfg_text is None:
        return (), ()
    try:
        config = config_from_text(stored.cfg_text, cfg_in_weights=stored.cfg_text)
    except ConfigError as error:
        return (f"the configuration inside cannot be exported as it is: {error}",), ()
    pair = compare_detectron(stored, config)
    if pair.problems:
        return (), tuple(f"with the configuration inside: {problem}" for problem in pair.problems)
    return (f"fits the configuration inside: {pair.facts['model']}",), ()


# --- PyTorch ---------------------------------------------------------------------------------------------------------


def inspect_checkpoint(path: Path) -> Inspected:
    """Says what a `.pth` or `.safetensors` is of; its content is what the exporter of its source takes."""
    try:
        checkpoint = read_checkpoint(path)
    except RoilineError as error:
        return Inspected(failed(path, KIND, error))
    if is_torchvision(checkpoint.tensors):
        return Inspected(_describe_torchvision(checkpoint), checkpoint)
    parameters = Parameters(checkpoint.source, checkpoint.sha256, checkpoint.tensors, notes=checkpoint.notes)
    return Inspected(_describe_detectron2(parameters), parameters)


def inspect_zoo_pickle(path: Path) -> Inspected:
    """Says what a pickle in the layout of detectron2's model zoo is of."""
    try:
        parameters = read_parameters(path)
    except RoilineError as error:
        return Inspected(failed(path, KIND, error, source="detectron2"))
    return Inspected(_describe_detectron2(parameters), parameters)


def _describe_torchvision(checkpoint: Checkpoint) -> Inspection:
    tensors = checkpoint.tensors
    arch = name_torchvision_model(tensors)
    scores = tensors.get("roi_heads.box_predictor.cls_score.weight")
    facts = {
        "source": "torchvision",
        **_count(tensors),
        "model (--arch)": arch,
        "classes with background": None if scores is None or not scores.ndim else len(scores),
        "tensors by part": _count_prefixes(tensors),
    }
    problems = list(_list_non_finite(tensors))
    if arch is None:
        problems.append("of no model of torchvision that can be exported")
    return Inspection(checkpoint.source, KIND, facts, checkpoint.notes, tuple(problems))


def _describe_detectron2(stored: Parameters) -> Inspection:
    tensors = stored.tensors
    known = [name for name in tensors if re.match(r"(backbone|proposal_generator|roi_heads|head)\.", name)]
    scores = next((array for name, array in tensors.items() if name.endswith("box_predictor.cls_score.weight")), None)
    facts = {
        "source": "detectron2" if known or stored.by_ending else "unknown",
        **_count(tensors),
        "classes without background": None if scores is None or not scores.ndim else len(scores) - 1,
        "names": "endings of the model's" if stored.by_ending else "the model's",
        "tensors by part": _count_prefixes(tensors),
    }
    problems = list(_list_non_finite(tensors))
    if not known and not stored.by_ending:
        problems.append(f"no names of detectron2 or torchvision detectors: {_shorten(sorted(tensors))}")
    return Inspection(stored.source, KIND, facts, stored.notes, tuple(problems))


def _count_prefixes(tensors: Arrays) -> dict[str, int]:
    """Counts tensors by the first two steps of their names, which are the parts of a model."""
    return dict(sorted(Counter(".".join(name.split(".")[:2]) for name in tensors).items())[: 3 * _NAMED])


# --- both ------------------------------------------------------------------------------------------------------------


def _count(tensors: Arrays) -> dict[str, int]:
    return {"arrays": len(tensors), "values": count_values(tensors)}


def _list_non_finite(tensors: Arrays) -> tuple[str, ...]:
    found = {name: int((~np.isfinite(array)).sum()) for name, array in tensors.items() if array.dtype.kind == "f"}
    return tuple(f"{name}: {count} values are NaN or infinite" for name, count in sorted(found.items()) if count)


def _shorten(names: list[str]) -> str:
    more = f", .. and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
