"""MultiLevelRoIAlign in standard ONNX operators: rows are sorted into levels, aligned there, and put back in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import onnx

from roiline.ops.multilevel_roi_align.levels import least_ratios
from roiline.ops.nodes import FunctionWriter

PoolWriter: TypeAlias = Callable[[str, str, float], str]


def write_multilevel_roi_align(inputs: int, attributes: Mapping[str, Any]) -> onnx.FunctionProto:
    """Returns the function body for `inputs` - 1 feature maps."""
    w = FunctionWriter()
    maps = inputs - 1
    w.rename(write_by_level(w, maps, attributes, partial(_align, w, attributes)), "pooled")
    return w.finish("MultiLevelRoIAlign", ("rois", *(f"features_{i}" for i in range(maps))), ("pooled",))


def write_by_level(w: FunctionWriter, maps: int, attributes: Mapping[str, Any], write_pool: PoolWriter) -> str:
    """Writes a pooling of `rois` from `features_0`, ..: each row from the map of its level, in the order of the rows.

    `write_pool(rois, feature, scale)` writes the pooling from one map; other operators that choose levels so use this too.
    """
    if maps == 1:
        return write_pool("rois", "features_0", attributes["spatial_scales"][0])
    level = _assign(w, maps, attributes)
    rows, parts = [], []
    for index in range(maps):
        here = w.squeeze(w.op("NonZero", w.op("Equal", level, w.integer(index))), 0)
        rois = w.op("Gather", "rois", here, axis=0)
        rows.append(here)
        parts.append(write_pool(rois, f"features_{index}", attributes["spatial_scales"][index]))
    order = w.concat(*rows)
    count = w.op("Shape", order)
    restore = w.op("ScatterElements", w.range(count), order, w.range(count), axis=0)
    return w.op("Gather", w.concat(*parts), restore, axis=0)


def _assign(w: FunctionWriter, maps: int, attributes: Mapping[str, Any]) -> str:
    """Returns the index of the feature map of each RoI, (T,) int64: how many upper levels its side has reached.

    Levels are compared as ratios, so the runtime's own logarithm cannot move an RoI to another level.
    """
    sides = w.op("Sub", w.columns("rois", 3, 5), w.columns("rois", 1, 3))
    if attributes["size_offset"]:
        sides = w.op("Add", sides, w.scalar(attributes["size_offset"]))
    area = w.op("Max", w.op("Mul", w.columns(sides, 0, 1), w.columns(sides, 1, 2)), w.scalar(0.0))
    ratio = w.op("Div", w.op("Sqrt", area), w.scalar(attributes["canonical_scale"]))
    if not attributes.get("epsilon_on_level", 0):  # an attribute of RoIAlign alone
        ratio = w.op(
            "Add", ratio, w.scalar(attributes.get("level_epsilon", 1e-6))
        )  # not one of every operator that chooses levels
    reached = least_ratios(maps, attributes)[1:]
    over = w.cast(w.op("GreaterOrEqual", ratio, w.constant(np.asarray(reached, np.float32))), np.int64)
    return w.op("ReduceSum", over, w.ints(1), keepdims=0)


def _align(w: FunctionWriter, attributes: Mapping[str, Any], rois: str, feature: str, scale: float) -> str:
    image = w.cast(w.squeeze(w.columns(rois, 0, 1), 1), np.int64)
    return w.op(
        "RoiAlign",
        feature,
        w.columns(rois, 1, 5),
        image,
        mode="avg",
        coordinate_transformation_mode="half_pixel" if attributes["half_pixel"] else "output_half_pixel",
        output_height=attributes["resolution"],
        output_width=attributes["resolution_across"] or attributes["resolution"],
        sampling_ratio=attributes["sampling_ratio"],
        spatial_scale=float(scale),
    )
