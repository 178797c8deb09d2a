"""Caffe2's NetDef, as far as a forward pass needs it: operators with their arguments, and the net's own inputs and outputs.

Field numbers are those of the public `caffe2.proto`. What a translation never looks at (device options, engines, threads, debug
information) is skipped; nets and tensors inside arguments stay unread, so nothing nests deeper than net, operator, argument.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import numpy as np

from roiline.core.errors import ModelError
from roiline.core.files import read_input
from roiline.core.signatures import HEAD_BYTES, recognise_content, recognise_plain_text
from roiline.core.structures import Float32
from roiline.export.caffe2.protobuf import (
    BYTES,
    FIXED32,
    VARINT,
    Field,
    ProtobufError,
    read_packed_ints,
    signed,
    walk_fields,
)


def _no_floats() -> Float32:
    return np.zeros(0, np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class Argument:
    """Is one argument of an operator, in the forms that Caffe2 has for a value; a form that the file does not give is None or empty.

    `nested` marks a value of another kind (a net, a tensor), which is not read.
    """

    name: str
    number: float | None = None
    integer: int | None = None
    text: bytes | None = None
    numbers: Float32 = field(default_factory=_no_floats)
    integers: tuple[int, ...] = ()
    texts: tuple[bytes, ...] = ()
    nested: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class OperatorDef:
    """Is one operator: its type, the blobs that it takes and makes, and its arguments by name."""

    type: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    arguments: dict[str, Argument]


@dataclass(frozen=True, slots=True, eq=False)
class NetDef:
    """Is a net: operators in the order in which they run, and the blobs that it takes from outside and gives back."""

    name: str
    operators: tuple[OperatorDef, ...]
    external_inputs: tuple[str, ...]
    external_outputs: tuple[str, ...]


_Values: TypeAlias = list[Float32]
_ARGUMENT_FLOATS = 5
_PROTOBUF_LIMIT = 2**31 - 1


def read_net(path: Path) -> tuple[NetDef, bytes]:
    """Reads a net; returns it with the bytes of the file.

    Raises:
        ModelError: the file cannot be read, or is no NetDef (what it is instead is said).
    """
    content = read_input(path, error=ModelError, limit=_PROTOBUF_LIMIT)
    try:
        net = net_from_bytes(content)
    except (ProtobufError, UnicodeDecodeError) as error:
        raise ModelError(f"{path}: this is no whole Caffe2 NetDef: {_describe(content) or error}") from error
    if not net.operators:
        raise ModelError(f"{path}: this is no Caffe2 NetDef: {_describe(content) or 'it holds no operator'}")
    return net, content


def _describe(content: bytes) -> str | None:
    """Says what a file is that is no net, or None where its first bytes look like one."""
    head = content[:HEAD_BYTES]
    text = recognise_plain_text(head)
    if text is not None and head.lstrip().startswith(b"name:"):
        return "it is the text form (.pbtxt); give the binary file, model.pb"
    known = recognise_content(head) or text
    return None if known is None or "NetDef" in known.name else str(known)


def net_from_bytes(content: bytes) -> NetDef:
    """Decodes a NetDef.

    Raises:
        ProtobufError, UnicodeDecodeError: the bytes are none.
    """
    name = ""
    operators: list[OperatorDef] = []
    inputs: list[str] = []
    outputs: list[str] = []
    for entry in walk_fields(memoryview(content)):
        match entry.number:
            case 1:
                name = _text(entry)
            case 2:
                operators.append(_read_operator(_message(entry)))
            case 7:
                inputs.append(_text(entry))
            case 8:
                outputs.append(_text(entry))
    return NetDef(name, tuple(operators), tuple(inputs), tuple(outputs))


def _read_operator(message: memoryview) -> OperatorDef:
    kind, name = "", ""
    inputs: list[str] = []
    outputs: list[str] = []
    arguments: dict[str, Argument] = {}
    for entry in walk_fields(message):
        match entry.number:
            case 1:
                inputs.append(_text(entry))
            case 2:
                outputs.append(_text(entry))
            case 3:
                name = _text(entry)
            case 4:
                kind = _text(entry)
            case 5:
                argument = _read_argument(_message(entry))
                arguments[argument.name] = argument
    if not kind:
        raise ProtobufError("an operator has no type")
    return OperatorDef(kind, name, tuple(inputs), tuple(outputs), arguments)


def _read_argument(message: memoryview) -> Argument:
    name, nested = "", False
    number: float | None = None
    integer: int | None = None
    text: bytes | None = None
    numbers: _Values = []
    integers: list[int] = []
    texts: list[bytes] = []
    for entry in walk_fields(message, float_field=_ARGUMENT_FLOATS):
        match entry.number:
            case 1:
                name = _text(entry)
            case 2:
                number = float(_floats(entry)[0])
            case 3:
                integer = _integer(entry)
            case 4:
                text = bytes(_message(entry))
            case 5:
                numbers.append(_floats(entry))
            case 6:
                integers.extend(_integers(entry))
            case 7:
                texts.append(bytes(_message(entry)))
            case 8 | 9 | 10 | 11 | 12:
                nested = True
    joined = np.concatenate(numbers) if numbers else _no_floats()
    return Argument(name, number, integer, text, joined, tuple(integers), tuple(texts), nested)


def _text(entry: Field) -> str:
    return str(_message(entry), "utf-8")


def _message(entry: Field) -> memoryview:
    if entry.wire != BYTES:
        raise ProtobufError(f"field {entry.number} has wire type {entry.wire} where bytes are expected")
    return entry.data


def _integer(entry: Field) -> int:
    if entry.wire != VARINT:
        raise ProtobufError(f"field {entry.number} has wire type {entry.wire} where one integer is expected")
    return signed(entry.value)


def _integers(entry: Field) -> list[int]:
    if entry.wire == VARINT:
        return [signed(entry.value)]
    if entry.wire != BYTES:
        raise ProtobufError(f"field {entry.number} has wire type {entry.wire} where integers are expected")
    return read_packed_ints(entry.data)


def _floats(entry: Field) -> Float32:
    if entry.wire not in (FIXED32, BYTES) or len(entry.data) % 4 or not entry.data:
        raise ProtobufError(f"field {entry.number} has wire type {entry.wire} where floats are expected")
    return np.frombuffer(entry.data, "<f4").astype(np.float32)
