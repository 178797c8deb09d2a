"""Reads a Detectron weights file: names and float32 arrays, the configuration text inside, and what was left out.

Two layouts exist: `{"blobs": {name: array}, "cfg": text}`, and the older one where the dictionary holds the arrays
themselves. Momentum is passed over while reading, scopes (`gpu_0/`) are dropped, missing values (None) are ignored.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from roiline.core.errors import WeightError
from roiline.core.pickles import read_pickle
from roiline.core.yamls import dump_yaml

Blob = np.ndarray[Any, np.dtype[np.float32]]

MOMENTUM_SUFFIX = "_momentum"

_DEPTHS: Mapping[tuple[int, int, int], int] = {(3, 4, 6): 50, (3, 4, 23): 101, (3, 8, 36): 152}
_HASH_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class DetectronWeights:
    """Holds the parameters of a trained model.

    Attributes:
        blobs: float32, C-ordered, read-only arrays by name without scope.
        cfg_text: the configuration text inside the file; None for the old layout.
        sha256: of the whole file, in hexadecimal.
        dropped_momentum: how many momentum arrays were passed over.
        source: the path, for messages.
        notes: what was changed while reading (types cast, scopes dropped).
    """

    blobs: Mapping[str, Blob]
    cfg_text: str | None
    sha256: str
    dropped_momentum: int
    source: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Structure:
    """Says which network the names and shapes of a weights file belong to.

    Attributes:
        family: "ResNet", "VGG16", "VGG_CNN_M_1024", or None.
        blocks: residual blocks per stage ({2: 3, 3: 4, 4: 6, 5: 3} for ResNet-50); empty for other families.
        depth: 50, 101 or 152, or None where the blocks are of no known depth.
        groups, width_per_group: of the 3x3 convolutions of res2 (1 and 64 for a plain ResNet); None for other families.
        norm: "bn" (affine channel) or "gn" (group normalisation); None for other families.
        has_fpn, has_rpn: whether any of their blobs are there.
    """

    family: str | None
    blocks: Mapping[int, int]
    depth: int | None
    groups: int | None
    width_per_group: int | None
    norm: str | None
    has_fpn: bool
    has_rpn: bool


def read_weights(path: str | Path) -> DetectronWeights:
    """Reads a weights file of Detectron or a fork.

    Raises:
        WeightError: when the file cannot be read or is something else, when it holds values that are no numbers (all
            are listed), or when two scopes hold different values of one name.
    """
    momentum: set[str] = set()

    def is_momentum(name: str) -> bool:
        found = name.endswith(MOMENTUM_SUFFIX)
        if found:
            momentum.add(name)
        return found

    content = read_pickle(path, kind="weights file", error=WeightError, skip_key=is_momentum)
    return weights_from_content(content, path, dropped_momentum=len(momentum))


def weights_from_content(content: object, path: str | Path, *, dropped_momentum: int) -> DetectronWeights:
    """Takes what the pickle at `path` holds, with momentum already passed over, as weights; see `read_weights`."""
    entries, cfg_text = _unwrap(content, str(path))
    notes: list[str] = []
    blobs = _collect_blobs(entries, str(path), notes)
    if not blobs:
        raise WeightError(f"{path}: this weights file holds no parameters{' but momentum' if dropped_momentum else ''}")
    return DetectronWeights(blobs, cfg_text, _hash_file(path), dropped_momentum, str(path), tuple(notes))


def derive_structure(blobs: Mapping[str, np.ndarray[Any, Any]]) -> Structure:
    """Derives the network from names and shapes. STRIDE_1X1 cannot be derived: it leaves no trace in weights."""
    blocks = _count_blocks(blobs)
    conv = blobs.get("res2_0_branch2b_w")
    groups = width = None
    if conv is not None and conv.ndim == 4 and conv.shape[1] and conv.shape[0] % conv.shape[1] == 0:
        groups, width = conv.shape[0] // conv.shape[1], conv.shape[1]
    norm = None
    if blocks:
        norm = "gn" if "conv1_gn_s" in blobs or "res2_0_branch2a_gn_s" in blobs else "bn"
    return Structure(
        family=_name_family(blobs),
        blocks=blocks,
        depth=_DEPTHS.get((blocks.get(2, 0), blocks.get(3, 0), blocks.get(4, 0))),
        groups=groups,
        width_per_group=width,
        norm=norm,
        has_fpn=any(name.startswith("fpn_") for name in blobs),
        has_rpn=any(name.startswith(("conv_rpn", "rpn_cls_logits", "rpn_bbox_pred")) for name in blobs),
    )


def _count_blocks(names: Iterable[str]) -> dict[int, int]:
    found = (re.fullmatch(r"res(\d+)_\d+_branch2b_w", name) for name in names)
    return dict(sorted(Counter(int(match[1]) for match in found if match).items()))


def _name_family(blobs: Mapping[str, object]) -> str | None:
    if any(re.match(r"res\d+_\d+_branch2", name) for name in blobs):
        return "ResNet"
    if "conv1_1_w" in blobs and "conv5_3_w" in blobs:
        return "VGG16"
    if "conv1_w" in blobs and "conv5_w" in blobs:
        return "VGG_CNN_M_1024"
    return None


def _unwrap(content: object, source: str) -> tuple[Mapping[Any, object], str | None]:
    """Answers the name-to-value dictionary and the configuration text of either layout."""
    if not isinstance(content, dict):
        what = f"a {type(content).__name__}" + (f" of {len(content)}" if isinstance(content, list | tuple) else "")
        raise WeightError(f"{source}: expected a dictionary of parameters, got {what}; this pickle is no weights file")
    _refuse_lookalikes(content, source)
    cfg_text = _read_cfg(content.get("cfg"), source)
    entries = content.get("blobs", {name: value for name, value in content.items() if name != "cfg"})
    if not isinstance(entries, dict):
        raise WeightError(f"{source}: `blobs` is a {type(entries).__name__}; expected a dictionary of parameters")
    return entries, cfg_text


def _refuse_lookalikes(content: Mapping[Any, object], source: str) -> None:
    if "blobs" in content:
        return
    if isinstance(content.get("model"), dict):
        raise WeightError(f"{source}: a checkpoint in detectron2's layout (`model`); use `roiline export detectron2`")
    if isinstance(content.get("state_dict"), dict):
        raise WeightError(f"{source}: a PyTorch state dict; use `roiline export torchvision`")
    if "all_boxes" in content:
        raise WeightError(f"{source}: a detections file (`all_boxes`), not weights; `roiline evaluate` reads it")
    if "boxes" in content and ("ids" in content or "scores" in content):
        raise WeightError(f"{source}: a proposal file (`boxes`), not weights; give it as `--proposals`")


def _read_cfg(cfg: object, source: str) -> str | None:
    if cfg is None or isinstance(cfg, str):
        return cfg
    if isinstance(cfg, bytes):
        return cfg.decode("utf-8", "replace")
    if isinstance(cfg, dict):
        try:
            return dump_yaml(cfg)
        except TypeError as exc:
            raise WeightError(f"{source}: the configuration inside this weights file is no plain tree: {exc}") from None
    raise WeightError(f"{source}: the configuration inside is a {type(cfg).__name__}; expected its YAML text")


def _collect_blobs(entries: Mapping[Any, object], source: str, notes: list[str]) -> dict[str, Blob]:
    blobs: dict[str, Blob] = {}
    refused: list[str] = []
    cast: Counter[str] = Counter()
    scoped = 0
    for key, value in entries.items():
        if value is None:
            continue
        name = str(key).rpartition("/")[2]
        scoped += name != key
        array = np.asarray(value) if isinstance(value, np.ndarray | np.generic | int | float) else None
        if array is None or array.dtype.kind not in "fiub":
            refused.append(f"{key}: {_describe(value)}")
            continue
        blob = _cast_blob(array)
        if name in blobs and not np.array_equal(blob, blobs[name], equal_nan=True):
            refused.append(f"{key}: another scope holds other values of {name}")
        if array.dtype.newbyteorder("=") != np.float32:
            cast[array.dtype.name] += 1
        blobs[name] = blob
    if refused:
        lines = "".join(f"\n  {line}" for line in refused)
        raise WeightError(f"{source}: {len(refused)} values of this weights file are no parameters:{lines}")
    notes.extend(f"{count} blobs were cast from {kind} to float32" for kind, count in sorted(cast.items()))
    if scoped:
        notes.append(f"{scoped} names had a scope (gpu_0/...), which was dropped")
    return blobs


def _cast_blob(array: np.ndarray[Any, Any]) -> Blob:
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and the check of values names it
        blob = np.asarray(array, dtype=np.float32, order="C")
    blob.flags.writeable = False
    return blob


def _describe(value: object) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype}, shape {value.shape}"
    return f"a {type(value).__name__}"


def _hash_file(path: str | Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        while chunk := stream.read(_HASH_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
