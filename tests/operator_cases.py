"""How every operator of the catalogue is fed with random input: variations of attributes, and rows for each picture of a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from roiline.ops.bbox_transform import BBOX_TRANSFORM
from roiline.ops.box_with_nms_limit import BOX_WITH_NMS_LIMIT
from roiline.ops.collect_proposals import COLLECT_PROPOSALS
from roiline.ops.detection_output import DETECTION_OUTPUT
from roiline.ops.generate_proposals import GENERATE_PROPOSALS
from roiline.ops.multilevel_roi_align import MULTILEVEL_ROI_ALIGN
from roiline.ops.operator import Operator
from roiline.ops.ps_roi_pool import MULTILEVEL_PS_ROI_POOL
from roiline.ops.retinanet_candidates import RETINANET_CANDIDATES
from roiline.ops.retinanet_output import RETINANET_OUTPUT
from roiline.ops.roi_pool import MULTILEVEL_ROI_POOL
from roiline.ops.trim import TRIM

Feed = tuple[np.ndarray, ...]
Rows = tuple[int, ...]
CLIP = float(np.log(1000.0 / 16.0))
K = 4
NO_PLUS_ONE = {"size_offset": 0.0, "corner_offset": 0.0}
ROWS: tuple[Rows, ...] = ((0,), (1,), (40,), (25, 0), (1, 1), (0, 0, 0), (17, 0, 30), (1, 12, 0))


@dataclass(frozen=True)
class FormCase:
    """Is how one operator is fed: `feed` makes arrays for rows of each picture, `single` takes one picture's inputs out of a batch,
    `answer` one picture's part of the batch's outputs, as it stands in the outputs of that picture alone."""

    operator: Operator
    variations: Mapping[str, Mapping[str, Any]]
    feed: Callable[[np.random.Generator, Rows, Mapping[str, Any]], Feed]
    single: Callable[[Feed, Rows, int], Feed]
    answer: Callable[[Feed, Rows, int], Feed]


def _span(rows: Rows, image: int) -> slice:
    start = sum(rows[:image])
    return slice(start, start + rows[image])


def _boxes(rng: np.random.Generator, *shape: int) -> np.ndarray:
    low = rng.uniform(0, 150, (*shape, 2))
    return np.concatenate([low, low + rng.uniform(1, 120, (*shape, 2))], axis=-1).astype(np.float32)


def _rois(rng: np.random.Generator, rows: Rows) -> np.ndarray:
    images = np.repeat(np.arange(len(rows)), rows).astype(np.float32)
    return np.concatenate([images[:, None], _boxes(rng, sum(rows))], axis=1)


def _info(rng: np.random.Generator, images: int) -> np.ndarray:
    return np.stack([np.full(images, 192), np.full(images, 224), rng.uniform(0.5, 2, images)], axis=1).astype(
        np.float32
    )


def _scores(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Returns scores of two decimals, so that many are equal."""
    return np.round(rng.uniform(0, 1, shape), 2).astype(np.float32)


def _trimmed(outputs: Feed, _rows: Rows, image: int) -> Feed:
    """Returns one picture's rows of padded outputs (N, longest, ...), and its count."""
    count = int(outputs[-1][image])
    return (*(array[image : image + 1, :count] for array in outputs[:-1]), outputs[-1][image : image + 1])


def _feed_generate(rng, rows, attributes):
    images, (height, width, anchors) = len(rows), (5, 6, 3) if max(rows) > 1 else (1, 1, 1)
    return (
        _scores(rng, images, anchors, height, width),
        rng.normal(0, 0.4, (images, 4 * anchors, height, width)).astype(np.float32),
        _info(rng, images),
        np.array([[-22, -10, 25, 13], [-14, -14, 17, 17], [-10, -22, 13, 25]], np.float32)[:anchors],
        np.array([32, 32], np.float32),
    )


PROPOSAL_RULES = {"pre_nms_top_n": 60, "post_nms_top_n": 20, "nms_thresh": 0.5, "delta_clip": CLIP}
GENERATE = FormCase(
    GENERATE_PROPOSALS,
    {
        "detectron": PROPOSAL_RULES,
        "no_limits": {**PROPOSAL_RULES, "pre_nms_top_n": 0, "post_nms_top_n": -1},
        "small_boxes_go": {**PROPOSAL_RULES, "min_size": 30.0},
        "nothing_survives": {**PROPOSAL_RULES, "min_size": 5000.0},
        "no_nms": {**PROPOSAL_RULES, "nms_thresh": 1.0, "nms_inclusive": 0, "post_nms_top_n": 0},
        "caffe2": {
            **PROPOSAL_RULES,
            **NO_PLUS_ONE,
            "min_size": 16.0,
            "min_size_in_network": 1,
            "nms_inclusive": 0,
            "one_empty_box": 1,
        },
        "detectron2": {**PROPOSAL_RULES, **NO_PLUS_ONE, "nms_inclusive": 0},
        "torchvision": {
            **PROPOSAL_RULES,
            **NO_PLUS_ONE,
            "nms_inclusive": 0,
            "logits": 1,
            "score_thresh": 0.55,
            "min_size_in_network": 1,
            "min_side": 20.0,
        },
    },
    _feed_generate,
    lambda feed, rows, image: (*(array[image : image + 1] for array in feed[:3]), *feed[3:]),
    _trimmed,
)


def _feed_collect(rng, rows, attributes):
    """Spreads each picture's rows over three levels, each padded to its longest, with boxes that are not numbers in the padding."""
    boxes, scores = [], []
    for level in range(3):
        counts = np.array([len(range(level, n, 3)) for n in rows])
        filled = np.arange(max(counts))[None] < counts[:, None]
        boxes.append(np.where(filled[..., None], _boxes(rng, *filled.shape), np.float32(np.nan)))
        scores.append(np.where(filled, _scores(rng, *filled.shape), np.float32(-np.inf)))
    return (*boxes, *scores)


COLLECT = FormCase(
    COLLECT_PROPOSALS,
    {"all": {"post_nms_top_n": 0}, "few": {"post_nms_top_n": 7}, "plenty": {"post_nms_top_n": 1000}},
    _feed_collect,
    lambda feed, rows, image: tuple(array[image : image + 1] for array in feed),
    _trimmed,
)


def _feed_detection(rng, rows, attributes):
    columns = 8 if attributes.get("class_agnostic") else 4 * K
    info = _info(rng, len(rows))
    return (
        _rois(rng, rows),
        _scores(rng, sum(rows), K),
        rng.normal(0, 2, (sum(rows), columns)).astype(np.float32),
        info,
        np.floor(info[:, :2] / info[:, 2:]),
        np.array(rows, np.int64),
    )


def _single_detection(feed, rows, image):
    span, own = _span(rows, image), slice(image, image + 1)
    rois = feed[0][span].copy()
    rois[:, 0] = 0
    return (rois, feed[1][span], feed[2][span], feed[3][own], feed[4][own], feed[5][own])


DETECTION_RULES = {
    "score_thresh": 0.3,
    "nms_thresh": 0.5,
    "max_dets": 10,
    "bbox_reg_weights": (10.0, 10.0, 5.0, 5.0),
    "delta_clip": CLIP,
}
TORCHVISION = {**NO_PLUS_ONE, "nms_inclusive": 0, "network_frame": 1, "smallest_side": 40.0, "ranked": 1}
DETECTION = FormCase(
    DETECTION_OUTPUT,
    {
        "detectron": DETECTION_RULES,
        "class_agnostic": {**DETECTION_RULES, "class_agnostic": 1},
        "no_limit": {**DETECTION_RULES, "max_dets": 0},
        "all_scores": {**DETECTION_RULES, "score_thresh": -1.0, "max_dets": -1},
        "nothing_survives": {**DETECTION_RULES, "score_thresh": 2.0},
        "detectron2": {**DETECTION_RULES, "nms_inclusive": 0, **NO_PLUS_ONE},
        "detectron2_clipped": {**DETECTION_RULES, "nms_inclusive": 0, **NO_PLUS_ONE, "ranked": 1, "final_clip": 1},
        "torchvision": {**DETECTION_RULES, **TORCHVISION},
        "torchvision_no_limit": {**DETECTION_RULES, **TORCHVISION, "max_dets": 0, "smallest_side": 0.0},
        "torchvision_no_regression": {**DETECTION_RULES, **TORCHVISION, "regress": 0},
        "torchvision_nothing": {**DETECTION_RULES, **TORCHVISION, "smallest_side": 5000.0},
    },
    _feed_detection,
    _single_detection,
    _trimmed,
)


def _feed_align(rng, rows, attributes):
    sides = [round(192 * scale) for scale in attributes["spatial_scales"]]
    maps = [rng.normal(0, 1, (len(rows), 3, side, side + 2)).astype(np.float32) for side in sides]
    rois = _rois(rng, rows)
    rois[::3, 3:] += 300
    return (rois, *maps)


def _single_rows(feed, rows, image):
    """Takes one picture's rows of the first input and its part of the others."""
    rois = feed[0][_span(rows, image)].copy()
    rois[:, 0] = 0
    return (rois, *(array[image : image + 1] for array in feed[1:]))


PYRAMID = {"spatial_scales": (0.25, 0.125, 0.0625, 0.03125), "resolution": 3, "sampling_ratio": 2}
ALIGN = FormCase(
    MULTILEVEL_ROI_ALIGN,
    {
        "one_map": {"spatial_scales": (0.0625,), "resolution": 3, "sampling_ratio": 0},
        "rectangular": {"spatial_scales": (0.125,), "resolution": 2, "resolution_across": 5, "sampling_ratio": 2},
        "half_pixel": {"spatial_scales": (0.125,), "resolution": 2, "sampling_ratio": 0, "half_pixel": 1},
        "pyramid": PYRAMID,
        "other_levels": {**PYRAMID, "min_level": 3, "canonical_level": 5, "canonical_scale": 128.0},
        "detectron2": {**PYRAMID, "sampling_ratio": 0, "half_pixel": 1, "size_offset": 0.0},
        "torchvision": {**PYRAMID, "size_offset": 0.0, "epsilon_on_level": 1},
    },
    _feed_align,
    _single_rows,
    lambda outputs, rows, image: (outputs[0][_span(rows, image)],),
)


def _feed_grid(rng, rows, attributes):
    rois, *maps = _feed_align(rng, rows, attributes)
    return (rois, *(np.repeat(one, attributes["grid"] ** 2, axis=1) * rng.uniform(0, 1) for one in maps))


POOL = FormCase(
    MULTILEVEL_ROI_POOL,
    {
        "one_map": {"spatial_scales": (0.0625,), "resolution": 3, "resolution_across": 2},
        "pyramid": {"spatial_scales": PYRAMID["spatial_scales"], "resolution": 3},
    },
    _feed_align,
    _single_rows,
    lambda outputs, rows, image: (outputs[0][_span(rows, image)],),
)
GRID = FormCase(
    MULTILEVEL_PS_ROI_POOL,
    {
        "one_map": {"spatial_scales": (0.0625,), "grid": 3},
        "pyramid": {"spatial_scales": PYRAMID["spatial_scales"], "grid": 2},
    },
    _feed_grid,
    _single_rows,
    lambda outputs, rows, image: (outputs[0][_span(rows, image)],),
)


def _feed_trim(rng, rows, attributes):
    boxes = _boxes(rng, len(rows), max(rows))
    boxes[np.arange(max(rows))[None] >= np.array(rows)[:, None]] = np.nan
    return boxes, np.array(rows, np.int64)


def _answer_trim(outputs, rows, image):
    rois = outputs[0][_span(rows, image)].copy()
    rois[:, 0] = 0
    return (rois,)


TRIMMING = FormCase(
    TRIM,
    {"": {}},
    _feed_trim,
    lambda feed, rows, image: tuple(array[image : image + 1] for array in feed),
    _answer_trim,
)


TRANSFORM = FormCase(
    BBOX_TRANSFORM,
    {
        "defaults": {},
        "weighted": {"weights": (10.0, 10.0, 5.0, 5.0), "apply_scale": 0},
        "no_plus_one": NO_PLUS_ONE,
        "of_2018": {"corner_offset": 0.0},
    },
    lambda rng, rows, attributes: (
        _rois(rng, rows),
        rng.normal(0, 0.5, (sum(rows), 4 * K)).astype(np.float32),
        _info(rng, len(rows)),
    ),
    lambda feed, rows, image: (
        *_single_rows(feed[:1], rows, image),
        feed[1][_span(rows, image)],
        feed[2][image : image + 1],
    ),
    lambda outputs, rows, image: (outputs[0][_span(rows, image)], outputs[1][image : image + 1]),
)


def _feed_limit(rng, rows, attributes):
    blocks = 1 if attributes.get("class_agnostic") else K - 1 + attributes.get("boxes_have_background", 1)
    return (
        _scores(rng, sum(rows), K),
        _boxes(rng, sum(rows), blocks).reshape(sum(rows), 4 * blocks),
        np.array(rows, np.float32),
    )


def _answer_limit(outputs, rows, image):
    counts = outputs[3].astype(int)
    span, own = _span(tuple(counts), image), slice(image, image + 1)
    return (*(array[span] for array in outputs[:3]), outputs[3][own], outputs[4][span], outputs[5][own])


LIMIT = FormCase(
    BOX_WITH_NMS_LIMIT,
    {
        "defaults": {},
        "few": {"score_thresh": 0.2, "nms_thresh": 0.5, "max_dets": 7},
        "no_limit": {"score_thresh": -1.0, "max_dets": 0},
        "nothing_survives": {"score_thresh": 2.0},
        "class_agnostic": {"class_agnostic": 1, "boxes_have_background": 0, "max_dets": 9},
        "no_background": {"boxes_have_background": 0, "classes_have_background": 0, "size_offset": 0.0},
    },
    _feed_limit,
    lambda feed, rows, image: (*(array[_span(rows, image)] for array in feed[:2]), feed[2][image : image + 1]),
    _answer_limit,
)


def _feed_dense(rng, rows, attributes):
    """Makes two levels of maps; their size grows with the rows, which are otherwise not used."""
    images, shapes = len(rows), ((5, 6), (2, 3)) if max(rows) > 1 else ((1, 1), (1, 1))
    anchors = np.array([[-12, -12, 19, 19], [-8, -20, 15, 27], [-18, -8, 25, 15]], np.float32)
    info = _info(rng, images)
    return (
        *(_scores(rng, images, 3 * (K - 1), *cells) for cells in shapes),
        *(rng.normal(0, 0.7, (images, 12, *cells)).astype(np.float32) for cells in shapes),
        np.stack([anchors, 2 * anchors]),
        info,
        np.floor(info[:, :2] / info[:, 2:]),
    )


DENSE_RULES = {"strides": (32.0, 64.0), "pre_nms_top_n": 40, "delta_clip": CLIP}
CANDIDATES = FormCase(
    RETINANET_CANDIDATES,
    {
        "detectron": DENSE_RULES,
        "all": {**DENSE_RULES, "pre_nms_top_n": 0},
        "anchors_themselves": {**DENSE_RULES, "regress": 0},
        "detectron2": {**DENSE_RULES, **NO_PLUS_ONE},
        "torchvision": {**DENSE_RULES, **NO_PLUS_ONE, "network_frame": 1, "first_class": 0},
    },
    _feed_dense,
    lambda feed, rows, image: (
        *(array[image : image + 1] for array in feed[:4]),
        feed[4],
        *(array[image : image + 1] for array in feed[5:]),
    ),
    lambda outputs, rows, image: tuple(array[image : image + 1] for array in outputs),
)


def _feed_candidates(rng, rows, attributes):
    shape = len(rows), max(rows)
    filled = np.arange(max(rows))[None] < np.array(rows)[:, None]
    scores = np.where(filled, _scores(rng, *shape), np.float32(-np.inf))
    return _boxes(rng, *shape), scores, rng.integers(1, K, shape), rng.integers(0, 3, shape)


RETINANET_RULES = {"num_classes": K, "score_thresh": 0.3, "nms_thresh": 0.5, "max_dets": 10}
RETINANET = FormCase(
    RETINANET_OUTPUT,
    {
        "detectron": RETINANET_RULES,
        "no_limit": {**RETINANET_RULES, "max_dets": 0},
        "nothing_survives": {**RETINANET_RULES, "score_thresh": 2.0, "coarsest_score_thresh": 2.0},
        "detectron2": {**RETINANET_RULES, "nms_inclusive": 0, "size_offset": 0.0},
        "torchvision": {
            **RETINANET_RULES,
            "nms_inclusive": 0,
            "size_offset": 0.0,
            "first_class": 0,
            "coarsest_score_thresh": 0.3,
            "ranked": 1,
        },
        "torchvision_no_limit": {**RETINANET_RULES, "ranked": 1, "max_dets": 0},
    },
    _feed_candidates,
    lambda feed, rows, image: tuple(array[image : image + 1] for array in feed),
    _trimmed,
)


FORM_CASES = (GENERATE, COLLECT, DETECTION, ALIGN, POOL, GRID, TRIMMING, TRANSFORM, LIMIT, CANDIDATES, RETINANET)


def make_feed(case: FormCase, attributes: Mapping[str, Any], rows: Rows) -> Feed:
    """Returns the arrays of a case, the same for the same rows."""
    return case.feed(np.random.default_rng(list(rows)), rows, attributes)
