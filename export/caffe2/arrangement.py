"""Operators of a NetDef that pass values on, join them, rearrange them, or take them one by one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from roiline.export.caffe2.translation import Call
from roiline.export.graph import Shape


def translate_copy(call: Call) -> None:
    """Translates what hands its input on: Copy, Alias, StopGradient."""
    x = call.blob(0)
    call.write("Identity", x.name, like=x)


def translate_dropout(call: Call) -> None:
    """Translates Dropout at test time."""
    if not call.flag("is_test", False):
        call.refuse("is_test is not set: this is a net for training")
    translate_copy(call)


def elementwise(op_type: str) -> Callable[[Call], None]:
    """Returns the translation of a function of single values."""

    def translate(call: Call) -> None:
        x = call.blob(0)
        call.write(op_type, x.name, like=x)

    return translate


def translate_leaky_relu(call: Call) -> None:
    """Translates LeakyRelu."""
    x = call.blob(0)
    call.write("LeakyRelu", x.name, like=x, alpha=call.number("alpha", 0.01))


def arithmetic(op_type: str) -> Callable[[Call], None]:
    """Returns the translation of an operation on two blobs of one shape, or of shapes that stretch by NumPy's rule."""

    def translate(call: Call) -> None:
        first, second = call.blob(0), call.blob(1)
        if call.flag("broadcast", False) and (call.has("axis") or call.has("axis_str")):
            call.refuse("broadcasting along an axis is not translated")
        rank = None if first.rank is None or second.rank is None else max(first.rank, second.rank)
        call.write(op_type, first.name, second.name, shape=None if rank is None else (None,) * rank)

    return translate


def translate_sum(call: Call) -> None:
    """Translates Sum of any number of blobs of one shape."""
    blobs = [call.blob(index) for index in range(max(call.count(), 1))]
    op_type = "Add" if len(blobs) == 2 else "Sum"
    like = next((blob for blob in blobs if blob.shape is not None), blobs[0])
    call.write(op_type, *(blob.name for blob in blobs), like=like)


def translate_concat(call: Call) -> None:
    """Translates Concat; without `axis` it joins channels."""
    if call.flag("add_axis", False):
        call.refuse("add_axis is not translated")
    axis = call.integer("axis", 1)
    if not call.has("axis"):
        call.expect_order()
    blobs = [call.blob(index) for index in range(max(call.count(), 1))]
    shape: Shape | None = None
    if all(blob.shape is not None for blob in blobs):
        shape = tuple(size if index != axis else None for index, size in enumerate(blobs[0].shape or ()))
    call.write("Concat", *(blob.name for blob in blobs), shape=shape, dtype=blobs[0].dtype, axis=axis)


def translate_batch_permutation(call: Call) -> None:
    """Translates BatchPermutation: row i is row index[i] of the input."""
    x, index = call.blob(0), call.blob(1, (None,), np.int32)
    shape = None if x.shape is None else (None, *x.shape[1:])
    call.write("Gather", x.name, index.name, shape=shape, dtype=x.dtype, axis=0)


def translate_reshape(call: Call) -> None:
    """Translates Reshape to a shape that is known; 0 keeps a dimension, -1 takes what is left."""
    x = call.blob(0)
    shape = call.integers("shape")
    if shape is None:
        shape = tuple(int(size) for size in call.array(1).reshape(-1))
    if min(shape, default=-2) < -1:
        call.refuse(f"shape {shape}: expected sizes, 0 or one -1")
    known = tuple(size if size > 0 else None for size in shape)
    call.write("Reshape", x.name, call.graph.ints(*shape), shape=known, dtype=x.dtype)


def translate_transpose(call: Call) -> None:
    """Translates Transpose; without `axes` their order is reversed."""
    axes = call.integers("axes")
    if axes is None:
        x = call.blob(0)
        shape = None if x.shape is None else tuple(reversed(x.shape))
        call.write("Transpose", x.name, shape=shape, dtype=x.dtype)
        return
    if sorted(axes) != list(range(len(axes))):
        call.refuse(f"axes {axes}: expected each axis once")
    x = call.blob(0, (None,) * len(axes))
    call.write("Transpose", x.name, shape=tuple(x.dim(axis) for axis in axes), dtype=x.dtype, perm=axes)


def translate_flatten(call: Call) -> None:
    """Translates Flatten to two axes."""
    x = call.blob(0)
    call.write("Flatten", x.name, shape=(None, None), dtype=x.dtype, axis=call.integer("axis", 1))


def translate_narrow_as(call: Call) -> None:
    """Translates SpatialNarrowAs: the upper left part of the first map, as large as the second."""
    g = call.graph
    x, model = call.blob(0, (None,) * 4), call.blob(1, (None,) * 4)
    size = g.op("Shape", model.name, start=2)
    call.write("Slice", x.name, g.ints(0, 0), size, g.ints(2, 3), shape=(None, x.dim(1), None, None))
