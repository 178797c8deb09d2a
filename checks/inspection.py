"""Looking at paths: what each is, told by its content, and weights compared with configurations that are named beside them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from roiline.checks.class_pairing import compare_classes
from roiline.checks.configurations import inspect_configuration
from roiline.checks.datasets import inspect_dataset
from roiline.checks.engines import inspect_engine
from roiline.checks.findings import Inspected, InspectionReport, failed
from roiline.checks.models import inspect_model, inspect_net
from roiline.checks.pairing import compare
from roiline.checks.results import (
    inspect_detection_pickle,
    inspect_own_json,
    inspect_proposals,
    inspect_result_list,
    inspect_run,
    is_run,
    read_json,
)
from roiline.checks.weights import inspect_checkpoint, inspect_detectron_weights, inspect_zoo_pickle
from roiline.core.errors import DataError, WeightError
from roiline.core.files import open_input
from roiline.core.pickles import read_pickle
from roiline.core.signatures import HEAD_BYTES, recognise_content
from roiline.engines.model_file import PLAN_SUFFIX
from roiline.export.detectron.weights import MOMENTUM_SUFFIX, read_weights
from roiline.infer.folders import has_wildcards
from roiline.infer.pictures import is_picture_file
from roiline.infer.proposal_files import is_proposal_content

_UNKNOWN = "of no known kind"
_PICKLES = (".pkl", ".pickle")
_CONFIGURATIONS = (".yaml", ".yml")
_PROTOCOL = 0x80


def inspect_paths(paths: Sequence[str], *, images: Path | None = None) -> InspectionReport:
    """Says what every path is and what is wrong with it.

    All weights among them are compared with all configurations, and all models with all datasets.

    `images` is the picture folder of the COCO json among them.
    """
    inspected = [inspect_path(path, images) for path in paths]
    contents = [one.content for one in inspected if one.content is not None]
    pairs = [rule(first, second) for first in contents for second in contents for rule in (compare, compare_classes)]
    return InspectionReport(
        tuple(one.inspection for one in inspected), tuple(pair for pair in pairs if pair is not None)
    )


def inspect_path(source: str, images: Path | None = None) -> Inspected:
    """Says what one path is: a file by its content, a folder, or a pattern of pictures."""
    path = Path(source)
    if os.path.isdir(path):  # unlike Path.is_dir, no for a name too long for a file
        return inspect_run(path) if is_run(path) else inspect_dataset(source)
    if not os.path.exists(path):
        if has_wildcards(source):
            return inspect_dataset(source)
        return Inspected(failed(source, _UNKNOWN, DataError("there is no such file or folder")))
    try:
        with open_input(path) as stream:
            head = stream.read(HEAD_BYTES)
    except DataError as error:
        return Inspected(failed(source, _UNKNOWN, error))
    return _inspect_file(path, head, images)


def _inspect_file(path: Path, head: bytes, images: Path | None) -> Inspected:
    suffix = path.suffix.lower()
    content = recognise_content(head)
    name = "" if content is None else content.name
    if suffix == PLAN_SUFFIX:
        return inspect_engine(path)
    if suffix == ".onnx" or "ONNX" in name:
        return inspect_model(path)
    if "PyTorch" in name or "safetensors" in name:
        return inspect_checkpoint(path)
    if "NetDef" in name:
        return inspect_net(path)
    if is_picture_file(path):
        return inspect_dataset(str(path))
    if content is not None:
        return Inspected(failed(path, _UNKNOWN, DataError(f"this is {content}")))
    if suffix in _PICKLES or head[0] == _PROTOCOL:
        return _inspect_pickle(path)
    if suffix in _CONFIGURATIONS:
        return inspect_configuration(path)
    if head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in (b"{", b"["):
        return _inspect_json(path, images)
    return inspect_dataset(str(path))


def _inspect_pickle(path: Path) -> Inspected:
    """Reads a pickle as weights; where it is none, as what its keys say."""
    try:
        stored = read_weights(path)
    except WeightError as error:
        refused = error
    else:
        return Inspected(inspect_detectron_weights(stored), stored)
    try:
        content = read_pickle(path, error=DataError, skip_key=lambda name: name.endswith(MOMENTUM_SUFFIX))
    except DataError as error:
        return Inspected(failed(path, "pickle", error))
    if is_proposal_content(content):
        return inspect_proposals(content, path)
    if isinstance(content, Mapping) and "all_boxes" in content:
        return inspect_detection_pickle(content, path)
    if isinstance(content, Mapping) and isinstance(content.get("model"), Mapping):
        return inspect_zoo_pickle(path)
    return Inspected(failed(path, "weights", refused))


def _inspect_json(path: Path, images: Path | None) -> Inspected:
    try:
        content = read_json(path)
    except DataError as error:
        return Inspected(failed(path, "JSON", error))
    if isinstance(content, list):
        return inspect_result_list(content, path)
    if isinstance(content, Mapping) and "format_version" in content:
        return inspect_own_json(content, path)
    return inspect_dataset(str(path), images)
