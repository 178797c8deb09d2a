"""Weights and a configuration together: whether the model can be exported, and what in one contradicts the other."""

from __future__ import annotations

from pathlib import Path

from roiline.checks.configurations import TorchvisionArguments
from roiline.checks.findings import Inspection, shorten_error
from roiline.checks.suggestion import name_torchvision_model
from roiline.core.errors import ConfigError, RoilineError
from roiline.export.checkpoints import Checkpoint
from roiline.export.detectron.blobs import raise_if_bad
from roiline.export.detectron.config import DetectronConfig, list_differences, load_config
from roiline.export.detectron.exporter import fit_weights
from roiline.export.detectron.source import architecture_from_config
from roiline.export.detectron.weights import DetectronWeights
from roiline.export.detectron2.config import Detectron2Config
from roiline.export.detectron2.exporter import fit_parameters
from roiline.export.detectron2.source import source_from_config
from roiline.export.detectron2.weights import Parameters, read_parameters
from roiline.export.torchvision.exporter import fit_checkpoint
from roiline.export.torchvision.options import load_options

KIND = "weights with a configuration"


def compare(weights: object, configuration: object) -> Inspection | None:
    """Compares weights and a configuration that were read; None where one is not weights or the other not a configuration."""
    if isinstance(weights, DetectronWeights) and isinstance(configuration, DetectronConfig):
        return compare_detectron(weights, _with_weights(configuration, weights))
    if isinstance(configuration, Detectron2Config):
        if isinstance(weights, DetectronWeights):  # which detectron2 reads too, by names of its own
            weights = read_parameters(Path(weights.source))
        if isinstance(weights, Parameters):
            return _compare_detectron2(weights, configuration)
    if isinstance(weights, Checkpoint) and isinstance(configuration, TorchvisionArguments):
        return _compare_torchvision(weights, configuration)
    if not isinstance(weights, DetectronWeights | Parameters | Checkpoint):
        return None
    if not isinstance(configuration, DetectronConfig | Detectron2Config | TorchvisionArguments):
        return None
    name = f"{weights.source} with {configuration.source}"
    return Inspection(name, KIND, problems=("the weights and the configuration are of different programs",))


def _with_weights(config: DetectronConfig, weights: DetectronWeights) -> DetectronConfig:
    """Returns the configuration as an export merges it: the text inside the weights decides some of its defaults."""
    return load_config(config.source, cfg_in_weights=weights.cfg_text)


def compare_detectron(weights: DetectronWeights, config: DetectronConfig) -> Inspection:
    """Compares weights of Detectron with a configuration that was merged for them."""
    name = f"{weights.source} with {config.source}"
    try:
        architecture = architecture_from_config(config, proposals_only=False)
        network, check = fit_weights(architecture, weights)
        raise_if_bad(check, weights.source)
    except RoilineError as error:
        return Inspection(
            name, KIND, problems=(shorten_error(error, weights.source),), notes=_list_contradictions(weights, config)
        )
    facts = {
        "model": network.name,
        "tasks": list(architecture.tasks),
        "blobs used": len(network.graph.requirements),
    }
    left = [f"not used: {blob} ({part})" for blob, part in check.known]
    left += [f"not used and of no known part: {blob}" for blob in check.unknown]
    return Inspection(name, KIND, facts, (*left, *_list_contradictions(weights, config)))


def _list_contradictions(weights: DetectronWeights, config: DetectronConfig) -> tuple[str, ...]:
    """Returns the settings that differ from the configuration inside the weights."""
    if weights.cfg_text is None:
        return ()
    try:
        differences = list_differences(config, weights.cfg_text)
    except ConfigError as error:
        return (f"the configuration inside the weights cannot be read: {error}",)
    return tuple(f"differs from the configuration inside the weights: {difference}" for difference in differences)


def _compare_detectron2(weights: Parameters, config: Detectron2Config) -> Inspection:
    name = f"{weights.source} with {config.source}"
    try:
        fitted = fit_parameters(source_from_config(config, proposals_only=False), weights)
    except RoilineError as error:
        return Inspection(name, KIND, problems=(shorten_error(error, weights.source),))
    return Inspection(name, KIND, {"model": fitted.network.name}, fitted.leftovers)


def _compare_torchvision(weights: Checkpoint, given: TorchvisionArguments) -> Inspection:
    """Compares a state dict with a file of constructor arguments, as the model that both can be of."""
    name = f"{weights.source} with {given.source}"
    arch = name_torchvision_model(weights.tensors)
    if arch is None or arch not in given.models:
        fault = f"the weights are of {arch or 'no known model'}, the arguments of {', '.join(given.models)}"
        return Inspection(name, KIND, problems=(fault,))
    try:
        source, network = fit_checkpoint(weights, load_options(arch, Path(given.source)))
    except RoilineError as error:
        return Inspection(name, KIND, problems=(shorten_error(error, weights.source),))
    return Inspection(name, KIND, {"model": network.name}, source.notes)
