"""Inputs for every operator with kernels: what networks of usual sizes give them, and small ones of the same kind.

Rows of several pictures lie in equal parts, as an engine of fixed sizes has them. Values are random from a fixed seed, scores of the best
candidates far enough apart that no order hangs on a last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]

DELTA_CLIP = float(np.log(1000.0 / 16.0))
LEVEL_STRIDES = (4, 8, 16, 32)


@dataclass(frozen=True, slots=True)
class Case:
    """Is one call of an operator: its name, a word on what it stands for, inputs in order, and attributes."""

    operator: str
    stands_for: str
    arrays: tuple[Array, ...]
    attributes: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Sizes:
    """Is how large the inputs are: network input, channels, RoIs, classes (background included)."""

    height: int
    width: int
    channels: int
    rois: int
    classes: int
    before_nms: int
    before_nms_one_level: int


USUAL = Sizes(800, 1344, 256, 1000, 81, 1000, 12000)
SMALL = Sizes(128, 160, 8, 40, 5, 50, 300)


def make_cases(sizes: Sizes, *, seed: int = 1) -> list[Case]:
    """Returns a case of every operator, the same for the same seed."""
    makers: tuple[Callable[[Sizes, np.random.Generator], Case], ...] = (
        _align,
        _align_half,
        _pool,
        _pool_grid,
        _trim,
        _transform,
        _propose_level,
        _propose_one_level,
        _collect,
        _detect,
        _limit,
        _retina_candidates,
        _retina_output,
    )
    return [make(sizes, np.random.default_rng((seed, number))) for number, make in enumerate(makers)]


def _boxes(sizes: Sizes, count: int, random: np.random.Generator) -> Array:
    """Boxes (count, 4) in the network's input, from a few pixels to half a picture."""
    extent = np.array([sizes.width, sizes.height])
    sides = np.exp(random.uniform(np.log(6), np.log(extent / 2), (count, 2)))
    corners = random.random((count, 2)) * (extent - sides)
    return np.concatenate([corners, corners + sides], axis=1).astype(np.float32)


def _rois(sizes: Sizes, random: np.random.Generator) -> Array:
    return np.pad(_boxes(sizes, sizes.rois, random), ((0, 0), (1, 0)))


def _apart(count: int, random: np.random.Generator) -> Array:
    """Scores in (0, 1) that differ by much more than a last bit, shuffled."""
    return random.permutation((np.arange(count) + 0.5) / count).astype(np.float32)


def _pyramid(sizes: Sizes, random: np.random.Generator, dtype: type[np.floating[Any]]) -> list[Array]:
    return [
        random.normal(size=(1, sizes.channels, sizes.height // stride, sizes.width // stride)).astype(dtype)
        for stride in LEVEL_STRIDES
    ]


def _align(sizes: Sizes, random: np.random.Generator) -> Case:
    attributes = {"spatial_scales": tuple(1 / stride for stride in LEVEL_STRIDES), "resolution": 7, "sampling_ratio": 2}
    arrays = (_rois(sizes, random), *_pyramid(sizes, random, np.float32))
    return Case("MultiLevelRoIAlign", "FPN box head", arrays, attributes)


def _align_half(sizes: Sizes, random: np.random.Generator) -> Case:
    attributes = {
        "spatial_scales": tuple(1 / stride for stride in LEVEL_STRIDES),
        "resolution": 14,
        "sampling_ratio": 2,
    }
    arrays = (_rois(sizes, random)[: max(1, sizes.rois // 10)], *_pyramid(sizes, random, np.float16))
    return Case("MultiLevelRoIAlign", "mask head, fp16 features", arrays, attributes)


def _pool(sizes: Sizes, random: np.random.Generator) -> Case:
    features = random.normal(size=(1, 4 * sizes.channels, sizes.height // 16, sizes.width // 16)).astype(np.float32)
    attributes = {"spatial_scales": (1 / 16,), "resolution": 14}
    return Case("MultiLevelRoIPool", "C4 box head", (_rois(sizes, random)[:300], features), attributes)


def _pool_grid(sizes: Sizes, random: np.random.Generator) -> Case:
    features = random.normal(size=(1, 49 * sizes.classes, sizes.height // 16, sizes.width // 16)).astype(np.float32)
    attributes = {"spatial_scales": (1 / 16,), "grid": 7}
    return Case("MultiLevelPSRoIPool", "R-FCN scores", (_rois(sizes, random)[:300], features), attributes)


def _trim(sizes: Sizes, random: np.random.Generator) -> Case:
    boxes = np.stack([_boxes(sizes, sizes.rois, random) for _ in range(2)])
    return Case("Trim", "proposals of two pictures", (boxes, np.int64([sizes.rois, sizes.rois // 3])), {})


def _transform(sizes: Sizes, random: np.random.Generator) -> Case:
    deltas = random.normal(0, 0.5, (sizes.rois, 4 * sizes.classes)).astype(np.float32)
    info = np.float32([[sizes.height, sizes.width, 1.6]])
    return Case(
        "BBoxTransform", "a Caffe2 net", (_rois(sizes, random), deltas, info), {"weights": (10.0, 10.0, 5.0, 5.0)}
    )


def _anchors(count: int, stride: int) -> Array:
    sides = stride * 8 * np.sqrt(np.linspace(0.5, 2, count))
    return (np.stack([-sides, -sides[::-1], sides, sides[::-1]], axis=1) / 2).astype(np.float32)


def _propose(sizes: Sizes, random: np.random.Generator, *, stride: int, anchors: int, before: int, word: str) -> Case:
    rows, columns = sizes.height // stride, sizes.width // stride
    scores = np.stack([_apart(anchors * rows * columns, random).reshape(anchors, rows, columns) for _ in range(2)])
    deltas = random.normal(0, 0.3, (2, 4 * anchors, rows, columns)).astype(np.float32)
    info = np.float32([[sizes.height, sizes.width, 1.6], [sizes.height - 20, sizes.width - 50, 1.2]])
    attributes = {"pre_nms_top_n": before, "post_nms_top_n": before, "nms_thresh": 0.7, "delta_clip": DELTA_CLIP}
    arrays = (scores, deltas, info, _anchors(anchors, stride), np.float32([stride, stride]))
    return Case("GenerateProposals", word, arrays, attributes)


def _propose_level(sizes: Sizes, random: np.random.Generator) -> Case:
    word = "finest FPN level, two pictures"
    return _propose(sizes, random, stride=4, anchors=3, before=sizes.before_nms, word=word)


def _propose_one_level(sizes: Sizes, random: np.random.Generator) -> Case:
    word = f"C4, {sizes.before_nms_one_level} before NMS, two pictures"
    return _propose(sizes, random, stride=16, anchors=15, before=sizes.before_nms_one_level, word=word)


def _collect(sizes: Sizes, random: np.random.Generator) -> Case:
    boxes = [np.stack([_boxes(sizes, sizes.before_nms, random)] * 2) for _ in range(5)]
    scores = [np.sort(random.random((2, sizes.before_nms), np.float32))[:, ::-1].copy() for _ in range(5)]
    for level, rows in enumerate(scores):
        rows[:, sizes.before_nms - 5 * level :] = -np.inf
    return Case("CollectProposals", "five FPN levels", (*boxes, *scores), {"post_nms_top_n": sizes.rois})


def _detect(sizes: Sizes, random: np.random.Generator) -> Case:
    logits = random.normal(0, 2, (sizes.rois, sizes.classes))
    probabilities = (np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)).astype(np.float32)
    deltas = random.normal(0, 1, (sizes.rois, 4 * sizes.classes)).astype(np.float32)
    info, size = np.float32([[sizes.height, sizes.width, 1.6]]), np.float32([[sizes.height / 1.6, sizes.width / 1.6]])
    attributes = {
        "score_thresh": 0.05,
        "nms_thresh": 0.5,
        "max_dets": 100,
        "bbox_reg_weights": (10.0, 10.0, 5.0, 5.0),
        "delta_clip": DELTA_CLIP,
    }
    arrays = (_rois(sizes, random), probabilities, deltas, info, size, np.int64([sizes.rois]))
    return Case("DetectionOutput", "FPN box head's answers", arrays, attributes)


def _limit(sizes: Sizes, random: np.random.Generator) -> Case:
    scores = _apart(300 * sizes.classes, random).reshape(300, sizes.classes) ** 3
    boxes = np.concatenate([_boxes(sizes, 300, random) for _ in range(sizes.classes)], axis=1)
    return Case("BoxWithNMSLimit", "a Caffe2 net", (scores, boxes), {"nms_thresh": 0.5})


def _retina_candidates(sizes: Sizes, random: np.random.Generator) -> Case:
    shapes = [(-(-sizes.height // stride), -(-sizes.width // stride)) for stride in (8, 16, 32)]
    classes, anchors = sizes.classes - 1, 9
    probabilities = [
        _apart(anchors * classes * rows * columns, random).reshape(1, -1, rows, columns) for rows, columns in shapes
    ]
    deltas = [random.normal(0, 0.3, (1, 4 * anchors, rows, columns)).astype(np.float32) for rows, columns in shapes]
    places = np.stack([_anchors(anchors, stride) for stride in (8, 16, 32)])
    info, size = np.float32([[sizes.height, sizes.width, 1.6]]), np.float32([[sizes.height / 1.6, sizes.width / 1.6]])
    attributes = {
        "strides": (8.0, 16.0, 32.0),
        "pre_nms_top_n": sizes.before_nms,
        "delta_clip": DELTA_CLIP,
    }
    return Case("RetinaNetCandidates", "three levels", (*probabilities, *deltas, places, info, size), attributes)


def _retina_output(sizes: Sizes, random: np.random.Generator) -> Case:
    count = 5 * sizes.before_nms
    boxes = np.stack([_boxes(sizes, count, random)] * 2)
    scores = np.stack([_apart(count, random) for _ in range(2)])
    classes = random.integers(1, sizes.classes, (2, count))
    levels = np.stack([np.repeat(np.arange(5), sizes.before_nms)] * 2)
    attributes = {"num_classes": sizes.classes, "score_thresh": 0.05, "nms_thresh": 0.5, "max_dets": 100}
    return Case("RetinaNetOutput", "five levels, two pictures", (boxes, scores, classes, levels), attributes)
