"""Golden cases of detectron2's single functions, held against our operators under its conventions."""

from __future__ import annotations

import json
import math
from functools import lru_cache

import numpy as np
import pytest
from operator_forms import FORMS
from shared_data import shared_path

from roiline.core.rle import decode_rle
from roiline.infer.detection_parts import move_boxes
from roiline.ops.anchors.plain import generate_plain_anchors
from roiline.ops.box_coding import decode_boxes
from roiline.ops.collect_proposals import COLLECT_PROPOSALS
from roiline.ops.detection_output import box_results
from roiline.ops.final_clip import clip_finally
from roiline.ops.generate_proposals import GENERATE_PROPOSALS
from roiline.ops.keypoint_decode import decode_keypoints
from roiline.ops.mask_paste import paste_masks
from roiline.ops.multilevel_roi_align import MULTILEVEL_ROI_ALIGN, assign_levels
from roiline.ops.retinanet_candidates import RETINANET_CANDIDATES
from roiline.ops.retinanet_output import RETINANET_OUTPUT
from roiline.ops.roi_pool import MULTILEVEL_ROI_POOL
from roiline.ops.suppression import suppress_boxes

CLIP = math.log(1000 / 16)
NO_OFFSETS = {"size_offset": 0.0, "corner_offset": 0.0, "delta_clip": CLIP}
LEVELS = {"size_offset": 0.0, "level_epsilon": 1e-8}
FOLDER = "golden/detectron2/ops"


@lru_cache(maxsize=1)
def _stored():
    rows = {row["case"]: row for row in json.loads(shared_path(f"{FOLDER}/manifest.json").read_text())["cases"]}
    with np.load(shared_path(f"{FOLDER}/ops.npz")) as arrays:
        return rows, {name: arrays[name] for name in arrays.files}


def load(case):
    """Returns the arguments, the inputs and the outputs of a case, by name."""
    rows, arrays = _stored()
    if case not in rows:
        pytest.skip(f"golden case {case} is kept apart")
    row = rows[case]
    inputs, outputs = ({name: arrays[f"{case}/{kind}/{name}"] for name in row[f"{kind}puts"]} for kind in ("in", "out"))
    return row["args"], inputs, outputs


def cases(operator, count, *leave_out):
    """Returns the names of an operator's cases."""
    return [f"{operator}_{index:03d}" for index in range(count) if index not in leave_out]


@pytest.mark.parametrize("case", cases("anchors", 4))
def test_anchors(case):
    args, _, expected = load(case)
    levels = len(args["strides"])
    spread = lambda rows: rows * levels if len(rows) == 1 else rows  # noqa: E731
    parts = zip(spread(args["sizes"]), spread(args["aspect_ratios"]), args["strides"], args["grids"], strict=True)
    for level, (sizes, ratios, stride, (height, width)) in enumerate(parts):
        anchors = generate_plain_anchors(sizes, ratios)
        np.testing.assert_allclose(anchors, expected[f"cell{level}"], rtol=1e-6)
        y, x = np.meshgrid(np.arange(height), np.arange(width), indexing="ij")
        shifts = np.stack([x, y, x, y], axis=-1).reshape(-1, 1, 4) * stride
        placed = (shifts + anchors + args["offset"] * stride).reshape(-1, 4)
        np.testing.assert_allclose(placed, expected[f"level{level}"], rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("case", cases("apply_deltas", 5))
def test_deltas(case):
    args, given, expected = load(case)
    deltas = given["deltas"].reshape(len(given["boxes"]), -1, 4)
    decoded = decode_boxes(given["boxes"][:, None], deltas, weights=args["weights"], **NO_OFFSETS)
    np.testing.assert_allclose(decoded.reshape(expected["boxes"].shape), expected["boxes"], rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("case", cases("assign_boxes_to_levels", 3))
def test_levels(case):
    args, given, expected = load(case)
    found = assign_levels(given["boxes"], **args, canonical_level=4, canonical_scale=224.0, **LEVELS)
    level = expected["level"] + (0 if expected["level"].min() >= args["min_level"] else args["min_level"])
    np.testing.assert_array_equal(found, level)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("case", cases("roi_pooler", 10))
def test_roi_features(case, form):
    args, given, expected = load(case)
    maps = [array for name, array in given.items() if name.startswith("feature")]
    boxes = [array for name, array in given.items() if name.startswith("boxes")]
    rois = np.concatenate([np.pad(rows, ((0, 0), (1, 0)), constant_values=i) for i, rows in enumerate(boxes)])
    levels = {
        "spatial_scales": tuple(args["scales"]),
        "resolution": args["output_size"],
        "min_level": int(-math.log2(args["scales"][0])),
        **LEVELS,
    }
    if args["pooler_type"] == "ROIPool":
        (pooled,) = FORMS[form](MULTILEVEL_ROI_POOL, (rois.astype(np.float32), *maps), **levels)
    else:
        half_pixel = int(args["pooler_type"] == "ROIAlignV2")
        (pooled,) = FORMS[form](
            MULTILEVEL_ROI_ALIGN,
            (rois.astype(np.float32), *maps),
            sampling_ratio=args["sampling_ratio"],
            half_pixel=half_pixel,
            **levels,
        )
    np.testing.assert_allclose(pooled, expected["pooled"], atol=2e-5, rtol=1e-5)


# 006: what shifts classes apart in one of torchvision's two ways lets negative coordinates of one class reach into another; its other way
# does not, and it chooses by the number of boxes. Here classes never meet.
@pytest.mark.parametrize("case", cases("batched_nms", 10, 6))
def test_suppression_by_group(case):
    args, given, expected = load(case)
    boxes, scores, groups = given["boxes"], given["scores"], given["idxs"]
    kept = np.zeros(0, np.int64)
    for group in np.unique(groups):
        rows = np.flatnonzero(groups == group)
        found = suppress_boxes(
            boxes[rows], scores[rows], threshold=args["iou_threshold"], inclusive=False, plus_one=0.0
        )
        kept = np.concatenate([kept, rows[found]])
    kept = kept[np.lexsort((kept, -scores[kept]))]
    np.testing.assert_array_equal(kept, expected["keep"])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("case", cases("find_top_rpn_proposals", 6, 4))  # 004: logits and boxes that are not finite
def test_proposals(case, form):
    args, given, expected = load(case)
    levels = sum(name.startswith("logits") for name in given)
    least = args["min_box_size"]
    min_side = float(np.nextafter(np.float32(least), np.float32(np.inf))) if least else float(np.finfo(np.float32).tiny)
    for image, (height, width) in enumerate(args["image_sizes"]):
        parts = []
        for level in range(levels):
            logits, boxes = given[f"logits{level}"][image], given[f"proposals{level}"][image]
            count = len(logits)
            feeds = (
                logits.reshape(1, count, 1, 1),
                np.zeros((1, 4 * count, 1, 1), np.float32),
                np.array([[height, width, 1]], np.float32),
                boxes,
                np.ones(2, np.float32),
            )
            parts.append(
                FORMS[form](
                    GENERATE_PROPOSALS,
                    feeds,
                    pre_nms_top_n=args["pre_nms_topk"],
                    post_nms_top_n=args["post_nms_topk"],
                    nms_thresh=args["nms_thresh"],
                    nms_inclusive=0,
                    min_size_in_network=1,
                    min_side=min_side,
                    **NO_OFFSETS,
                )
            )
        boxes, scores, count = FORMS[form](
            COLLECT_PROPOSALS,
            (*(part[0] for part in parts), *(part[1] for part in parts)),
            post_nms_top_n=args["post_nms_topk"],
        )
        assert count[0] == len(expected[f"logits_im{image}"])
        np.testing.assert_allclose(scores[0], expected[f"logits_im{image}"], atol=1e-6)
        np.testing.assert_allclose(boxes[0], expected[f"boxes_im{image}"], atol=1e-3)


@pytest.mark.parametrize("case", cases("fast_rcnn_inference", 7, 4))  # 004: scores and boxes that are not finite
def test_detections(case):
    args, given, expected = load(case)
    scores = np.roll(given["scores"], 1, axis=1)  # the background comes last there, first here
    height, width = args["image_shape"]
    boxes = np.clip(given["boxes"].reshape(len(scores), -1, 4), 0, np.array([width, height, width, height]))
    boxes = np.broadcast_to(boxes, (len(scores), scores.shape[1] - 1, 4)).astype(np.float32)
    found = box_results(
        scores,
        np.concatenate([boxes[:, :1], boxes], axis=1),
        score_thresh=args["score_thresh"],
        nms_thresh=args["nms_thresh"],
        max_dets=args["topk_per_image"],
        inclusive=False,
        plus_one=0.0,
        ranked=True,
    )
    np.testing.assert_array_equal(found[2] - 1, expected["pred_classes"])
    np.testing.assert_allclose(found[1], expected["scores"], atol=1e-6)
    np.testing.assert_allclose(found[0], expected["pred_boxes"], atol=1e-4)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("case", cases("retinanet_inference", 2))
def test_one_stage(case, form):
    args, given, expected = load(case)
    (height, width), (out_height, out_width) = args["image_size"], args["output_size"]
    levels = sum(name.startswith("logits") for name in given)
    scores, deltas, anchors = [], [], []
    for level in range(levels):
        logits = given[f"logits{level}"].reshape(-1, given[f"logits{level}"].shape[-1])  # (anchors, classes) there
        cells, classes = logits.shape
        scores.append((1 / (1 + np.exp(-logits))).astype(np.float32).reshape(1, cells * classes, 1, 1))
        weighted = given[f"deltas{level}"].reshape(-1, 4) / np.asarray(args["weights"], np.float32)
        deltas.append(weighted.astype(np.float32).reshape(1, 4 * cells, 1, 1))
        anchors.append(given[f"anchors{level}"])
    most = max(map(len, anchors))
    for level, rows in enumerate(anchors):  # as many anchors on every level: those beyond score nothing
        extra = most - len(rows)
        scores[level] = np.pad(scores[level], ((0, 0), (0, extra * classes), (0, 0), (0, 0)))
        deltas[level] = np.pad(deltas[level], ((0, 0), (0, 4 * extra), (0, 0), (0, 0)))
        anchors[level] = np.pad(rows, ((0, extra), (0, 0)))
    info, size = np.array([[height, width, 1]], np.float32), np.array([[out_height, out_width]], np.float32)
    candidates = FORMS[form](
        RETINANET_CANDIDATES,
        (*scores, *deltas, np.stack(anchors).astype(np.float32), info, size),
        strides=(1.0,) * levels,
        pre_nms_top_n=args["topk_candidates"],
        network_frame=1,
        clip=0,
        **NO_OFFSETS,
    )
    boxes, found, labels, count = FORMS[form](
        RETINANET_OUTPUT,
        (*candidates, size),
        num_classes=classes + 1,
        score_thresh=args["score_thresh"],
        coarsest_score_thresh=args["score_thresh"],
        nms_thresh=args["nms_thresh"],
        max_dets=args["max_detections"],
        nms_inclusive=0,
        size_offset=0.0,
        ranked=1,
    )
    assert count[0] == len(expected["post_scores"])
    np.testing.assert_allclose(found[0], expected["post_scores"], atol=1e-6)
    np.testing.assert_allclose(boxes[0], expected["post_boxes"], atol=1e-3)
    assert set(labels[0] - 1) <= set(expected["pred_classes"])


@pytest.mark.parametrize("case", cases("paste_masks", 3))
def test_masks(case):
    args, given, expected = load(case)
    height, width = args["image_shape"]
    masks, boxes = given["masks"].reshape(-1, *given["masks"].shape[-2:]), given["boxes"]
    found = paste_masks(masks, boxes, height, width, threshold=args["threshold"], convention="detectron2")
    bits = np.unpackbits(expected["image_masks_packed"])[: len(masks) * height * width]
    for mask, counts in zip(bits.reshape(-1, height, width), found, strict=True):
        assert int((mask != decode_rle(counts, height, width)).sum()) <= 1


@pytest.mark.parametrize("case", cases("heatmaps_to_keypoints", 2))
def test_keypoints(case):
    _, given, expected = load(case)
    found = decode_keypoints(given["maps"], given["rois"], map_normalised=True).transpose(0, 2, 1)
    np.testing.assert_allclose(found, expected["xy_logit_score"], atol=1e-3, rtol=1e-4)


def test_the_last_clip():
    args, given, expected = load("detector_postprocess_000")
    network, size = np.array(args["image_size"], np.float32), np.array(args["output"], np.float32)
    boxes, alive = clip_finally(move_boxes(given["pred_boxes"], network, size), size)
    np.testing.assert_allclose(boxes[alive], expected["pred_boxes"], atol=1e-4)
    np.testing.assert_array_equal(given["scores"][alive], expected["scores"])
