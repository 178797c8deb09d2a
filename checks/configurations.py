"""Inspecting configurations: Detectron's, detectron2's, and files of torchvision's constructor arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roiline.checks.findings import Inspected, Inspection, failed, shorten_error
from roiline.core.errors import ConfigError
from roiline.core.files import YAML_LIMIT, read_input
from roiline.core.spec import ImageRules
from roiline.core.yamls import load_yaml
from roiline.export.architecture import Architecture, outputs_of_head
from roiline.export.detectron import config as detectron
from roiline.export.detectron.rules import image_rules_from_config
from roiline.export.detectron.source import architecture_from_config
from roiline.export.detectron2 import config as detectron2
from roiline.export.detectron2 import source as detectron2_source
from roiline.export.detectron2.arithmetic import evaluate_arithmetic
from roiline.export.torchvision.options import MODELS, load_options

KIND = "configuration"
_OF_DETECTRON2 = frozenset({"_BASE_", "VERSION", "INPUT", "DATALOADER", "DATASETS"})


@dataclass(frozen=True, slots=True)
class TorchvisionArguments:
    """Is a file of constructor arguments, and the models that it can be of."""

    source: str
    models: tuple[str, ...]


def inspect_configuration(path: Path) -> Inspected:
    """Says which model a configuration describes, whose it is, and every key that is wrong or cannot be exported."""
    try:
        content = read_input(path, error=ConfigError, limit=YAML_LIMIT)
        tree = load_yaml(content, source=str(path), calls={"eval": evaluate_arithmetic})
    except ConfigError as error:
        return Inspected(failed(path, KIND, error))
    if not isinstance(tree, Mapping) or not tree:
        return Inspected(failed(path, KIND, ConfigError(f"expected a mapping of keys, got {type(tree).__name__}")))
    if not any(str(key).isupper() for key in tree):
        return _inspect_torchvision(path)
    model = tree.get("MODEL")
    newer = isinstance(model, Mapping) and "META_ARCHITECTURE" in model
    return _inspect_detectron2(path) if newer or _OF_DETECTRON2 & set(tree) else _inspect_detectron(path)


def _inspect_detectron(path: Path) -> Inspected:
    facts: dict[str, Any] = {"source": "detectron"}
    try:
        config = detectron.load_config(path)
    except ConfigError as error:
        return Inspected(failed(path, KIND, error, **facts))
    facts["type"] = config["MODEL.TYPE"]
    try:
        architecture = architecture_from_config(config, proposals_only=False)
        images = image_rules_from_config(config, padded=architecture.pyramid is not None)
    except ConfigError as error:
        problems = (shorten_error(error, path),)
        return Inspected(Inspection(str(path), KIND, facts, config.warnings, problems), config)
    facts |= _describe_architecture(architecture, architecture.tasks) | describe_images(images)
    facts["classes with background"] = config["MODEL.NUM_CLASSES"]
    return Inspected(Inspection(str(path), KIND, facts, config.warnings), config)


def _inspect_detectron2(path: Path) -> Inspected:
    facts: dict[str, Any] = {"source": "detectron2"}
    try:
        config = detectron2.load_config(path)
    except ConfigError as error:
        return Inspected(failed(path, KIND, error, **facts))
    facts["meta-architecture"] = config["MODEL.META_ARCHITECTURE"]
    try:
        source = detectron2_source.source_from_config(config, proposals_only=False)
        images = detectron2_source.image_rules_from_config(config, source.pad_multiple)
    except ConfigError as error:
        problems = (shorten_error(error, path),)
        return Inspected(Inspection(str(path), KIND, facts, config.warnings, problems), config)
    facts |= _describe_architecture(source.architecture, source.architecture.tasks) | describe_images(images)
    return Inspected(Inspection(str(path), KIND, facts, config.warnings), config)


def _inspect_torchvision(path: Path) -> Inspected:
    """Says which models take the arguments; where none does, what the first does not take."""
    models, first = [], None
    for arch in MODELS:
        try:
            load_options(arch, path)
        except ConfigError as error:
            first = first or error
        else:
            models.append(arch)
    if not models and first is not None:
        return Inspected(failed(path, KIND, first, source="torchvision"))
    facts = {"source": "torchvision", "models that take these arguments": models}
    return Inspected(Inspection(str(path), KIND, facts), TorchvisionArguments(str(path), tuple(models)))


def _describe_architecture(architecture: Architecture, tasks: tuple[str, ...]) -> dict[str, Any]:
    facts: dict[str, Any] = {"model": architecture.name, "tasks": list(tasks)}
    if architecture.head is not None:
        facts["classes with background"] = outputs_of_head(architecture.head).num_classes
        facts["head"] = type(architecture.head).__name__
    if architecture.retinanet is not None:
        facts["classes with background"] = architecture.retinanet.num_classes
    parts = {
        "masks": architecture.mask_head is not None,
        "keypoints": architecture.keypoint_head is not None,
        "tracking": architecture.track_head is not None,
    }
    facts["further heads"] = [name for name, there in parts.items() if there]
    facts["proposals from outside"] = architecture.rpn is None and architecture.head is not None
    rules = architecture.detection
    if rules is not None:
        facts["thresholds"] = {"score": rules.score_thresh, "NMS": rules.nms_thresh, "detections": rules.max_dets}
    return facts


def describe_images(rules: ImageRules) -> dict[str, Any]:
    """Returns how a picture becomes network input, as a fact."""
    sides = {"shorter side": rules.scale, "longer at most": rules.max_size, "multiples of": rules.pad_multiple}
    return {"network input": {"channels": rules.channel_order, **sides, "rule": rules.resize}}
