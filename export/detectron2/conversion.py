"""Makes the blobs of our networks of a model's parameters, layer by layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roiline.core.structures import Float32
from roiline.export.detectron2.layers import Layer, Rows

_EPSILON = np.float32(1e-5)


def convert_layers(layers: Sequence[Layer], tensors: Mapping[str, NDArray[Any]]) -> dict[str, Float32]:
    """Returns the blobs of the layers whose parameters are all there; what is missing is left out, and what does not fit stays as it is."""
    blobs: dict[str, Float32] = {}
    for layer in layers:
        parts = _Parts(layer, tensors)
        blobs |= {name: np.ascontiguousarray(blob, np.float32) for name, blob in parts.blobs().items()}
    return blobs


def fill_statistics(layers: Sequence[Layer], tensors: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Returns tensors with mean 0 and variance 1 where norms have a scale and a shift alone, as Detectron's affine channels do.

    That is what detectron2's frozen norm takes when it loads them; its epsilon still counts.
    """
    filled = dict(tensors)
    for layer in layers:
        scale = tensors.get(f"{layer.norm_name}.weight")
        if layer.norm == "batch" and scale is not None:
            moments = layer.statistics_path or layer.norm_name
            filled.setdefault(f"{moments}.running_mean", np.zeros_like(scale))
            filled.setdefault(f"{moments}.running_var", np.ones_like(scale))
    return filled


class _Parts:
    """Is one layer with its parameters."""

    def __init__(self, layer: Layer, tensors: Mapping[str, NDArray[Any]]) -> None:
        self._layer = layer
        self._tensors = tensors

    def blobs(self) -> dict[str, NDArray[Any]]:
        layer = self._layer
        weight, bias = self._get(f"{layer.path}.weight"), self._get(f"{layer.path}.bias")
        bias = bias if layer.biased else None
        made = {f"{layer.blob}_w": weight, f"{layer.blob}_b": bias}
        if layer.norm == "batch":
            made = self._normalise(weight, bias)
        if layer.norm == "group":
            made[f"{layer.blob}_gn_s"] = self._get(f"{layer.norm_name}.weight")
            made[f"{layer.blob}_gn_b"] = self._get(f"{layer.norm_name}.bias")
        return {name: _arrange_rows(blob, layer.rows, layer.weights) for name, blob in made.items() if blob is not None}

    def _get(self, name: str) -> NDArray[Any] | None:
        return self._tensors.get(name)

    def _normalise(self, weight: NDArray[Any] | None, bias: NDArray[Any] | None) -> dict[str, NDArray[Any] | None]:
        """Returns (x - mean) / sqrt(variance + epsilon) * scale + shift as an affine channel, or within weights and bias."""
        layer = self._layer
        factor, offset = self._fold_norm()
        if layer.affine is not None:
            return {f"{layer.blob}_w": weight, f"{layer.affine}_s": factor, f"{layer.affine}_b": offset}
        if weight is None or factor is None or offset is None or len(weight) != len(factor):
            return {f"{layer.blob}_w": weight, f"{layer.blob}_b": offset}
        scaled = weight * factor.reshape(-1, *(1,) * (weight.ndim - 1))
        return {f"{layer.blob}_w": scaled, f"{layer.blob}_b": offset if bias is None else offset + bias * factor}

    def _fold_norm(self) -> tuple[NDArray[Any] | None, NDArray[Any] | None]:
        name, moments = self._layer.norm_name, self._layer.statistics_path or self._layer.norm_name
        scale, shift = self._get(f"{name}.weight"), self._get(f"{name}.bias")
        mean, variance = self._get(f"{moments}.running_mean"), self._get(f"{moments}.running_var")
        if scale is None or shift is None or mean is None or variance is None:
            return None, None
        if not scale.shape == shift.shape == mean.shape == variance.shape:
            return scale, shift
        with np.errstate(invalid="ignore", divide="ignore"):  # what is not finite is said where blobs are checked
            factor = scale / np.sqrt(variance + _EPSILON)
            return factor, shift - mean * factor


def _arrange_rows(blob: NDArray[Any], rows: Rows, weights: tuple[float, ...]) -> NDArray[Any]:
    """Returns the blob with the rows that our networks have."""
    if rows == "scores":
        return np.concatenate([blob[-1:], blob[:-1]])
    if rows in ("deltas", "masks"):
        background = np.zeros((4 if rows == "deltas" else 1, *blob.shape[1:]), blob.dtype)
        return np.concatenate([background, blob])
    if rows == "anchor_deltas" and weights != (1.0, 1.0, 1.0, 1.0) and len(blob) % 4 == 0:
        divisors = np.tile(np.asarray(weights, np.float32), len(blob) // 4)
        return blob / divisors.reshape(-1, *(1,) * (blob.ndim - 1))
    return blob
