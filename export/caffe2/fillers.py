"""The net that fills blobs: its operators as arrays.

An init net of a trained model only states values; what fills at random belongs to training and is refused by name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from roiline.core.errors import ExportError, WeightError
from roiline.export.caffe2.netdef import Argument, NetDef, OperatorDef

Array: TypeAlias = NDArray[Any]
_DTYPES: Mapping[int, type[np.generic]] = {1: np.float32, 2: np.int32, 5: np.bool_, 10: np.int64, 13: np.float64}
_MOST_CONSTANTS = 1 << 26
_MOST_AXES = 8


def fill_blobs(net: NetDef, where: str) -> dict[str, Array]:
    """Returns every blob that an init net fills.

    Raises:
        ExportError: an operator is none that states values; all of them are listed.
        WeightError: what an operator states is inconsistent, or a weight is not a finite number; all faults are listed.
    """
    strange = sorted({operator.type for operator in net.operators} - set(FILLERS) - _COPIES)
    if strange:
        raise ExportError(
            f"{where}: {', '.join(strange)}: operators that do not state values; an init net of a trained model holds "
            f"{', '.join(sorted(FILLERS))}. Were --net and --init swapped, or is this a net for training?"
        )
    blobs: dict[str, Array] = {}
    faults: list[str] = []
    for operator in net.operators:
        try:
            blobs.update(_fill(operator, blobs))
        except _FillError as error:
            faults.append(f"{', '.join(operator.outputs) or 'no blob'} ({operator.type}): {error}")
    for name, array in blobs.items():
        bad = int(array.size - np.isfinite(array).sum()) if array.dtype.kind == "f" else 0
        if bad:
            faults.append(f"{name}: {bad} of {array.size} values are NaN or infinite")
    if faults:
        listing = "\n  ".join(faults)
        raise WeightError(f"{where}: the blobs cannot be used:\n  {listing}")
    return blobs


class _FillError(Exception):
    """Says what is inconsistent in one filling operator."""


def _fill(operator: OperatorDef, blobs: Mapping[str, Array]) -> dict[str, Array]:
    if len(operator.outputs) != 1:
        raise _FillError(f"expected one output, got {len(operator.outputs)}")
    if operator.type in _COPIES:
        if len(operator.inputs) != 1 or operator.inputs[0] not in blobs:
            raise _FillError(f"its input {', '.join(operator.inputs) or '(none)'} is not filled before")
        return {operator.outputs[0]: blobs[operator.inputs[0]]}
    if operator.inputs:
        raise _FillError("it takes its shape from another blob, which is not supported")
    return {operator.outputs[0]: FILLERS[operator.type](operator)}


def _shape_of(operator: OperatorDef) -> tuple[int, ...]:
    argument = operator.arguments.get("shape")
    shape = argument.integers if argument is not None else ()
    if len(shape) > _MOST_AXES or any(not 0 <= size < 1 << 31 for size in shape):
        raise _FillError(f"the shape {shape} cannot be")
    return shape


def _values_of(operator: OperatorDef) -> Argument:
    argument = operator.arguments.get("values")
    if argument is None or argument.nested:
        raise _FillError("it has no values")
    return argument


def _fit(values: Array, operator: OperatorDef) -> Array:
    shape = _shape_of(operator) if "shape" in operator.arguments else values.shape
    if math.prod(shape) != values.size:
        raise _FillError(f"shape {shape} wants {math.prod(shape)} values, it has {values.size}")
    return values.reshape(shape)


def _given_floats(operator: OperatorDef) -> Array:
    """Returns the values of a GivenTensorFill."""
    return _fit(_values_of(operator).numbers, operator)


def _given_integers(dtype: type[np.generic]) -> Callable[[OperatorDef], Array]:
    def fill(operator: OperatorDef) -> Array:
        values = np.asarray(_values_of(operator).integers, np.int64)
        return _fit(values.astype(dtype), operator)

    return fill


def _constant(operator: OperatorDef) -> Array:
    """Returns a ConstantFill; without `dtype` the value's own kind decides, as in Caffe2."""
    value, kind = operator.arguments.get("value"), operator.arguments.get("dtype")
    if kind is not None:
        dtype = _DTYPES.get(kind.integer or 0)
        if dtype is None:
            raise _FillError(f"element type {kind.integer} is not supported")
    else:
        dtype = np.int64 if value is not None and value.number is None and value.integer is not None else np.float32
    number: float = 0
    if value is not None:
        number = value.number if value.number is not None else value.integer or 0
    shape = _shape_of(operator)
    if math.prod(shape) > _MOST_CONSTANTS:
        raise _FillError(f"the shape {shape} has more than {_MOST_CONSTANTS} elements of one value")
    with np.errstate(invalid="ignore", over="ignore"):
        return np.full(shape, np.asarray(number).astype(dtype))


FILLERS: Mapping[str, Callable[[OperatorDef], Array]] = {
    "ConstantFill": _constant,
    "GivenTensorBoolFill": _given_integers(np.bool_),
    "GivenTensorFill": _given_floats,
    "GivenTensorInt64Fill": _given_integers(np.int64),
    "GivenTensorIntFill": _given_integers(np.int32),
}
_COPIES = frozenset({"Alias", "Copy"})
