"""Trim: padded boxes of N pictures into RoI rows, without the padding.

Inputs: `boxes` (N, R, 4) and `count` (N,). Output: `rois` (T, 5) rows (image index, x1, y1, x2, y2), image by image, T = sum of `count`.
Heads that run on these rows do not pay for padding, and padding never reaches a result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from roiline.core.structures import Float32, Int64
from roiline.ops.kernels import Kernel, KernelInput, KernelOutput, write_kernel
from roiline.ops.nodes import FunctionWriter, NodeWriter
from roiline.ops.operator import Operator


def trim_rows(boxes: Float32, count: Int64) -> tuple[Float32]:
    """Returns rois (T, 5); see the operator's description."""
    image, row = np.nonzero(np.arange(boxes.shape[1])[None] < count[:, None])
    return (np.concatenate([image[:, None].astype(np.float32), boxes[image, row]], axis=1),)


def write_trim(_inputs: int, _attributes: Mapping[str, Any]) -> onnx.FunctionProto:
    """Returns the function body."""
    w = FunctionWriter()
    (rows,) = w.dims("boxes", 1)
    real = w.op("Less", w.unsqueeze(w.range(rows), 0), w.unsqueeze("count", 1))
    slots = w.op("Transpose", w.op("NonZero", real), perm=(1, 0))
    w.op("Concat", w.cast(w.columns(slots, 0, 1), np.float32), w.op("GatherND", "boxes", slots), axis=1, name="rois")
    return w.finish("Trim", ("boxes", "count"), ("rois",))


PAD_ROWS = Kernel(
    name="PadRows",
    source="trim/trim.cuh",
    function="pad_row",
    inputs={"boxes": KernelInput(("float32",), 3), "count": KernelInput(("int64",), 1)},
    outputs={"rois": KernelOutput("float32", lambda node: (node.dim("boxes", 0) * node.dim("boxes", 1), 5))},
    items=lambda node: node.dim("boxes", 0) * node.dim("boxes", 1) * 5,
    arguments=lambda node: {"slots": node.dim("boxes", 1)},
)


def lower_trim(w: NodeWriter, inputs: Sequence[str], _attributes: Mapping[str, Any]) -> tuple[str, ...]:
    """Writes rois (N * R, 5) with all rows: those after an image's count have image index -1, which every later kernel passes over."""
    return write_kernel(w, PAD_ROWS, *inputs, attributes={})


TRIM = Operator(
    name="Trim",
    inputs=("boxes", "count"),
    outputs={"rois": ("float32", 2)},
    attributes={},
    reference=trim_rows,
    function=write_trim,
    kernels=(PAD_ROWS,),
    lower=lower_trim,
)
