"""Writes small Caffe2 nets as bytes, so that tests need no Caffe2 and no schema."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from roiline.export.caffe2.exporter import Caffe2Report, export_caffe2


def encode_number(value: int) -> bytes:
    value &= (1 << 64) - 1
    digits = bytearray()
    while value > 0x7F:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    digits.append(value)
    return bytes(digits)


def encode_entry(number: int, data: bytes | str | int | float) -> bytes:
    """Encodes one field: text and bytes with their length, integers as varints, floats as four bytes."""
    if isinstance(data, float):
        return encode_number(number << 3 | 5) + struct.pack("<f", data)
    if isinstance(data, int):
        return encode_number(number << 3) + encode_number(data)
    raw = data.encode() if isinstance(data, str) else data
    return encode_number(number << 3 | 2) + encode_number(len(raw)) + raw


def encode_argument(name: str, value: Any) -> bytes:
    data = encode_entry(1, name)
    if isinstance(value, float):
        return data + encode_entry(2, value)
    if isinstance(value, (bool, int)):
        return data + encode_entry(3, int(value))
    if isinstance(value, (str, bytes)):
        return data + encode_entry(4, value)
    array = np.asarray(value)
    if array.dtype.kind == "f":
        return data + encode_floats(array)
    return data + b"".join(encode_entry(6, int(item)) for item in array.reshape(-1))


def encode_floats(array: np.ndarray) -> bytes:
    """Encodes floats as Caffe2 does: a tag before each of them."""
    rows = np.empty((array.size, 5), np.uint8)
    rows[:, 0] = 5 << 3 | 5
    rows[:, 1:] = np.ascontiguousarray(array.reshape(-1), "<f4").view(np.uint8).reshape(-1, 4)
    return rows.tobytes()


def encode_operator(
    kind: str, inputs: Sequence[str], outputs: Sequence[str], args: Mapping[str, Any] | None = None
) -> bytes:
    data = b"".join(encode_entry(1, name) for name in inputs) + b"".join(encode_entry(2, name) for name in outputs)
    data += encode_entry(3, "") + encode_entry(4, kind)
    return data + b"".join(encode_entry(5, encode_argument(name, value)) for name, value in (args or {}).items())


def encode_fill(name: str, array: np.ndarray) -> bytes:
    kinds = {"float32": "GivenTensorFill", "int32": "GivenTensorIntFill", "int64": "GivenTensorInt64Fill"}
    return encode_operator(kinds[str(array.dtype)], (), (name,), {"shape": list(array.shape), "values": array})


def encode_net(
    operators: Sequence[bytes], inputs: Sequence[str] = (), outputs: Sequence[str] = (), name: str = "net"
) -> bytes:
    data = encode_entry(1, name) + b"".join(encode_entry(2, operator) for operator in operators)
    data += encode_entry(3, "dag") + encode_entry(4, 4)
    return data + b"".join(encode_entry(7, n) for n in inputs) + b"".join(encode_entry(8, n) for n in outputs)


def export_net(
    folder: Path,
    operators: Sequence[bytes],
    inputs: Sequence[str],
    outputs: Sequence[str],
    fills: Mapping[str, np.ndarray] | None = None,
    **options: Any,
) -> Caffe2Report:
    """Writes a pair of nets and exports it; blobs of `fills` are external inputs too, as Detectron writes them."""
    fills = {"unused": np.zeros(1, np.float32)} if fills is None else fills
    (folder / "model.pb").write_bytes(encode_net(operators, (*inputs, *fills), outputs))
    (folder / "model_init.pb").write_bytes(encode_net([encode_fill(name, array) for name, array in fills.items()]))
    return export_caffe2(folder / "model.pb", folder / "model_init.pb", folder / "model.onnx", **options)


def run_model(
    path: Path, feeds: Mapping[str, np.ndarray], outputs: Sequence[str] | None = None
) -> dict[str, np.ndarray]:
    """Runs a model in ONNX Runtime on one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = list(outputs or (info.name for info in session.get_outputs()))
    return dict(zip(names, session.run(names, dict(feeds)), strict=True))
