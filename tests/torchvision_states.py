"""Thin state dicts with torchvision's names, made without torch, and the files that hold them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

_CODES = {"float32": "F32", "float16": "F16", "float64": "F64", "int64": "I64", "uint8": "U8", "bool": "BOOL"}


def write_safetensors(path: Path, tensors: Mapping[str, np.ndarray]) -> Path:
    """Writes a .safetensors file."""
    table, chunks, offset = {}, [], 0
    for name, array in tensors.items():
        data = np.ascontiguousarray(array).tobytes()
        table[name] = {
            "dtype": _CODES[str(array.dtype)],
            "shape": list(array.shape),
            "data_offsets": [offset, offset + len(data)],
        }
        chunks.append(data)
        offset += len(data)
    head = json.dumps({"__metadata__": {"format": "pt"}, **table}).encode()
    path.write_bytes(len(head).to_bytes(8, "little") + head + b"".join(chunks))
    return path


class StateMaker:
    """Makes the tensors of one model; `tensors` by torchvision's names."""

    def __init__(self, *, seed: int = 0, norm: str = "batch") -> None:
        self.tensors: dict[str, np.ndarray] = {}
        self._rng = np.random.default_rng(seed)
        self._norm = norm

    def layer(self, key: str, *shape: int, bias: bool = True, gain: float = 1.0, transposed: bool = False) -> None:
        """Adds a layer whose outputs spread like its inputs, times `gain`."""
        fan_in = int(np.prod(shape[1:])) if not transposed else shape[0]
        weight = self._rng.normal(0, gain * np.sqrt(2 / fan_in), shape)
        self.tensors[f"{key}.weight"] = weight.astype(np.float32)
        if bias:
            rows = shape[1] if transposed else shape[0]
            self.tensors[f"{key}.bias"] = self._rng.normal(0, 0.05, rows).astype(np.float32)

    def norm(self, key: str, channels: int) -> None:
        """Adds the normalisation of a layer."""
        parts = {"weight": (0.7, 1.3), "bias": (-0.1, 0.1)}
        if self._norm == "batch":
            parts |= {"running_mean": (-0.1, 0.1), "running_var": (0.7, 1.3)}
            self.tensors[f"{key}.num_batches_tracked"] = np.array(7, np.int64)
        for part, bounds in parts.items():
            self.tensors[f"{key}.{part}"] = self._rng.uniform(*bounds, channels).astype(np.float32)

    def resnet(
        self, *, basic: bool, blocks: tuple[int, ...] = (1, 1, 1, 1), widths: tuple[int, ...] = (8, 8, 16, 16)
    ) -> list[int]:
        """Adds a body; returns the channels of its stages."""
        self.layer("backbone.body.conv1", 8, 3, 7, 7, bias=False)
        self.norm("backbone.body.bn1", 8)
        before = 8
        for stage, (count, width) in enumerate(zip(blocks, widths, strict=True), 1):
            after = width if basic else 4 * width
            for index in range(count):
                projected = index == 0 and (stage > 1 or before != after)
                self._block(
                    f"backbone.body.layer{stage}.{index}", before, width, after, basic=basic, projected=projected
                )
                before = after
        return [width if basic else 4 * width for width in widths]

    def _block(self, key: str, before: int, width: int, after: int, *, basic: bool, projected: bool) -> None:
        sizes = [(width, before, 3), (width, width, 3)]
        if not basic:
            sizes = [(width, before, 1), (width, width, 3), (after, width, 1)]
        for number, (out, into, size) in enumerate(sizes, 1):
            self.layer(f"{key}.conv{number}", out, into, size, size, bias=False, gain=0.7)
            self.norm(f"{key}.bn{number}", out)
        if projected:
            self.layer(f"{key}.downsample.0", after, before, 1, 1, bias=False, gain=0.7)
            self.norm(f"{key}.downsample.1", after)

    def pyramid(self, stages: list[int], channels: int = 8) -> None:
        """Adds a pyramid whose layers have a bias."""
        for index, width in enumerate(stages):
            self.layer(f"backbone.fpn.inner_blocks.{index}.0", channels, width, 1, 1, gain=0.7)
            self.layer(f"backbone.fpn.layer_blocks.{index}.0", channels, channels, 3, 3, gain=0.7)

    def two_stage_heads(self, classes: int, channels: int = 8, *, anchors: int = 3, depth: int = 1) -> None:
        """Adds an RPN and a box head of two layers."""
        for index in range(depth):
            self.layer(f"rpn.head.conv.{index}.0", channels, channels, 3, 3)
        self.layer("rpn.head.cls_logits", anchors, channels, 1, 1)
        self.layer("rpn.head.bbox_pred", 4 * anchors, channels, 1, 1, gain=0.1)
        self.layer("roi_heads.box_head.fc6", 16, channels * 49)
        self.layer("roi_heads.box_head.fc7", 16, 16)
        self.layer("roi_heads.box_predictor.cls_score", classes, 16)
        self.layer("roi_heads.box_predictor.bbox_pred", 4 * classes, 16)

    def mask_head(self, classes: int, channels: int = 8) -> None:
        """Adds a mask head of two convolutions."""
        for index in range(2):
            self.layer(f"roi_heads.mask_head.{index}.0", channels, channels, 3, 3)
        self.layer("roi_heads.mask_predictor.conv5_mask", channels, channels, 2, 2, transposed=True)
        self.layer("roi_heads.mask_predictor.mask_fcn_logits", classes, channels, 1, 1)

    def keypoint_head(self, keypoints: int, channels: int = 8) -> None:
        """Adds a keypoint head of two convolutions."""
        for index in (0, 2):
            self.layer(f"roi_heads.keypoint_head.{index}", channels, channels, 3, 3)
        key = "roi_heads.keypoint_predictor.kps_score_lowres"
        self.layer(key, channels, keypoints, 4, 4, transposed=True)

    def one_stage_head(self, classes: int, channels: int = 8, *, anchors: int = 9) -> None:
        """Adds two strided levels and a RetinaNet head with towers of two convolutions."""
        for name in ("p6", "p7"):
            self.layer(f"backbone.fpn.extra_blocks.{name}", channels, channels, 3, 3)
        for head, last, rows in (
            ("classification", "cls_logits", anchors * classes),
            ("regression", "bbox_reg", 4 * anchors),
        ):
            for index in range(2):
                self.layer(f"head.{head}_head.conv.{index}.0", channels, channels, 3, 3)
            self.layer(f"head.{head}_head.{last}", rows, channels, 3, 3, gain=4.0 if head == "classification" else 0.2)


def thin_state(*, basic: bool = False, norm: str = "batch", classes: int = 4, depth: int = 1) -> dict[str, np.ndarray]:
    """Returns the tensors of a thin Faster R-CNN."""
    maker = StateMaker(norm=norm)
    maker.pyramid(maker.resnet(basic=basic))
    maker.two_stage_heads(classes, depth=depth)
    return maker.tensors
