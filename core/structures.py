"""The values that flow from a dataset to its results.

Shape letters, used everywhere: N images, R proposals (RoIs), D detections, G ground truth boxes, A anchors per cell, L levels,
K classes (background included), J keypoints, H W height and width in pixels.

Boxes are float32 rows (x1, y1, x2, y2). Unless a name says otherwise they are in pixels of the original picture as the dataset
knows it (`height`, `width`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Float32: TypeAlias = NDArray[np.float32]
Float64: TypeAlias = NDArray[np.float64]
Int64: TypeAlias = NDArray[np.int64]
Int32: TypeAlias = NDArray[np.int32]
Bool: TypeAlias = NDArray[np.bool_]
UInt8: TypeAlias = NDArray[np.uint8]

ImageId: TypeAlias = int | str
"""The dataset's own id of a picture; results carry it back unchanged."""

Taps: TypeAlias = Mapping[str, NDArray[Any]]
"""Tapped blobs of one picture by name, each as it is in a run over that picture alone; empty where the model has no taps."""


def _no_boxes() -> Float32:
    return np.zeros((0, 4), np.float32)


@dataclass(frozen=True, slots=True)
class RoidbEntry:
    """Is one picture of a dataset, with its ground truth where the dataset has any.

    `boxes` (G, 4) have inclusive corners: x2 - x1 + 1 is the width. `classes` (G,) are contiguous, 1 for the dataset's first category
    (0 is background). `areas` (G,) are the annotation's areas in square pixels, `crowd` (G,) marks crowd regions.
    `height` and `width` are 0 until they are known (folders and lists are sized from the files' headers).
    """

    image_id: ImageId
    path: Path
    height: int
    width: int
    boxes: Float32 = field(default_factory=_no_boxes)
    classes: Int32 = field(default_factory=lambda: np.zeros(0, np.int32))
    crowd: Bool = field(default_factory=lambda: np.zeros(0, np.bool_))
    areas: Float32 = field(default_factory=lambda: np.zeros(0, np.float32))


@dataclass(frozen=True, slots=True)
class ImageBatch:
    """Is what one engine call gets: pictures of one padded shape.

    `pixels` (N, 3, H, W) float32, `im_info` (N, 3) float32 rows (padded height, padded width, scale), `sizes` (N, 2) float32 rows
    (original height, original width), `ids` the N image ids in order. Where the predictor needs them: `pictures`, N original pictures
    (H, W, 3) uint8 in BGR order, and `proposals`, N arrays (R, 4) of given boxes in original pixels.
    """

    pixels: Float32
    im_info: Float32
    sizes: Float32
    ids: tuple[ImageId, ...]
    pictures: tuple[UInt8, ...] = ()
    proposals: tuple[Float32, ...] = ()


@dataclass(frozen=True, slots=True)
class Proposals:
    """Is the RPN's answer for one picture: `boxes` (R, 4) in original pixels and `scores` (R,), by descending score."""

    image_id: ImageId
    boxes: Float32
    scores: Float32
    taps: Taps = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Detections:
    """Is a detector's answer for one picture, class by class, in the source program's order within a class.

    `boxes` (D, 4) in original pixels, `scores` (D,), `classes` (D,) int64 from 1 (0 is background). `masks` are D of COCO's compressed run
    lengths of `size_hw`, the (height, width) of the original picture, `keypoints` (D, 4, J) rows x, y in original pixels, logit,
    probability; None where the model makes none. Where models are combined, masks or keypoints may be those of other detections than the
    boxes are: `mask_rows` and `keypoint_rows` are these then.
    """

    image_id: ImageId
    boxes: Float32
    scores: Float32
    classes: Int64
    masks: tuple[bytes, ...] | None = None
    keypoints: Float32 | None = None
    size_hw: tuple[int, int] = (0, 0)
    mask_rows: Detections | None = None
    keypoint_rows: Detections | None = None
    taps: Taps = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Classification:
    """Is a classifier's answer for one whole picture: `scores` (K,) of the classes, background first."""

    image_id: ImageId
    scores: Float32
    taps: Taps = field(default_factory=dict)


Result: TypeAlias = Proposals | Detections | Classification
