"""A predictor with masks and keypoints that no network makes: the fake engine's boxes, each with a mask and keypoints of its own.

Workers import this module by the name that `RunRequest.predictor` gives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from roiline.core.rle import encode_mask
from roiline.core.spec import KeypointRules, MaskRules
from roiline.core.structures import Detections, Float32, ImageBatch
from roiline.infer.model import open_predictor
from roiline.infer.predictor import Predictor

PARTS: dict[str, Any] = {"masks": MaskRules(28, 0.5), "keypoints": KeypointRules(3, 0, "logit", False)}
"""What a specification says of them."""


class _WithParts(Predictor):
    needs_pictures = False
    needs_proposals = False

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.spec = inner.spec

    @property
    def description(self) -> Mapping[str, str]:
        return self._inner.description

    def infer(self, batch: ImageBatch) -> Any:
        return self._inner.infer(batch)

    def finish(self, outputs: Any, batch: ImageBatch) -> Sequence[Detections]:
        found = self._inner.finish(outputs, batch)
        return [add_parts(one, size) for one, size in zip(found, batch.sizes, strict=True)]

    def close(self) -> None:
        self._inner.close()


def add_parts(found: Detections, size_hw: Float32) -> Detections:
    """Returns the detections with their boxes' pixels as masks, and three corners of each box as keypoints."""
    height, width = (int(side) for side in size_hw)
    masks, points = [], []
    for box, score in zip(found.boxes, found.scores, strict=True):
        x1, y1, x2, y2 = box
        mask = np.zeros((height, width), np.bool_)
        mask[int(y1) : int(y2) + 1, int(x1) : int(x2) + 1] = True
        masks.append(encode_mask(mask))
        points.append([[x1, x2, x2], [y1, y1, y2], [4 * score, 3, 1], [score, score / 2, score / 3]])
    keypoints = np.array(points, np.float32).reshape(-1, 4, 3)
    return replace(found, masks=tuple(masks), keypoints=keypoints, size_hw=(height, width))


def open_with_parts(model: Path, *args: Any, **options: Any) -> Any:
    return _WithParts(open_predictor(model, *args, **options))
