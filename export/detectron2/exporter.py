"""`roiline export detectron2`: a configuration and a checkpoint into one model file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from roiline.core.errors import UsageError
from roiline.core.files import check_output
from roiline.core.spec import ModelSpec, Precision, Source, Task
from roiline.core.structures import Float32
from roiline.export.architecture import Architecture
from roiline.export.class_names import name_classes
from roiline.export.detectron2.config import Detectron2Config, load_config
from roiline.export.detectron2.conversion import convert_layers, fill_statistics
from roiline.export.detectron2.fit import check_fit
from roiline.export.detectron2.layers import Layer
from roiline.export.detectron2.source import (
    Detectron2Source,
    given_proposals_from_config,
    image_rules_from_config,
    keypoint_rules_from_architecture,
    mask_rules_from_architecture,
    source_from_config,
)
from roiline.export.detectron2.weights import Parameters, match_endings, read_parameters
from roiline.export.model_writer import ExportReport, write_model
from roiline.export.networks import Network, write_network
from roiline.export.precision import Calibration, check_precision, convert_model


def export_detectron2(
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
    """Exports a detectron2 model; `task` proposals leaves the heads out, None takes all that the configuration has.

    `taps` name blobs that become outputs too, after the others.

    `precision` is that of the trunk's layers; int8 needs `calibration`, and fp16 is compared with fp32 by it where it is given.

    Raises:
        ConfigError: the configuration is wrong, or asks for what cannot be exported.
        WeightError: the checkpoint cannot be read or does not fit; all faults are listed.
        UsageError: the class names do not fit the model, it cannot do the task, or a tap is no blob of it, or `out` is one of the inputs.
        DataError: the calibration pictures cannot be used.
        EngineError: ONNX Runtime, which calibration needs, is not installed.
        OutputError: the model cannot be written.
    """
    check_precision(precision, calibration)
    check_output(out, (cfg, weights))
    config = load_config(cfg, overrides)
    source = _read_source(config, task)
    images = image_rules_from_config(config, source.pad_multiple)
    stored = read_parameters(weights)
    fitted = fit_parameters(source, stored, taps=taps)
    network = fitted.network
    architecture = source.architecture
    given = architecture.rpn is None and architecture.head is not None
    spec = ModelSpec(
        architecture=network.name,
        tasks=architecture.tasks,
        class_names=name_classes(_count_classes(config, architecture), class_names),
        class_names_known=class_names is not None,
        conventions=network.conventions,
        images=images,
        detection=architecture.detection,
        seams=network.seams,
        source=Source("detectron2", stored.sha256, config.yaml_text()),
        taps=network.taps,
        given_proposals=given_proposals_from_config(config) if given else None,
        masks=mask_rules_from_architecture(architecture),
        keypoints=keypoint_rules_from_architecture(architecture),
    )
    model = network.graph.finish(spec, fitted.blobs, network.inputs, network.outputs)
    converted = convert_model(model, spec, precision, calibration)
    write_model(converted.model, out)
    warnings = (*config.warnings, *stored.notes, *converted.verdict.warnings)
    return ExportReport(out, converted.spec, warnings, fitted.leftovers, notes=converted.verdict.notes)


@dataclass(frozen=True, slots=True)
class FittedNetwork:
    """Is a network laid out over the blobs that a checkpoint became, and notes about parameters that it does without."""

    network: Network
    blobs: Mapping[str, Float32]
    leftovers: tuple[str, ...]


def fit_parameters(source: Detectron2Source, stored: Parameters, *, taps: Sequence[str] = ()) -> FittedNetwork:
    """Lays a model out over the parameters of a checkpoint.

    Raises:
        WeightError: the checkpoint does not fit; all faults are listed.
        UsageError: a tap is no blob of the network.
    """
    tensors = _take_tensors(stored, source.layers)
    blobs = convert_layers(source.layers, tensors)
    shapes = {name: blob.shape for name, blob in blobs.items()}
    network = write_network(source.architecture, shapes, resolve=_share_res5, taps=taps)
    leftovers = check_fit(stored.source, source.layers, network.graph.requirements, blobs, tensors, _share_res5)
    return FittedNetwork(network, blobs, leftovers)


def _read_source(config: Detectron2Config, task: Task | None) -> Detectron2Source:
    source = source_from_config(config, proposals_only=task == "proposals")
    able = source.architecture.tasks
    if task is not None and task not in able:
        raise UsageError(f"{config.source}: this model is for {' and '.join(able)}, not {task}")
    return source


def _take_tensors(stored: Parameters, layers: Sequence[Layer]) -> Mapping[str, NDArray[Any]]:
    """Returns the tensors of a checkpoint by the model's names."""
    tensors = stored.tensors
    if stored.by_ending:
        names = sorted({name for layer in layers for parts in layer.parameters.values() for name in parts})
        tensors = match_endings(names, tensors, stored.source)
    return fill_statistics(layers, tensors) if stored.affine else tensors


def _share_res5(name: str) -> str:
    """Returns the blob of a parameter: the res5 of a mask head is that of the box head."""
    return name.removeprefix("_[mask]_") if name.startswith("_[mask]_res5_") else name


def _count_classes(config: Detectron2Config, architecture: Architecture) -> int:
    """Returns how many classes there are beside the background."""
    if architecture.retinanet is not None:
        return architecture.retinanet.num_classes - 1
    count: int = config["MODEL.ROI_HEADS.NUM_CLASSES"]
    return count
