"""A torchvision state dict read unit by unit into the blobs of our networks.

A unit is a layer with what normalises it. Batch normalisation is folded into an affine channel here, with the running statistics as the
model computes them in evaluation; group normalisation stays what it is. All that is missing is collected and said at once, by
torchvision's names, and so is all that nobody took.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from roiline.core.errors import WeightError
from roiline.core.structures import Float32
from roiline.export.checkpoints import Tensors

Norm: TypeAlias = Literal["batch", "group"]

# Names of before torchvision 0.13, which its modules rename when they load a state dict.
_OLD_NAMES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"(backbone\.fpn\.(?:inner|layer)_blocks\.\d+)\.(weight|bias)"), r"\1.0.\2"),
    (re.compile(r"(rpn\.head\.conv)\.(weight|bias)"), r"\1.0.0.\2"),
)
_OLD_MASK = re.compile(r"(roi_heads\.mask_head)\.mask_fcn(\d+)\.(weight|bias)")
_OLD_TOWER = re.compile(r"(head\.(?:classification|regression)_head\.conv)\.(\d+)\.(weight|bias)")
_COUNTER = "num_batches_tracked"


class StateReader:
    """Takes tensors out of a state dict, and keeps the blobs that they become.

    `blobs` by our names; `origins` say which of torchvision's names a blob came from.
    """

    def __init__(self, tensors: Tensors, source: str, *, epsilon: float) -> None:
        self.source = source
        self.blobs: dict[str, Float32] = {}
        self.origins: dict[str, str] = {}
        self.missing: list[str] = []
        self._tensors = {_rename(name): tensor for name, tensor in tensors.items()}
        self._epsilon = epsilon
        self._taken: set[str] = set()

    @property
    def frozen(self) -> bool:
        """Is whether batch normalisation has no counters: the model was built with FrozenBatchNorm2d."""
        return any(name.endswith(".running_var") for name in self._tensors) and not any(
            name.endswith(_COUNTER) for name in self._tensors
        )

    @property
    def leftovers(self) -> list[str]:
        """Is every name that nobody took, but the counters of batch normalisation."""
        return sorted(name for name in self._tensors if name not in self._taken and not name.endswith(f".{_COUNTER}"))

    def shape(self, key: str) -> tuple[int, ...]:
        """Returns the shape of a tensor, () where it is absent."""
        return self._tensors[key].shape if key in self._tensors else ()

    def has(self, prefix: str) -> bool:
        """Answers whether any tensor's name begins so."""
        return any(name.startswith(prefix) for name in self._tensors)

    def count(self, prefix: str, suffix: str = "") -> int:
        """Counts n such that `prefix`0`suffix`, `prefix`1`suffix`, .. are there, in a row from 0 on."""
        number = 0
        while self.has(f"{prefix}{number}{suffix}"):
            number += 1
        return number

    def norm_of(self, key: str) -> Norm | None:
        """Returns what kind of normalisation a name holds; None: nothing is there."""
        if f"{key}.running_var" in self._tensors:
            return "batch"
        return "group" if f"{key}.weight" in self._tensors else None

    def take(self, key: str) -> NDArray[Any]:
        """Takes a tensor; one that is missing is noted, and is empty."""
        self._taken.add(key)
        if key not in self._tensors:
            self.missing.append(key)
            return np.zeros(0, np.float32)
        return self._tensors[key]

    def add_layer(self, blob: str, key: str) -> None:
        """Adds a layer with its bias."""
        self._put(f"{blob}_w", self.take(f"{key}.weight"), f"{key}.weight")
        self._put(f"{blob}_b", self.take(f"{key}.bias"), f"{key}.bias")

    def add_unit(self, blob: str, key: str, norm_key: str) -> Norm | None:
        """Adds a layer with a bias, or with normalisation after it: a batch's is folded into weights and bias."""
        norm = self.norm_of(norm_key)
        if norm is None:
            self.add_layer(blob, key)
            return None
        weight = self.take(f"{key}.weight")
        if norm == "group":
            self._put(f"{blob}_w", weight, f"{key}.weight")
            self._add_group_norm(f"{blob}_gn", norm_key)
            return norm
        scale, shift = self._fold(norm_key)
        if self.shape(f"{key}.bias"):
            shift = (shift + self.take(f"{key}.bias") * scale).astype(np.float32)
        if len(weight) == len(scale):
            weight = weight * scale.reshape(-1, *(1,) * (weight.ndim - 1))
        self._put(f"{blob}_w", weight, f"{key}.weight")
        self._put(f"{blob}_b", shift, f"{norm_key}.bias")
        return norm

    def add_affine(self, blob: str, key: str, norm_key: str, affine: str) -> Norm | None:
        """Adds a layer without bias, and its normalisation as the affine channel `affine`, or as group normalisation."""
        self._put(f"{blob}_w", self.take(f"{key}.weight"), f"{key}.weight")
        norm = self.norm_of(norm_key)
        if norm == "group":
            self._add_group_norm(f"{blob}_gn", norm_key)
            return norm
        scale, shift = self._fold(norm_key)
        self._put(f"{affine}_s", scale, f"{norm_key}.weight")
        self._put(f"{affine}_b", shift, f"{norm_key}.bias")
        return "batch"

    def raise_if_missing(self, arch: str) -> None:
        """Raises one error that names all that is missing.

        Raises:
            WeightError: something is.
        """
        if self.missing:
            raise WeightError(
                f"{self.source}: not the weights of {arch}: {len(self.missing)} tensors are missing\n  "
                + "\n  ".join(_shorten(self.missing))
                + self._describe_leftovers()
            )

    def _describe_leftovers(self) -> str:
        left = self.leftovers
        return f"\n{len(left)} tensors have no place in it\n  " + "\n  ".join(_shorten(left)) if left else ""

    def _add_group_norm(self, blob: str, key: str) -> None:
        self._put(f"{blob}_s", self.take(f"{key}.weight"), f"{key}.weight")
        self._put(f"{blob}_b", self.take(f"{key}.bias"), f"{key}.bias")

    def _fold(self, key: str) -> tuple[Float32, Float32]:
        """Returns s and b of (x - mean) / sqrt(variance + epsilon) * weight + bias = s x + b, computed in double."""
        weight, bias, mean, variance = (
            self.take(f"{key}.{part}").astype(np.float64) for part in ("weight", "bias", "running_mean", "running_var")
        )
        if not len(weight) == len(bias) == len(mean) == len(variance):
            return np.zeros(0, np.float32), np.zeros(0, np.float32)
        scale = weight / np.sqrt(variance + self._epsilon)
        return scale.astype(np.float32), (bias - mean * scale).astype(np.float32)

    def _put(self, blob: str, array: NDArray[Any], origin: str) -> None:
        self.blobs[blob] = array.astype(np.float32, copy=False)
        self.origins[blob] = origin


def _rename(name: str) -> str:
    for pattern, replacement in _OLD_NAMES:
        if pattern.fullmatch(name):
            return pattern.sub(replacement, name)
    if found := _OLD_MASK.fullmatch(name):
        return f"{found[1]}.{int(found[2]) - 1}.0.{found[3]}"
    if found := _OLD_TOWER.fullmatch(name):
        return f"{found[1]}.{int(found[2]) // 2}.0.{found[3]}"
    return name


def _shorten(names: Iterable[str]) -> list[str]:
    listed = list(names)
    more = [f".. and {len(listed) - 12} more"] if len(listed) > 12 else []
    return [*listed[:12], *more]
