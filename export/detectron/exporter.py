"""`roiline export detectron`: a configuration and a weights file into one model file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from roiline.core.errors import UsageError
from roiline.core.spec import ModelSpec, Source, Task
from roiline.export.detectron.blobs import CheckReport, check_blobs, raise_if_bad
from roiline.export.detectron.config import DetectronConfig, load_config
from roiline.export.detectron.source import (
    architecture_from_config,
    detection_rules_from_config,
    image_rules_from_config,
)
from roiline.export.detectron.weights import DetectronWeights, read_weights
from roiline.export.model_writer import write_model
from roiline.export.networks import Network, write_network


@dataclass(frozen=True, slots=True)
class ExportReport:
    """Is what an export made and what it wants to say: warnings of the configuration, notes and leftovers of the weights."""

    path: Path
    spec: ModelSpec
    check: CheckReport
    warnings: tuple[str, ...]

    @property
    def leftovers(self) -> tuple[str, ...]:
        """Says which blobs of the weights file the model does not use."""
        known = tuple(f"not used: {name} ({part})" for name, part in self.check.known)
        return known + tuple(f"not used and of no known part: {name}" for name in self.check.unknown)


def export_detectron(
    cfg: Path,
    weights: Path,
    out: Path,
    *,
    overrides: Sequence[tuple[str, str]] = (),
    task: Task | None = None,
    class_names: Sequence[str] | None = None,
) -> ExportReport:
    """Exports a Detectron model; `task` proposals leaves the heads out, None takes all that the configuration has.

    Raises:
        ConfigError: the configuration is wrong, or asks for what cannot be exported.
        WeightError: the weights cannot be read or do not fit; all faults are listed.
        UsageError: the class names do not fit the model, or it cannot do the task.
    """
    stored = read_weights(weights)
    config = load_config(cfg, overrides, cfg_in_weights=stored.cfg_text)
    network = _lay_out(config, stored, task)
    check = check_blobs(stored, network.graph.requirements)
    raise_if_bad(check, stored.source)
    spec = _write_spec(config, stored, network, class_names)
    model = network.graph.finish(spec, stored.blobs, network.inputs, network.outputs)
    write_model(model, out)
    return ExportReport(out, spec, check, config.warnings + stored.notes)


def _lay_out(config: DetectronConfig, stored: DetectronWeights, task: Task | None) -> Network:
    if task == "detections" and config["MODEL.RPN_ONLY"]:
        raise UsageError(f"{config.source}: MODEL.RPN_ONLY is set: this model makes proposals, not detections")
    architecture = architecture_from_config(config, proposals_only=task == "proposals")
    return write_network(architecture, {name: blob.shape for name, blob in stored.blobs.items()})


def _write_spec(
    config: DetectronConfig, stored: DetectronWeights, network: Network, class_names: Sequence[str] | None
) -> ModelSpec:
    count = config["MODEL.NUM_CLASSES"] - 1
    if class_names is not None and len(class_names) != count:
        raise UsageError(f"--classes: the model has {count} classes beside the background, {len(class_names)} were named")
    if class_names is not None and len(set(class_names)) != count:
        raise UsageError("--classes: a name is given twice")
    detects = "detections" in network.seams
    tasks: tuple[Task, ...] = ("proposals", "detections") if detects else ("proposals",)
    return ModelSpec(
        architecture=network.name,
        tasks=tasks,
        class_names=tuple(class_names or (f"class_{index}" for index in range(1, count + 1))),
        class_names_known=class_names is not None,
        conventions=network.conventions,
        images=image_rules_from_config(config),
        detection=detection_rules_from_config(config) if detects else None,
        seams=network.seams,
        source=Source("detectron", stored.sha256, config.yaml_text()),
    )
