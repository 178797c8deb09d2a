"""What a translation of one operator works with: its blobs, its arguments, and the graph that grows.

Caffe2 names places, ONNX names values: an operator may write over a blob, even over its own input. Here every writing of a blob has a
name of its own, and the last one carries the blob's, so that the net's outputs, and blobs that people tap, keep their names.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn, TypeAlias

import numpy as np
from numpy.typing import NDArray

from roiline.core.errors import ExportError
from roiline.export.caffe2.netdef import Argument, NetDef, OperatorDef
from roiline.export.graph import GraphWriter, Shape
from roiline.ops.operator import Operator

Array: TypeAlias = NDArray[Any]


class Blob(NamedTuple):
    """Is a blob as it stands: its ONNX name, what is known of its shape (None: nothing), whether its values are known.

    `origin` is the input of the net that has the same shape, where there is one: what is learnt of one is learnt of both.
    """

    name: str
    shape: Shape | None = None
    constant: bool = False
    dtype: type[np.generic] = np.float32
    origin: str = ""

    @property
    def rank(self) -> int | None:
        """Is the number of axes, where it is known."""
        return None if self.shape is None else len(self.shape)

    def dim(self, axis: int) -> int | None:
        """Returns a dimension, where it is known."""
        return None if self.shape is None or axis >= len(self.shape) else self.shape[axis]


@dataclass(frozen=True, slots=True)
class NetInput:
    """Is what the operators say of an input of the net; `shape` None: nothing."""

    shape: Shape | None = None
    dtype: type[np.generic] = np.float32


class BlobNames:
    """Gives every writing of a blob its ONNX name."""

    def __init__(self, net: NetDef, inputs: Sequence[str]) -> None:
        self._writings = Counter(name for operator in net.operators for name in operator.outputs)
        self._written: Counter[str] = Counter()
        self._inputs = frozenset(inputs)
        self._taken = {*self._writings, *inputs, *(name for operator in net.operators for name in operator.inputs)}

    def first(self, blob: str) -> str:
        """Returns the name of a blob before any operator writes it; an input of the net keeps its own."""
        return self.free(f"{blob}_0") if self._writings[blob] and blob not in self._inputs else blob

    def next(self, blob: str) -> str:
        """Returns the name of the next writing."""
        self._written[blob] += 1
        count = self._written[blob]
        last = count == self._writings[blob] and blob not in self._inputs
        return blob if last else self.free(f"{blob}_{count}")

    def free(self, name: str) -> str:
        """Returns a name that no blob has, `name` or one made of it, and keeps it from others."""
        while name in self._taken:
            name += "_"
        self._taken.add(name)
        return name


class Translation:
    """Is a net on its way into a graph.

    `blobs` are the blobs as they stand, by Caffe2's names; `fills` the arrays of those whose values are known; `inputs` the net's own
    inputs; `missing` the weights that nothing fills, with what they are for; `ranked` the scores of RoIs, where an operator ranks them.
    """

    def __init__(self, net: NetDef, graph: GraphWriter, fills: Mapping[str, Array], inputs: Sequence[str]) -> None:
        self.net = net
        self.graph = graph
        self.fills = dict(fills)
        self.names = BlobNames(net, inputs)
        self.inputs = {name: NetInput() for name in inputs}
        self.blobs = {name: Blob(name, origin=name) for name in inputs}
        self.missing: dict[str, str] = {}
        self.ranked: dict[str, str] = {}
        self._declared: set[str] = set()
        for name, array in fills.items():
            if name not in self.inputs:
                self.blobs[name] = Blob(self.names.first(name), array.shape, constant=True, dtype=array.dtype.type)
        arguments = {name for operator in net.operators for name in operator.arguments}
        self.of_2018 = "correct_transform_coords" in arguments and "legacy_plus_one" not in arguments
        self.used = Counter(name for operator in net.operators for name in operator.inputs)
        self.used.update(net.external_outputs)

    def take(self, name: str) -> Blob | None:
        """Returns a blob for an operator that takes it, or None where nothing made it; known values become an initializer."""
        blob = self.blobs.get(name)
        if blob is not None and blob.origin:
            known = self.inputs[blob.origin]
            return blob._replace(shape=known.shape, dtype=known.dtype)
        if blob is None or not blob.constant or name in self._declared:
            return blob
        self._declared.add(name)
        array = self.fills[name]
        if array.dtype == np.float32:
            self.graph.parameter(blob.name, lambda blobs: blobs[name])
        else:
            self.blobs[name] = blob = blob._replace(name=self.graph.constant(array))
        return blob

    @property
    def unused_fills(self) -> tuple[str, ...]:
        """Is the names of blobs that are filled and never taken, sorted."""
        return tuple(sorted(set(self.fills) - self._declared - set(self.inputs)))


class Call:
    """Is one operator under translation."""

    def __init__(self, translation: Translation, operator: OperatorDef) -> None:
        self.net = translation
        self.operator = operator
        self.graph = translation.graph
        self._names: dict[int, str] = {}

    def refuse(self, reason: str) -> NoReturn:
        """Says why the operator cannot be translated."""
        made = ", ".join(self.operator.outputs) or "nothing"
        raise ExportError(f"operator {self.operator.type} that makes {made}: {reason}")

    # -- blobs

    def count(self) -> int:
        """Returns the number of inputs."""
        return len(self.operator.inputs)

    def blob(self, index: int, shape: Shape | None = None, dtype: type[np.generic] = np.float32) -> Blob:
        """Returns an input; `shape` (None for a free dimension) is what it must fit, and tells what an input of the net is."""
        if index >= self.count():
            self.refuse(f"it has {self.count()} inputs and needs input {index + 1}")
        name = self.operator.inputs[index]
        blob = self.net.take(name)
        if blob is None:
            self.refuse(f"its input `{name}` is neither an input of the net nor made or filled before")
        if shape is None:
            return blob
        learnt = bool(blob.origin) and blob.shape is None
        if blob.dtype is not dtype and not learnt and not blob.constant:
            self.refuse(f"`{name}`: expected {np.dtype(dtype)}, got {np.dtype(blob.dtype)}")
        fitted = blob._replace(shape=self._merge(name, blob.shape, shape), dtype=dtype if learnt else blob.dtype)
        self.net.blobs[name] = fitted
        if fitted.origin:
            self.net.inputs[fitted.origin] = NetInput(fitted.shape, fitted.dtype)
        return fitted

    def weight(self, index: int, shape: Shape, purpose: str) -> Blob:
        """Returns an input whose values must be known; where nothing fills it, that is noted and translation goes on."""
        if index >= self.count():
            self.refuse(f"it has no {purpose} (input {index + 1})")
        name = self.operator.inputs[index]
        known = self.net.blobs.get(name)
        if known is None or not known.constant:
            self.net.missing[name] = f"{purpose} of {self.operator.type} {', '.join(self.operator.outputs)}"
            return Blob(name, shape)
        return self.blob(index, shape)

    def array(self, index: int) -> Array:
        """Returns the values of an input that must be known while translating."""
        name = self.operator.inputs[index] if index < self.count() else ""
        known = self.net.blobs.get(name)
        if known is None or not known.constant:
            self.refuse(f"its input `{name}` must be filled by the init net")
        return self.net.fills[name]

    def _merge(self, name: str, known: Shape | None, wanted: Shape) -> Shape:
        if known is None:
            return wanted
        fits = len(known) == len(wanted) and all(
            have is None or want is None or have == want for have, want in zip(known, wanted, strict=True)
        )
        if not fits:
            shown = [tuple("?" if size is None else size for size in shape) for shape in (wanted, known)]
            self.refuse(f"`{name}`: expected shape {shown[0]}, got {shown[1]}")
        return tuple(want if have is None else have for have, want in zip(known, wanted, strict=True))

    # -- results

    def write(
        self,
        op_type: str,
        *inputs: str,
        shape: Shape | None = None,
        dtype: type[np.generic] = np.float32,
        like: Blob | None = None,
        **attributes: Any,
    ) -> None:
        """Writes the ONNX node that makes the first output, of shape and type as said or like another blob.

        The operator's further outputs must be unused.
        """
        self.graph.op(op_type, *inputs, name=self.name(0), **attributes)
        self.give(0, shape, dtype)
        if like is not None:
            made = self.operator.outputs[0]
            self.net.blobs[made] = like._replace(name=self.net.blobs[made].name, constant=False)
        self.drop_from(1)

    def call(self, operator: Operator, *inputs: str, shapes: Sequence[Shape], **attributes: Any) -> None:
        """Writes one of our operators, whose outputs are this one's in order."""
        if len(self.operator.outputs) > len(shapes):
            self.refuse(f"it has {len(self.operator.outputs)} outputs, {len(shapes)} are known")
        names = [self.name(index) if index < len(self.operator.outputs) else None for index in range(len(shapes))]
        self.graph.call(operator, *inputs, names=names, **attributes)
        dtypes = [np.dtype(dtype).type for dtype, _ in operator.outputs.values()]
        for index in range(len(self.operator.outputs)):
            self.give(index, shapes[index], dtypes[index])

    def name(self, index: int) -> str:
        """Returns the ONNX name that an output is to have; asked once for each."""
        if index >= len(self.operator.outputs):
            self.refuse(f"it has {len(self.operator.outputs)} outputs and needs output {index + 1}")
        if not self.operator.outputs[index]:
            self.refuse(f"its output {index + 1} has no name")
        self._names[index] = self.net.names.next(self.operator.outputs[index])
        return self._names[index]

    def give(self, index: int, shape: Shape | None = None, dtype: type[np.generic] = np.float32) -> None:
        """Notes that an output has been written."""
        self.net.blobs[self.operator.outputs[index]] = Blob(self._names[index], shape, dtype=dtype)

    def drop_from(self, index: int) -> None:
        """Makes sure that nobody takes the outputs from `index` on, which are not translated."""
        for name in self.operator.outputs[index:]:
            if self.net.used[name]:
                self.refuse(f"its output `{name}` is not translated, and it is used")
            self.net.blobs.pop(name, None)

    # -- arguments

    def has(self, name: str) -> bool:
        """Says whether an argument is given."""
        return name in self.operator.arguments

    def integer(self, name: str, default: int) -> int:
        """Returns an integer argument."""
        argument = self.operator.arguments.get(name)
        if argument is None:
            return default
        if argument.integer is not None:
            return argument.integer
        if argument.number is not None and argument.number.is_integer():
            return int(argument.number)
        return self._refuse_argument(argument, "an integer")

    def flag(self, name: str, default: bool) -> bool:
        """Returns a boolean argument."""
        return bool(self.integer(name, int(default)))

    def number(self, name: str, default: float) -> float:
        """Returns a float argument."""
        argument = self.operator.arguments.get(name)
        if argument is None:
            return default
        value = argument.number if argument.number is not None else argument.integer
        if value is None or not math.isfinite(value):
            return self._refuse_argument(argument, "a number")
        return float(value)

    def text(self, name: str, default: str) -> str:
        """Returns a text argument."""
        argument = self.operator.arguments.get(name)
        if argument is None:
            return default
        if argument.text is None:
            return self._refuse_argument(argument, "a text")
        return argument.text.decode("utf-8", "replace")

    def integers(self, name: str) -> tuple[int, ...] | None:
        """Returns a list of integers, or None where the argument is not given."""
        argument = self.operator.arguments.get(name)
        return None if argument is None else argument.integers

    def numbers(self, name: str, default: Sequence[float]) -> tuple[float, ...]:
        """Returns a list of floats."""
        argument = self.operator.arguments.get(name)
        if argument is None:
            return tuple(default)
        values = argument.numbers if argument.numbers.size else np.asarray(argument.integers, np.float32)
        return tuple(float(value) for value in values)

    def _refuse_argument(self, argument: Argument, expected: str) -> NoReturn:
        self.refuse(f"argument `{argument.name}`: expected {expected}")

    def expect_order(self) -> None:
        """Refuses tensors whose channels come last."""
        order = self.text("order", "NCHW")
        if order != "NCHW":
            self.refuse(f"order {order}: only NCHW is translated")
