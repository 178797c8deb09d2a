"""Reads detectron2's checkpoints: parameters by their names in the model, whichever of its file forms they come in.

There are three. A `.pth` (or `.safetensors`) has a state dict, which may stand beside other entries. A `.pkl` with `model` is the form of
the model zoo: arrays, under the model's names or, with `matching_heuristics`, under endings of them. Any other `.pkl` is one of Detectron,
whose blobs get the names that detectron2 gives them. Files are told apart by their content, not by how their names end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roiline.core.errors import WeightError
from roiline.core.files import open_input, sha256_of_file
from roiline.core.pickles import read_pickle
from roiline.core.signatures import HEAD_BYTES, recognise_content
from roiline.export.checkpoints import read_checkpoint
from roiline.export.detectron.weights import MOMENTUM_SUFFIX, weights_from_content
from roiline.export.detectron2.caffe2_names import convert_blobs

_FOREIGN_AUTHOR = "Caffe2"


@dataclass(frozen=True, slots=True)
class Parameters:
    """Holds the parameters of a checkpoint: `tensors` by name, float32 where they are real numbers.

    `by_ending`: names may be endings of the model's (`res2.0.conv1.weight`). `affine`: norms have a scale and a shift and no running
    statistics, as in pickles from before detectron2 had them. `sha256` is of the whole file, `notes` say what was chosen or changed.
    """

    source: str
    sha256: str
    tensors: Mapping[str, NDArray[Any]]
    by_ending: bool = False
    affine: bool = False
    notes: tuple[str, ...] = ()


def read_parameters(path: Path) -> Parameters:
    """Reads a checkpoint.

    Raises:
        WeightError: the file cannot be read, is something else, or holds what is no parameter.
        UsageError: it is a `.pth` and torch is not installed.
    """
    if _is_torch_file(path):
        checkpoint = read_checkpoint(path)
        return Parameters(checkpoint.source, checkpoint.sha256, checkpoint.tensors, notes=checkpoint.notes)
    dropped: set[str] = set()

    def is_momentum(name: str) -> bool:
        found = name.endswith(MOMENTUM_SUFFIX)
        if found:
            dropped.add(name)
        return found

    content = read_pickle(path, kind="weights file", error=WeightError, skip_key=is_momentum)
    if isinstance(content, dict) and isinstance(content.get("model"), dict):
        return _read_zoo_file(content, path)
    blobs = weights_from_content(content, path, dropped_momentum=len(dropped))
    note = "these weights are Detectron's; they were renamed as detectron2 does"
    tensors = convert_blobs(blobs.blobs, str(path))
    notes = (*blobs.notes, note)
    return Parameters(str(path), blobs.sha256, tensors, by_ending=True, affine=_is_affine(tensors), notes=notes)


def _is_torch_file(path: Path) -> bool:
    with open_input(path, error=WeightError) as stream:
        content = recognise_content(stream.read(HEAD_BYTES))
    return content is not None and ("PyTorch" in content.name or "safetensors" in content.name)


def _read_zoo_file(content: Mapping[str, Any], path: Path) -> Parameters:
    tensors: dict[str, NDArray[Any]] = {}
    refused: list[str] = []
    for name, value in content["model"].items():
        if isinstance(value, np.ndarray | np.generic | int | float) and np.asarray(value).dtype.kind in "fiub":
            array = np.asarray(value)
            tensors[str(name)] = array.astype(np.float32) if array.dtype.kind == "f" else array
        else:
            refused.append(f"{name}: a {type(value).__name__}")
    if refused or not tensors:
        lines = "".join(f"\n  {line}" for line in refused) or " it has none"
        raise WeightError(f"{path}: `model` should hold arrays by parameter name:{lines}")
    by_ending = bool(content.get("matching_heuristics", False))
    foreign = by_ending and content.get("__author__") == _FOREIGN_AUTHOR
    if foreign:
        tensors = convert_blobs(tensors, str(path))
    return Parameters(str(path), sha256_of_file(path), tensors, by_ending=by_ending, affine=_is_affine(tensors))


def _is_affine(tensors: Mapping[str, NDArray[Any]]) -> bool:
    return not any(name.endswith((".running_mean", ".running_var")) for name in tensors)


def match_endings(names: list[str], tensors: Mapping[str, NDArray[Any]], source: str) -> dict[str, NDArray[Any]]:
    """Returns arrays by the model's names: each takes the longest name of the file that it equals, or ends with after a dot.

    What none of them takes keeps its own name.

    Raises:
        WeightError: one name of the file fits two of the model's.
    """
    matched: dict[str, NDArray[Any]] = {}
    taken: dict[str, str] = {}
    for name in names:
        parts = name.split(".")
        ending = next((one for start in range(len(parts)) if (one := ".".join(parts[start:])) in tensors), None)
        if ending is None:
            continue
        if ending in taken:
            raise WeightError(
                f"{source}: {ending} fits {taken[ending]} and {name}; whose it is cannot be known from its name"
            )
        taken[ending] = name
        matched[name] = tensors[ending]
    return matched | {name: tensor for name, tensor in tensors.items() if name not in taken}
