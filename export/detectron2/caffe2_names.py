"""Gives Detectron's weights the names and rows that detectron2 gives them when it loads such a file.

Background rows go: the first class of masks and box deltas is dropped, that of class scores becomes the last. Rows of an RPN stay where
they are, although the two programs order the anchors of a cell differently: what comes out is what detectron2 computes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roiline.core.errors import WeightError

_PARTS: Mapping[str, str] = {
    "w": "weight",
    "b": "bias",
    "bn_s": "norm.weight",
    "bn_b": "norm.bias",
    "bn_gamma": "norm.weight",
    "bn_beta": "norm.bias",
    "bn_rm": "norm.running_mean",
    "bn_running_mean": "norm.running_mean",
    "bn_riv": "norm.running_var",
    "bn_running_var": "norm.running_var",
    "gn_s": "norm.weight",
    "gn_b": "norm.bias",
}
_PART = re.compile(rf"(.+?)_({'|'.join(sorted(_PARTS, key=len, reverse=True))})")
_BRANCHES = {"1": "shortcut", "2a": "conv1", "2b": "conv2", "2c": "conv3"}
_LAYERS: tuple[tuple[str, str], ...] = (
    (r"(?:res_)?conv1", "stem.conv1"),
    (r"res(\d)_(\d+)_branch(1|2[abc])", ""),  # its last number is looked up
    (r"fpn_inner_res(\d)_\d+_sum(?:_lateral)?", r"fpn_lateral\1"),
    (r"fpn_res(\d)_\d+_sum", r"fpn_output\1"),
    (r"conv_rpn(?:_fpn2)?", "proposal_generator.rpn_head.conv"),
    (r"rpn_cls_logits(?:_fpn2)?", "proposal_generator.rpn_head.objectness_logits"),
    (r"rpn_bbox_pred(?:_fpn2)?", "proposal_generator.rpn_head.anchor_deltas"),
    (r"fc6", "box_head.fc1"),
    (r"fc7", "box_head.fc2"),
    (r"head_conv(\d+)", r"box_head.conv\1"),
    (r"cls_score", "cls_score"),
    (r"bbox_pred", "bbox_pred"),
    (r"_(?:\[mask\]|mask)_fcn(\d+)", r"mask_head.mask_fcn\1"),
    (r"conv5_mask", "mask_head.deconv"),
    (r"mask_fcn_logits", "mask_head.predictor"),
    (r"conv_fcn(\d+)", r"roi_heads.keypoint_head.conv_fcn\1"),
    (r"kps_score_lowres", "roi_heads.keypoint_head.score_lowres"),
)


def rename_blob(blob: str) -> str | None:
    """Returns the end of the parameter's name in detectron2; None for a blob that it does not load."""
    match = _PART.fullmatch(blob)
    if match is None:
        return None
    layer, part = match[1], _PARTS[match[2]]
    for pattern, name in _LAYERS:
        found = re.fullmatch(pattern, layer)
        if found is not None:
            path = found.expand(name) if name else f"res{found[1]}.{found[2]}.{_BRANCHES[found[3]]}"
            return f"{path}.{part}"
    return None


def convert_blobs(blobs: Mapping[str, NDArray[Any]], source: str) -> dict[str, NDArray[Any]]:
    """Returns arrays by (the end of) detectron2's names; blobs that it does not load keep their own.

    Raises:
        WeightError: two blobs have one name there.
    """
    converted: dict[str, NDArray[Any]] = {}
    for blob in sorted(blobs):
        name = rename_blob(blob) or blob
        if name in converted:
            raise WeightError(f"{source}: two blobs become {name} in detectron2, the second is {blob}")
        converted[name] = _move_background(name, blobs[blob])
    return converted


def _move_background(name: str, rows: NDArray[Any]) -> NDArray[Any]:
    if name.startswith("cls_score."):
        return np.concatenate([rows[1:], rows[:1]])
    if name.startswith("bbox_pred."):
        return rows[4:]
    return rows[1:] if name.startswith("mask_head.predictor.") else rows
