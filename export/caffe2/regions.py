"""Operators of a NetDef that work on regions: proposals, their levels, their features, and the detections made of them.

RoIs are flat rows (T, 5) = (image index, box in network-input pixels), or (T, 4) of one picture. Two generations of operators differ by
an argument: with `correct_transform_coords` (2018, 2019) widths always are x2 - x1 + 1 and the far corner is corrected by 1 only if it
is set; with `legacy_plus_one` (2020) both 1s are there or not. A net without either is read as one of 2020.
"""

from __future__ import annotations

import math

import numpy as np
import onnx

from roiline.export.caffe2.translation import Blob, Call
from roiline.ops.bbox_transform import BBOX_TRANSFORM
from roiline.ops.box_with_nms_limit import BOX_WITH_NMS_LIMIT
from roiline.ops.generate_proposals import GENERATE_PROPOSALS
from roiline.ops.nodes import LAST
from roiline.ops.trim import TRIM

_DELTA_CLIP = math.log(1000.0 / 16.0)
_LEAST_SCALE = 1e-6
_HIGHEST_LEVEL = 64
_ROIS = (None, 5)


def read_offsets(call: Call) -> tuple[float, float]:
    """Returns what is added to x2 - x1 for a width, and subtracted from a far corner that was decoded."""
    if call.has("legacy_plus_one"):
        offset = float(call.flag("legacy_plus_one", True))
        return offset, offset
    if call.has("correct_transform_coords") or call.net.of_2018:
        return 1.0, float(call.flag("correct_transform_coords", False))
    return 1.0, 1.0


def translate_generate_proposals(call: Call) -> None:
    """Translates GenerateProposals of one level: RoIs (T, 5) and their scores (T,), picture by picture."""
    g = call.graph
    size_offset, corner_offset = read_offsets(call)
    anchors = call.weight(3, (None, 4), "anchors")
    per_cell = anchors.dim(0)
    scores = call.blob(0, (None, per_cell, None, None))
    deltas = call.blob(1, (None, None if per_cell is None else 4 * per_cell, None, None))
    im_info = call.blob(2, (None, 3))
    scale = call.number("spatial_scale", 1.0 / 16)
    if not _LEAST_SCALE <= scale <= 1 / _LEAST_SCALE:
        call.refuse(f"spatial_scale {scale}: expected the reciprocal of a stride in pixels")
    boxes, ranked, count = g.call(
        GENERATE_PROPOSALS,
        scores.name,
        deltas.name,
        im_info.name,
        anchors.name,
        g.constant(np.full(2, 1.0 / scale, np.float32)),
        names=(None, None, None),
        pre_nms_top_n=call.integer("pre_nms_topN", 6000),
        post_nms_top_n=call.integer("post_nms_topN", 300),
        nms_thresh=call.number("nms_thresh", 0.7),
        min_size=call.number("min_size", 16.0),
        min_size_in_network=1,
        nms_inclusive=0,
        one_empty_box=int(size_offset == 0),
        size_offset=size_offset,
        corner_offset=corner_offset,
        delta_clip=_DELTA_CLIP,
    )
    rois = call.name(0)
    g.call(TRIM, boxes, count, names=(rois,))
    call.give(0, _ROIS)
    real = g.op("Greater", ranked, g.scalar(-np.inf))
    g.op("Compress", g.reshape(ranked, -1), g.reshape(real, -1), name=call.name(1), axis=0)
    call.give(1, (None,))
    call.net.ranked[rois] = call.net.blobs[call.operator.outputs[1]].name
    call.drop_from(2)


def translate_collect(call: Call) -> None:
    """Translates CollectRpnProposals: the best RoIs of all levels, by descending score, ties by level and row."""
    _collect(call)
    call.drop_from(1)


def translate_collect_and_distribute(call: Call) -> None:
    """Translates CollectAndDistributeFpnRpnProposals: the best RoIs, those of each level, and the way back to their order."""
    _distribute(call, _collect(call), first_output=1)


def translate_distribute(call: Call) -> None:
    """Translates DistributeFpnProposals: the RoIs of each level, and the way back to their order."""
    _distribute(call, call.blob(0, _ROIS).name, first_output=0)


def _collect(call: Call) -> str:
    g = call.graph
    levels = call.integer("rpn_max_level", 6) - call.integer("rpn_min_level", 2) + 1
    if levels < 1 or call.count() != 2 * levels:
        call.refuse(
            f"rpn_min_level to rpn_max_level are {levels} levels, so {2 * levels} inputs, and it has {call.count()}"
        )
    rois = g.concat(*(call.blob(index, _ROIS).name for index in range(levels)))
    scores = g.concat(*(call.blob(levels + index, (None,)).name for index in range(levels)))
    limit = call.integer("rpn_post_nms_topN", 2000)
    if limit < 1:
        call.refuse(f"rpn_post_nms_topN {limit}: expected a positive number")
    wanted = g.op("Min", g.op("Shape", scores), g.ints(limit))
    best, index = g.multi("TopK", scores, wanted, names=(None, None), axis=0, largest=1, sorted=1)
    name = call.name(0)
    g.op("Gather", rois, index, name=name, axis=0)
    call.give(0, _ROIS)
    call.net.ranked[name] = best
    return name


def _distribute(call: Call, rois: str, first_output: int) -> None:
    g = call.graph
    first, last = call.integer("roi_min_level", 2), call.integer("roi_max_level", 5)
    levels = last - first + 1
    if levels < 1 or len(call.operator.outputs) != first_output + levels + 1:
        call.refuse(
            f"roi_min_level to roi_max_level are {levels} levels, so {first_output + levels + 1} outputs, "
            f"and it has {len(call.operator.outputs)}"
        )
    level = _assign_levels(call, rois, first, levels)
    rows = []
    for index in range(levels):
        here = g.squeeze(g.op("NonZero", g.op("Equal", level, g.integer(index))), 0)
        rows.append(here)
        g.op("Gather", rois, here, name=call.name(first_output + index), axis=0)
        call.give(first_output + index, _ROIS)
    order = g.concat(*rows)
    count = g.op("Shape", order)
    restore = g.op("ScatterElements", g.range(count), order, g.range(count), axis=0)
    place = first_output + levels
    g.op("Cast", restore, name=call.name(place), to=onnx.TensorProto.INT32)
    call.give(place, (None,), np.int32)


def _assign_levels(call: Call, rois: str, first: int, levels: int) -> str:
    """Returns the number of the level of each RoI, (T,) int64 from 0: floor(log2 x) >= n is x >= 2^n, so no logarithm is rounded."""
    g = call.graph
    canonical, scale = call.integer("roi_canonical_level", 4), call.number("roi_canonical_scale", 224.0)
    if not (0 <= canonical <= _HIGHEST_LEVEL and first >= 0 and first + levels <= _HIGHEST_LEVEL and scale > 0):
        call.refuse(
            f"levels from {first}, canonical level {canonical} at {scale} pixels: these cannot be levels of a pyramid"
        )
    sides = g.op("Sub", g.columns(rois, 3, 5), g.columns(rois, 1, 3))
    if call.flag("legacy_plus_one", True):
        sides = g.op("Add", sides, g.scalar(1.0))
    area = g.op("Max", g.op("Mul", g.columns(sides, 0, 1), g.columns(sides, 1, 2)), g.scalar(0.0))
    ratio = g.op("Add", g.op("Div", g.op("Sqrt", area), g.scalar(scale)), g.scalar(1e-6))
    reached = np.array([2.0 ** (first + index - canonical) for index in range(1, levels)], np.float32)
    over = g.cast(g.op("GreaterOrEqual", ratio, g.constant(reached)), np.int64)
    return g.op("ReduceSum", over, g.ints(1), keepdims=0)


def translate_roi_align(call: Call) -> None:
    """Translates RoIAlign; ONNX's operator has both its forms, `aligned` and not."""
    g = call.graph
    call.expect_order()
    feature, rois = call.blob(0, (None,) * 4), _five_columns(call)
    height, width = _pooled_size(call)
    call.write(
        "RoiAlign",
        feature.name,
        g.columns(rois, 1, 5),
        g.cast(g.squeeze(g.columns(rois, 0, 1), 1), np.int64),
        shape=(None, feature.dim(1), height, width),
        mode="avg",
        coordinate_transformation_mode="half_pixel" if call.flag("aligned", False) else "output_half_pixel",
        output_height=height,
        output_width=width,
        sampling_ratio=max(call.integer("sampling_ratio", -1), 0),
        spatial_scale=call.number("spatial_scale", 1.0),
    )


def translate_roi_pool(call: Call) -> None:
    """Translates RoIPool and RoIPoolF: the greatest cell of each bin; which cell it was is not translated."""
    call.expect_order()
    feature = call.blob(0, (None,) * 4)
    height, width = _pooled_size(call)
    call.write(
        "MaxRoiPool",
        feature.name,
        _five_columns(call),
        shape=(None, feature.dim(1), height, width),
        pooled_shape=(height, width),
        spatial_scale=call.number("spatial_scale", 1.0),
    )


def _pooled_size(call: Call) -> tuple[int, int]:
    height, width = call.integer("pooled_h", 1), call.integer("pooled_w", 1)
    if min(height, width) < 1:
        call.refuse(f"pooled_h {height}, pooled_w {width}: expected positive numbers")
    return height, width


def _five_columns(call: Call) -> str:
    """Returns RoIs with their image index: where they may have four columns, zeros are put before them and the last five taken."""
    g = call.graph
    rois: Blob = call.blob(1, (None, None))
    if rois.dim(1) == 5:
        return rois.name
    (rows,) = g.dims(rois.name, 0)
    return g.columns(g.concat(g.full(0.0, rows, g.ints(1)), rois.name, axis=1), -5, LAST)


def translate_bbox_transform(call: Call) -> None:
    """Translates BBoxTransform."""
    if call.flag("rotated", False):
        call.refuse("rotated boxes are not translated")
    size_offset, corner_offset = read_offsets(call)
    weights = call.numbers("weights", (1.0, 1.0, 1.0, 1.0))
    if len(weights) != 4 or not all(math.isfinite(weight) and weight for weight in weights):
        call.refuse(f"weights {weights}: expected four that are not 0")
    rois, deltas, im_info = call.blob(0, (None, None)), call.blob(1, (None, None)), call.blob(2, (None, 3))
    call.call(
        BBOX_TRANSFORM,
        rois.name,
        deltas.name,
        im_info.name,
        shapes=((None, deltas.dim(1)), (None,)),
        weights=weights,
        apply_scale=int(call.flag("apply_scale", True)),
        size_offset=size_offset,
        corner_offset=corner_offset,
        delta_clip=_DELTA_CLIP,
    )


def translate_box_with_nms_limit(call: Call) -> None:
    """Translates BoxWithNMSLimit with hard NMS."""
    if call.flag("rotated", False):
        call.refuse("rotated boxes are not translated")
    if call.flag("soft_nms_enabled", False):
        call.refuse("soft_nms_enabled: soft-NMS changes scores one box after another and has no form in ONNX")
    size_offset, _ = read_offsets(call)
    scores = call.blob(0, (None, None))
    class_agnostic = call.flag("cls_agnostic_bbox_reg", False)
    have_background = call.flag("input_boxes_include_bg_cls", True)
    classes = scores.dim(1)
    width = None if classes is None else 4 * (classes - (not have_background))
    inputs = [scores, call.blob(1, (None, 4 if class_agnostic else width))]
    if call.count() > 2:
        inputs.append(call.blob(2, (None,)))
    call.call(
        BOX_WITH_NMS_LIMIT,
        *(blob.name for blob in inputs),
        shapes=((None,), (None, 4), (None,), (None,), (None,), (None, inputs[0].dim(1))),
        score_thresh=call.number("score_thresh", 0.05),
        nms_thresh=call.number("nms", 0.3),
        max_dets=call.integer("detections_per_im", 100),
        class_agnostic=int(class_agnostic),
        boxes_have_background=int(have_background),
        classes_have_background=int(call.flag("output_classes_include_bg_cls", True)),
        size_offset=size_offset,
    )
