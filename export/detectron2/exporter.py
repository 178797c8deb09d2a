"""`roiline export detectron2`: a configuration and a checkpoint into one model file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from roiline.core.errors import UsageError
from roiline.core.spec import ModelSpec, Source, Task
from roiline.export.architecture import Architecture
from roiline.export.detectron2.config import Detectron2Config, load_config
from roiline.export.detectron2.conversion import convert_layers, fill_statistics
from roiline.export.detectron2.fit import check_fit
from roiline.export.detectron2.source import (
    given_proposals_from_config,
    image_rules_from_config,
    keypoint_rules_from_architecture,
    mask_rules_from_architecture,
    source_from_config,
)
from roiline.export.detectron2.weights import match_endings, read_parameters
from roiline.export.model_writer import write_model
from roiline.export.networks import write_network


@dataclass(frozen=True, slots=True)
class Detectron2Report:
    """Is what an export made and what it wants to say: notes of the configuration and the checkpoint, parameters that are not used."""

    path: Path
    spec: ModelSpec
    notes: tuple[str, ...]
    leftovers: tuple[str, ...]


def export_detectron2(
    cfg: Path,
    weights: Path,
    out: Path,
    *,
    overrides: Sequence[tuple[str, str]] = (),
    task: Task | None = None,
    class_names: Sequence[str] | None = None,
    taps: Sequence[str] = (),
) -> Detectron2Report:
    """Exports a detectron2 model; `task` proposals leaves the heads out, None takes all that the configuration has.

    `taps` name blobs that become outputs too, after the others.

    Raises:
        ConfigError: the configuration is wrong, or asks for what cannot be exported.
        WeightError: the checkpoint cannot be read or does not fit; all faults are listed.
        UsageError: the class names do not fit the model, it cannot do the task, or a tap is no blob of it.
    """
    config = load_config(cfg, overrides)
    source = source_from_config(config, proposals_only=task == "proposals")
    architecture = source.architecture
    images = image_rules_from_config(config, source.pad_multiple)
    able = _list_tasks(architecture)
    if task is not None and task not in able:
        raise UsageError(f"{config.source}: this model is for {' and '.join(able)}, not {task}")
    stored = read_parameters(weights)
    tensors = stored.tensors
    if stored.by_ending:
        names = sorted({name for layer in source.layers for part in layer.parameters.values() for name in part})
        matched = match_endings(names, tensors, stored.source)
        tensors = fill_statistics(source.layers, matched)
    blobs = convert_layers(source.layers, tensors)
    network = write_network(
        architecture, {name: blob.shape for name, blob in blobs.items()}, resolve=_share_res5, taps=taps
    )
    leftovers = check_fit(stored.source, source.layers, network.graph.requirements, blobs, tensors, _share_res5)
    given = architecture.rpn is None and architecture.head is not None
    spec = ModelSpec(
        architecture=network.name,
        tasks=able,
        class_names=_name_classes(_count_classes(config, architecture), class_names),
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
    write_model(network.graph.finish(spec, blobs, network.inputs, network.outputs), out)
    return Detectron2Report(out, spec, (*config.warnings, *stored.notes), leftovers)


def _share_res5(name: str) -> str:
    """Returns the blob of a parameter: the res5 of a mask head is that of the box head."""
    return name.removeprefix("_[mask]_") if name.startswith("_[mask]_res5_") else name


def _list_tasks(architecture: Architecture) -> tuple[Task, ...]:
    tasks: tuple[Task, ...] = ("proposals",) if architecture.rpn is not None else ()
    return (*tasks, "detections") if architecture.detection is not None else tasks


def _count_classes(config: Detectron2Config, architecture: Architecture) -> int:
    """Returns how many classes there are beside the background."""
    if architecture.retinanet is not None:
        return architecture.retinanet.num_classes - 1
    count: int = config["MODEL.ROI_HEADS.NUM_CLASSES"]
    return count


def _name_classes(count: int, class_names: Sequence[str] | None) -> tuple[str, ...]:
    if class_names is None:
        return tuple(f"class_{index}" for index in range(1, count + 1))
    if len(class_names) != count:
        raise UsageError(
            f"--classes: the model has {count} classes beside the background, {len(class_names)} were named"
        )
    if len(set(class_names)) != count:
        raise UsageError("--classes: a name is given twice")
    return tuple(class_names)
