"""The parameters of a detectron2 checkpoint by the names that the reference's layers have, in their rows and with their norms folded."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roiline.core.structures import Float32

_EPSILON = np.float32(1e-5)
_RESIDUAL = {"branch1": "shortcut", "branch2a": "conv1", "branch2b": "conv2", "branch2c": "conv3"}
_LAYERS: tuple[tuple[str, str], ...] = (
    (r"fpn_inner_res(\d)_\d+_sum(?:_lateral)?", r"backbone.fpn_lateral\1"),
    (r"fpn_res(\d)_\d+_sum", r"backbone.fpn_output\1"),
    (r"fpn_(\d)", r"backbone.top_block.p\1"),
    (r"rpn_cls_logits(?:_fpn\d)?", "proposal_generator.rpn_head.objectness_logits"),
    (r"rpn_bbox_pred(?:_fpn\d)?", "proposal_generator.rpn_head.anchor_deltas"),
    (r"_\[mask\]_fcn(\d+)", r"roi_heads.mask_head.mask_fcn\1"),
    (r"conv5_mask", "roi_heads.mask_head.deconv"),
    (r"mask_fcn_logits", "roi_heads.mask_head.predictor"),
    (r"conv_fcn(\d+)", r"roi_heads.keypoint_head.conv_fcn\1"),
    (r"kps_score_lowres", "roi_heads.keypoint_head.score_lowres"),
    (r"retnet_cls_pred_fpn\d", "head.cls_score"),
    (r"retnet_bbox_pred_fpn\d", "head.bbox_pred"),
)


@dataclass(frozen=True, slots=True)
class Detectron2Names:
    """Finds parameters.

    `tensors` by their names in the file, which may be endings of the model's. `stages` are the boxes' heads of a cascade (0: it is none);
    `rpn_depth` is the count of hidden convolutions of the RPN; `tower_step` is how far apart a RetinaNet's convolutions lie in its
    sequence; `rpn_weights` and `dense_weights` divide deltas. `pyramid`: the body lies within one. `head_res5`: res5 is the heads' own.
    """

    tensors: Mapping[str, NDArray[Any]]
    pyramid: bool
    head_res5: bool
    stages: int
    rpn_depth: int
    tower_step: int
    agnostic_masks: bool
    rpn_weights: Sequence[float]
    dense_weights: Sequence[float]

    def find(self, name: str) -> Float32 | None:
        """Returns a parameter by the reference's name, None where the file has none of it."""
        layer, _, part = name.removesuffix("_bn_s").removesuffix("_bn_b"), "", ""
        if layer != name:  # an affine channel of the body
            path = self._residual_path("conv1" if layer == "res_conv1" else layer)
            folded = self._fold(path)
            return None if folded is None else folded[0 if name.endswith("_s") else 1]
        layer, _, part = name.rpartition("_")
        if layer.endswith("_gn"):
            path = self._norm_path(layer.removesuffix("_gn"))
            return self._take(f"{path}.{'weight' if part == 's' else 'bias'}")
        return self._layer(layer, part)

    def _layer(self, layer: str, part: str) -> Float32 | None:
        path = self._path(layer)
        values = self._take(f"{path}.{'weight' if part == 'w' else 'bias'}")
        batch_normed = self._take(f"{path}.norm.running_mean") is not None  # group normalisation has no statistics
        folded = self._fold(path) if batch_normed and not self._is_residual(layer) else None
        if folded is not None:
            values = self._fold_into(values, part, *folded)
        return None if values is None else self._arrange(layer, values)

    def _fold_into(self, values: Float32 | None, part: str, factor: Float32, offset: Float32) -> Float32 | None:
        """Returns weights or bias of a layer that batch normalisation follows, with its scale and shift in them."""
        if part == "b":
            return offset if values is None else offset + values * factor
        return None if values is None else values * factor[:, None, None, None]

    def _arrange(self, layer: str, values: Float32) -> Float32:
        """Returns rows as the reference has them: the background is the first class."""
        if layer.startswith("cls_score"):
            return np.concatenate([values[-1:], values[:-1]])
        absent = 4 if re.fullmatch(r"bbox_pred(_\d)?", layer) else 1 if layer == "mask_fcn_logits" else 0
        if absent and not (layer == "mask_fcn_logits" and self.agnostic_masks):
            return np.concatenate([np.zeros((absent, *values.shape[1:]), np.float32), values])
        divisors = self.rpn_weights if layer.startswith("rpn_bbox_pred") else ()
        divisors = self.dense_weights if layer.startswith("retnet_bbox_pred") else divisors
        if divisors:
            rows = np.tile(np.asarray(divisors, np.float32), len(values) // 4)
            return np.asarray(values / rows.reshape(-1, *(1,) * (values.ndim - 1)), np.float32)
        return values

    # --- names -------------------------------------------------------------------------------------------------------

    def _path(self, layer: str) -> str:
        if self._is_residual(layer):
            return self._residual_path(layer)
        found = re.fullmatch(r"(fc\d|head_conv\d+|cls_score|bbox_pred)(?:_(\d))?", layer)
        if found is not None:
            return self._box_path(found[1], f".{int(found[2] or 1) - 1}" if self.stages else "")
        found = re.fullmatch(r"conv_rpn(\d*)(?:_fpn\d)?", layer)
        if found is not None:
            inner = "" if self.rpn_depth == 1 else f".conv{int(found[1] or 1) - 1}"
            return f"proposal_generator.rpn_head.conv{inner}"
        found = re.fullmatch(r"retnet_(cls|bbox)_conv_n(\d+)_fpn\d", layer)
        if found is not None:
            return f"head.{found[1]}_subnet.{self.tower_step * int(found[2])}"
        for pattern, path in _LAYERS:
            match = re.fullmatch(pattern, layer)
            if match is not None:
                return match.expand(path)
        return layer

    def _box_path(self, layer: str, stage: str) -> str:
        if layer in ("cls_score", "bbox_pred"):
            return f"roi_heads.box_predictor{stage}.{layer}"
        inner = f"fc{int(layer[2:]) - 5}" if layer.startswith("fc") else layer.removeprefix("head_")
        return f"roi_heads.box_head{stage}.{inner}"

    def _norm_path(self, layer: str) -> str:
        found = re.fullmatch(r"retnet_(cls|bbox)_conv_n(\d+)_fpn\d", layer)
        if found is not None:
            return f"head.{found[1]}_subnet.{self.tower_step * int(found[2]) + 1}"
        return f"{self._path(layer)}.norm"

    def _is_residual(self, layer: str) -> bool:
        return layer == "conv1" or re.search(r"res\d_\d+_branch", layer) is not None

    def _residual_path(self, layer: str) -> str:
        body = "backbone.bottom_up." if self.pyramid else "backbone."
        found = re.search(r"res(\d)_(\d+)_(branch\w+)", layer)
        if found is None:
            return f"{body}stem.conv1"
        own = "roi_heads." if found[1] == "5" and self.head_res5 else body
        return f"{own}res{found[1]}.{found[2]}.{_RESIDUAL[found[3]]}"

    # --- values ------------------------------------------------------------------------------------------------------

    def _take(self, name: str) -> Float32 | None:
        parts = name.split(".")
        for start in range(len(parts)):
            found = self.tensors.get(".".join(parts[start:]))
            if found is not None:
                return np.asarray(found, np.float32)
        return None

    def _fold(self, path: str) -> tuple[Float32, Float32] | None:
        """Returns scale and shift of the batch normalisation after a layer, None where none follows."""
        scale, shift = self._take(f"{path}.norm.weight"), self._take(f"{path}.norm.bias")
        if scale is None or shift is None:
            return None
        mean, variance = self._take(f"{path}.norm.running_mean"), self._take(f"{path}.norm.running_var")
        mean = np.zeros_like(scale) if mean is None else mean
        variance = np.ones_like(scale) if variance is None else variance
        factor = np.asarray(scale / np.sqrt(variance + _EPSILON), np.float32)
        return factor, np.asarray(shift - mean * factor, np.float32)
