"""`roiline export detectron`: a configuration and a weights file into one model file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from roiline.core.errors import UsageError
from roiline.core.files import check_output
from roiline.core.spec import ModelSpec, Precision, Source, Task
from roiline.export.architecture import Architecture
from roiline.export.class_names import name_classes
from roiline.export.detectron.blobs import CheckReport, check_blobs, raise_if_bad, resolve_name
from roiline.export.detectron.config import DetectronConfig, list_differences, load_config
from roiline.export.detectron.mask_keypoint_rules import keypoint_rules_from_config, mask_rules_from_config
from roiline.export.detectron.rules import (
    given_proposals_from_config,
    image_rules_from_config,
    test_options_from_config,
)
from roiline.export.detectron.source import architecture_from_config
from roiline.export.detectron.track_rules import track_rules_from_config
from roiline.export.detectron.weights import DetectronWeights, read_weights
from roiline.export.model_writer import ExportReport, write_model
from roiline.export.networks import Network, write_network
from roiline.export.precision import Calibration, check_precision, convert_model


def export_detectron(
    cfg: Path,
    weights: Path,
    out: Path,
    *,
    overrides: Sequence[tuple[str, str]] = (),
    task: Task | None = None,
    class_names: Sequence[str] | None = None,
    taps: Sequence[str] = (),
    precision: Precision = "fp32",
    calibration: Calibration | None = None,
) -> ExportReport:
    """Exports a Detectron model; `task` proposals leaves the heads out, None takes all that the configuration has.

    `taps` name blobs that become outputs too, after the others.

    `precision` is that of the trunk's layers; int8 needs `calibration`, and fp16 is compared with fp32 by it where it is given.

    Raises:
        ConfigError: the configuration is wrong, or asks for what cannot be exported.
        WeightError: the weights cannot be read or do not fit; all faults are listed.
        UsageError: the class names do not fit the model, it cannot do the task, a tap is no blob of it, or `out` is one of the inputs.
        DataError: the calibration pictures cannot be used.
        EngineError: ONNX Runtime, which calibration needs, is not installed.
        OutputError: the model cannot be written.
    """
    check_precision(precision, calibration)
    check_output(out, (cfg, weights))
    stored = read_weights(weights)
    config = load_config(cfg, overrides, cfg_in_weights=stored.cfg_text)
    architecture = _read_architecture(config, task)
    network, check = fit_weights(architecture, stored, taps=taps)
    raise_if_bad(check, stored.source)
    spec = _write_spec(config, stored, architecture, network, class_names)
    model = network.graph.finish(spec, stored.blobs, network.inputs, network.outputs)
    converted = convert_model(model, spec, precision, calibration)
    write_model(converted.model, out)
    differences = () if stored.cfg_text is None else list_differences(config, stored.cfg_text)
    return ExportReport(
        path=out,
        spec=converted.spec,
        warnings=(*config.warnings, *stored.notes, *differences, *converted.verdict.warnings),
        leftovers=(
            *(f"not used: {name} ({part})" for name, part in check.known),
            *(f"not used and of no known part: {name}" for name in check.unknown),
        ),
        notes=converted.verdict.notes,
    )


def fit_weights(
    architecture: Architecture, stored: DetectronWeights, *, taps: Sequence[str] = ()
) -> tuple[Network, CheckReport]:
    """Returns a network laid out over weights, and how they fit it; nothing is computed, and no fault is raised.

    Raises:
        UsageError: a tap is no blob of the network.
    """
    shapes = {name: blob.shape for name, blob in stored.blobs.items()}
    network = write_network(
        architecture, shapes, resolve=lambda name: resolve_name(name, stored.blobs) or name, taps=taps
    )
    return network, check_blobs(stored, network.graph.requirements)


def _read_architecture(config: DetectronConfig, task: Task | None) -> Architecture:
    architecture = architecture_from_config(config, proposals_only=task == "proposals")
    able = architecture.tasks
    if task is not None and task not in able:
        raise UsageError(f"{config.source}: this model is for {' and '.join(able)}, not {task}")
    return architecture


def _write_spec(
    config: DetectronConfig,
    stored: DetectronWeights,
    architecture: Architecture,
    network: Network,
    class_names: Sequence[str] | None,
) -> ModelSpec:
    given = architecture.rpn is None and architecture.head is not None
    return ModelSpec(
        architecture=network.name,
        tasks=architecture.tasks,
        class_names=name_classes(config["MODEL.NUM_CLASSES"] - 1, class_names),
        class_names_known=class_names is not None,
        conventions=network.conventions,
        images=image_rules_from_config(config, padded=architecture.pyramid is not None),
        detection=architecture.detection,
        seams=network.seams,
        source=Source("detectron", stored.sha256, config.yaml_text()),
        taps=network.taps,
        given_proposals=given_proposals_from_config(config) if given else None,
        masks=mask_rules_from_config(config) if architecture.mask_head else None,
        keypoints=keypoint_rules_from_config(config) if architecture.keypoint_head else None,
        tracks=track_rules_from_config(config) if architecture.track_head else None,
        test=test_options_from_config(config, one_stage=architecture.retinanet is not None),
    )
