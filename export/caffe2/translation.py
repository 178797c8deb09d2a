"""What a translation of one operator works with: its blobs, its arguments, and the graph that grows.

Caffe2 names places, ONNX names values: an operator may write over a blob, even over its own input. Here every writing of a blob has a
name of its own, and the last one carries the blob's, so that the net's outputs, and blobs that people tap, keep their names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, NoReturn, TypeAlias

import numpy as np
from numpy.typing import NDArray

from roiline.core.errors import ExportError
from roiline.export.caffe2.netdef import Argument, NetDef, OperatorDef
from roiline.export.graph import GraphWriter, Shape
from roiline.ops.nodes import Attribute
from roiline.ops.operator import Operator

Array: TypeAlias = NDArray[Any]


class Blob(NamedTuple):
    """Is a blob as it stands: its ONNX name, what is known of its shape (None: nothing), whether it is a constant."""

    name: str
    shape: Shape | None = None
    constant: bool = False


@dataclass(frozen=True, slots=True)
class NetInput:
    """Is what the operators say of an input of the net; `shape` None: nothing."""

    shape: Shape | None = None
    dtype: type[np.generic] = np.float32


@dataclass(slots=True)
class Translation:
    """Is a net on its way into a graph.

    `blobs` are the current blobs by Caffe2's names, `fills` the arrays of constants, `inputs` the net's own inputs, `missing` the weights
    that no net fills (with what they are for). `proposals` names the scores that belong to RoIs, where an operator ranks them.
    """

    net: NetDef
    graph: GraphWriter
    fills: dict[str, Array]
    blobs: dict[str, Blob] = field(default_factory=dict)
    inputs: dict[str, NetInput] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    proposals: dict[str, str] = field(default_factory=dict)
    _names: _BlobNames = field(init=False)
    _has_coords_argument: bool = field(init=False)

    def __post_init__(self) -> None:
        self._names = _BlobNames(self.net)
        arguments = {name for operator in self.net.operators for name in operator.arguments}
        self._has_coords_argument = "correct_transform_coords" in arguments and "legacy_plus_one" not in arguments

    @property
    def of_2018(self) -> bool:
        """Says whether the net carries the argument of the operators of 2018 and 2019, and none of those of 2020."""
        return self._has_coords_argument

    def take(self, name: str, user: str) -> Blob:
        """Returns a blob that an operator takes.

        Raises:
            ExportError: nothing makes it before.
        """
        blob = self.blobs.get(name)
        if blob is None:
            raise ExportError(f"{user}: the blob `{name}` is neither an input of the net nor made or filled before")
        if blob.constant and blob.name not in self._names.declared:
            self._declare(name, blob)
        return blob

    def _declare(self, name: str, blob: Blob) -> None:
        """Makes a filled blob an initializer, once it is used."""
        array = self.fills[name]
        self._names.declared.add(blob.name)
        if array.dtype == np.float32:
            self.graph.parameter(blob.name, lambda blobs: blobs[name])
        else:
            made = self.graph.constant(array)
            self.blobs[name] = replace_name(blob, self.graph.op("Identity", made, name=blob.name))

    def next_name(self, blob: str) -> str:
        """Returns the ONNX name of the next writing of a blob."""
        return self._names.next(blob)


def replace_name(blob: Blob, name: str) -> Blob:
    """Returns a blob under another ONNX name."""
    return blob._replace(name=name)
