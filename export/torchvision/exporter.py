"""`roiline export torchvision`: a checkpoint of one of torchvision's detection models into one model file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from roiline.core.errors import UsageError, WeightError
from roiline.core.files import check_output
from roiline.core.spec import ModelSpec, Precision, Source, Task
from roiline.export.architecture import Architecture, outputs_of_head
from roiline.export.checkpoints import Checkpoint, read_checkpoint
from roiline.export.class_names import name_classes
from roiline.export.graph import Shape
from roiline.export.model_writer import ExportReport, write_model
from roiline.export.networks import Network, write_network
from roiline.export.precision import Calibration, check_precision, convert_model
from roiline.export.torchvision.options import Options, load_options
from roiline.export.torchvision.source import (
    TorchvisionSource,
    image_rules_from_options,
    keypoint_rules_from_architecture,
    mask_rules_from_architecture,
    read_source,
)


def export_torchvision(
    arch: str,
    weights: Path,
    out: Path,
    *,
    num_classes: int | None = None,
    cfg: Path | None = None,
    task: Task | None = None,
    class_names: Sequence[str] | None = None,
    taps: Sequence[str] = (),
    precision: Precision = "fp32",
    calibration: Calibration | None = None,
) -> ExportReport:
    """Exports a torchvision model by the name of its constructor; `cfg` holds arguments that differ from its defaults.

    `num_classes` counts the background, as torchvision does. `task` proposals leaves the heads out. `taps` name blobs that become
    outputs too, after the others.

    `precision` is that of the trunk's layers; int8 needs `calibration`, and fp16 is compared with fp32 by it where it is given.

    Raises:
        UsageError: the model is not known, cannot do the task, its class names do not fit, or `out` is one of the inputs.
        ConfigError: an argument is unknown, of another kind, or does not fit the weights.
        WeightError: the weights cannot be read or are of another network.
        ExportError: the network is one that cannot be expressed.
        DataError: the calibration pictures cannot be used.
        EngineError: ONNX Runtime, which calibration needs, is not installed.
        OutputError: the model cannot be written.
    """
    check_precision(precision, calibration)
    check_output(out, [path for path in (cfg, weights) if path is not None])
    options = load_options(arch, cfg, num_classes=num_classes)
    if task == "classification" or (task == "proposals" and options.model.one_stage):
        raise UsageError(f"--task {task}: {arch} is for detections")
    images = image_rules_from_options(options)
    checkpoint = read_checkpoint(weights)
    source, network = fit_checkpoint(checkpoint, options, proposals_only=task == "proposals", taps=taps)
    architecture = source.architecture
    spec = ModelSpec(
        architecture=arch,
        tasks=architecture.tasks,
        class_names=name_classes(_count_classes(architecture) - 1, class_names),
        class_names_known=class_names is not None,
        conventions=architecture.conventions,
        images=images,
        detection=architecture.detection,
        seams=network.seams,
        source=_describe_source(checkpoint, options),
        taps=network.taps,
        masks=mask_rules_from_architecture(architecture),
        keypoints=keypoint_rules_from_architecture(architecture),
        labels_are_category_ids=True,
    )
    model = network.graph.finish(spec, source.state.blobs, network.inputs, network.outputs)
    converted = convert_model(model, spec, precision, calibration)
    write_model(converted.model, out)
    warnings = (*source.notes, *converted.verdict.warnings)
    return ExportReport(out, converted.spec, warnings, (), notes=converted.verdict.notes)


def fit_checkpoint(
    checkpoint: Checkpoint, options: Options, *, proposals_only: bool = False, taps: Sequence[str] = ()
) -> tuple[TorchvisionSource, Network]:
    """Reads a checkpoint as the model that the options name, and lays that out over it.

    Raises:
        ConfigError: an argument does not fit the weights.
        WeightError: the weights are of another network; all faults are listed.
        ExportError: the network is one that cannot be expressed.
        UsageError: a tap is no blob of the network.
    """
    source = read_source(checkpoint, options, proposals_only=proposals_only)
    shapes = {name: blob.shape for name, blob in source.state.blobs.items()}
    network = write_network(source.architecture, shapes, taps=taps)
    _check_blobs(network, source, options.arch)
    return source, network


def _describe_source(checkpoint: Checkpoint, options: Options) -> Source:
    return Source("torchvision", checkpoint.sha256, options.yaml_text())


def _count_classes(architecture: Architecture) -> int:
    """Returns K, background included; a model of proposals alone has 1 class beside it, for it knows objects only."""
    if architecture.retinanet is not None:
        return architecture.retinanet.num_classes
    return 2 if architecture.head is None else outputs_of_head(architecture.head).num_classes


def _check_blobs(network: Network, source: TorchvisionSource, arch: str) -> None:
    """Compares what the network needs with what the weights became.

    Raises:
        WeightError: a tensor has another shape, or values that are no numbers; all are listed.
    """
    blobs, origins = source.state.blobs, source.state.origins
    faults = []
    for need in network.graph.requirements:
        blob = blobs.get(need.name)
        name = origins.get(need.name, need.name)
        if blob is None:
            faults.append(f"{name}: missing, for {need.purpose}")
        elif not _fits(blob.shape, need.shape):
            faults.append(f"{name}: has the shape {_show(blob.shape)}, expected {_show(need.shape)} for {need.purpose}")
        elif not np.isfinite(blob).all():
            faults.append(f"{name}: holds values that are not finite")
    if faults:
        listing = "\n  ".join(faults[:20]) + (f"\n  .. and {len(faults) - 20} more" if len(faults) > 20 else "")
        raise WeightError(f"{source.state.source}: not the weights of {arch}:\n  {listing}")


def _fits(shape: tuple[int, ...], wanted: Shape) -> bool:
    return len(shape) == len(wanted) and all(b is None or a == b for a, b in zip(shape, wanted, strict=True))


def _show(shape: Shape) -> str:
    return "(" + ", ".join("any" if side is None else str(side) for side in shape) + ")"
