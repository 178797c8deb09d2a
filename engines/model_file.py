"""Reading what a model file says of itself, and cutting it at its seams.

The specification is read by walking the file's top-level protobuf fields and skipping the graph, so it costs a few reads however large
the model is, and needs no library.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from roiline.core.errors import ModelError
from roiline.core.files import open_input
from roiline.core.signatures import HEAD_BYTES, recognise_content, recognise_plain_text
from roiline.core.spec import METADATA_KEY, ModelSpec, spec_from_json
from roiline.engines.protocol import Stage, TensorInfo

if TYPE_CHECKING:
    import onnx

PLAN_SUFFIX = ".plan"
"""What the name of a built engine ends in."""

_METADATA_FIELD = 14
_SPEC_LIMIT = 1 << 26


def read_spec(path: Path) -> ModelSpec:
    """Reads the specification of a model file, or that in the passport of a built engine (`*.plan`).

    Raises:
        ModelError: the file is missing, is not an ONNX file (what it is instead is said), or carries no specification of ours.
    """
    if path.suffix == PLAN_SUFFIX:
        from roiline.engines.tensorrt.passport import read_passport

        return read_passport(path).spec
    with open_input(path, error=ModelError) as stream:
        try:
            entries = dict(_read_metadata(stream, os.fstat(stream.fileno()).st_size))
        except OSError as error:
            raise ModelError(f"{path}: cannot be read ({error.strerror})") from error
        except _NotProtobufError as error:
            stream.seek(0)
            reason = _describe(stream.read(HEAD_BYTES)) or error
            raise ModelError(f"{path}: this is not a whole ONNX file: {reason}") from error
    text = entries.get(METADATA_KEY)
    if text is None:
        raise ModelError(
            f"{path}: this file carries no roiline specification; models come from `roiline export`, "
            "which writes means, sizes, classes and rules into the file"
        )
    return spec_from_json(text, where=str(path))


def _describe(head: bytes) -> str | None:
    """Says what a file is that is no model, or None where it begins as one does."""
    if re.match(rb"\x80[\x01-\x05]", head):
        return "it is a pickle, as weights files are; make a model of it with `roiline export`"
    content = recognise_content(head) or recognise_plain_text(head)
    return None if content is None or "ONNX" in content.name else str(content)


class _NotProtobufError(Exception):
    """Says where a file stops being protobuf."""


def _read_metadata(stream: BinaryIO, size: int) -> Iterator[tuple[str, str]]:
    if size == 0:
        raise _NotProtobufError("it is empty")
    while (position := stream.tell()) < size:
        tag = _read_varint(stream)
        field, wire = tag >> 3, tag & 7
        if wire == 0:
            _read_varint(stream)
        elif wire == 2:
            length = _read_varint(stream)
            if length > size - stream.tell():
                raise _NotProtobufError(
                    f"a part at byte {position} is longer than the rest of the file: was it cut off?"
                )
            if field == _METADATA_FIELD and length < _SPEC_LIMIT:
                yield _read_entry(stream.read(length))
            else:
                stream.seek(length, os.SEEK_CUR)
        else:
            raise _NotProtobufError(f"the bytes at {position} are no part of such a file")


def _read_entry(data: bytes) -> tuple[str, str]:
    """Reads a StringStringEntryProto: field 1 is the key, field 2 the value."""
    import io

    stream = io.BytesIO(data)
    texts = {1: "", 2: ""}
    while stream.tell() < len(data):
        tag = _read_varint(stream)
        length = _read_varint(stream)
        if tag & 7 != 2 or length > len(data) - stream.tell():
            raise _NotProtobufError("its metadata is damaged")
        try:
            texts[tag >> 3] = stream.read(length).decode()
        except UnicodeDecodeError as error:
            raise _NotProtobufError("its metadata is not text") from error
    return texts[1], texts[2]


def _read_varint(stream: BinaryIO) -> int:
    value = 0
    for shift in range(0, 70, 7):
        byte = stream.read(1)
        if not byte:
            raise _NotProtobufError("it ends in the middle of a number")
        value |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return value
    raise _NotProtobufError("a number in it has no end")


def load_model(path: Path, *, stage: Stage | None = None, weights_beside: bool = True) -> onnx.ModelProto:
    """Loads a model file, cut down to a stage if one is named; `weights_beside`: also weights that lie in files beside it.

    Raises:
        ModelError: the file is no whole ONNX file, or lacks a tensor of the stage.
    """
    import onnx

    try:
        model = onnx.load(str(path), load_external_data=weights_beside)
    except Exception as error:  # protobuf's DecodeError has no stable home
        raise ModelError(f"{path}: this is not a whole ONNX file ({error})") from error
    return model if stage is None else cut_model(model, stage, where=str(path))


def cut_model(model: onnx.ModelProto, stage: Stage, *, where: str) -> onnx.ModelProto:
    """Cuts a model down to a stage: what is needed to compute `stage.outputs` from `stage.inputs` and the model's own inputs.

    Tensors at seams have declared types in the graph (`value_info`); any other tensor can be an output too, its type is inferred.

    Raises:
        ModelError: an output or input of the stage is not in the graph, or the outputs need an input that the stage does not have.
    """
    import onnx

    graph = model.graph
    producer = {name: node for node in graph.node for name in node.output}
    unknown = [name for name in (*stage.outputs, *stage.inputs) if name not in producer and not _is_input(graph, name)]
    if unknown:
        raise ModelError(f"{where}: the model has no tensor named {', '.join(unknown)}")
    needed, leaves = _walk_back(stage, producer)
    declared = {info.name: info for info in (*graph.input, *graph.output, *graph.value_info)}
    initializers = [tensor for tensor in graph.initializer if tensor.name in leaves]
    known = {tensor.name for tensor in initializers}
    cut = onnx.ModelProto()
    cut.CopyFrom(onnx.ModelProto(ir_version=model.ir_version, producer_name=model.producer_name))
    cut.opset_import.extend(model.opset_import)
    cut.functions.extend(model.functions)
    cut.metadata_props.extend(model.metadata_props)
    cut.graph.name = graph.name
    cut.graph.node.extend(node for node in graph.node if node.name in needed)
    cut.graph.initializer.extend(initializers)
    cut.graph.input.extend(declared[name] for name in declared if name in leaves and name not in known)
    cut.graph.output.extend(declared.get(name, onnx.ValueInfoProto(name=name)) for name in stage.outputs)
    missing = sorted(leaves - known - set(declared))
    if missing:
        raise ModelError(f"{where}: the stage needs {', '.join(missing)}, which is not declared at a seam")
    return cut


def describe_ends(
    model: onnx.ModelProto, taken: Sequence[str]
) -> tuple[tuple[TensorInfo, ...], tuple[TensorInfo, ...]]:
    """Returns the inputs of a model, those that are `taken`, and its outputs."""
    inputs = tuple(_tensor_info(info) for info in model.graph.input if info.name in taken)
    return inputs, tuple(_tensor_info(info) for info in model.graph.output)


def _tensor_info(info: onnx.ValueInfoProto) -> TensorInfo:
    from onnx import helper

    tensor = info.type.tensor_type
    sizes = (dim.dim_value if dim.HasField("dim_value") else None for dim in tensor.shape.dim)
    return TensorInfo(info.name, str(helper.tensor_dtype_to_np_dtype(tensor.elem_type)), tuple(sizes))


def find_dependents(path: Path, names: Sequence[str], sources: Sequence[str]) -> tuple[str, ...]:
    """Returns those of the named tensors of a model file that are computed from any of `sources`, or are one of them.

    Raises:
        ModelError: the file is no whole ONNX file.
    """
    reached = set(sources)
    for node in load_model(path).graph.node:
        if reached.intersection(node.input):
            reached.update(node.output)
    return tuple(name for name in names if name in reached)


def _is_input(graph: onnx.GraphProto, name: str) -> bool:
    return any(info.name == name for info in graph.input)


def _walk_back(stage: Stage, producer: dict[str, onnx.NodeProto]) -> tuple[set[str], set[str]]:
    """Returns the names of the nodes that the outputs need, and of the tensors that nothing in the stage makes."""
    needed: set[str] = set()
    leaves: set[str] = set()
    pending = list(stage.outputs)
    seen: set[str] = set()
    while pending:
        name = pending.pop()
        if not name or name in seen:
            continue
        seen.add(name)
        node = producer.get(name)
        if node is None or name in stage.inputs:
            leaves.add(name)
            continue
        needed.add(node.name)
        pending.extend(node.input)
    return needed, leaves
