"""Reads checkpoints of PyTorch programs: tensors by name, as float32 arrays, from `.pth` or `.safetensors`.

A `.pth` is opened through torch, with its loader for weights only, so that no code in it runs; torch is needed for nothing else. A
`.safetensors` is read here: its length, a JSON table, and the bytes of the tensors.
"""

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from roiline.core.errors import UsageError, WeightError
from roiline.core.files import open_input, read_input, sha256_of_file
from roiline.core.quantities import is_integer
from roiline.core.signatures import HEAD_BYTES, recognise_content, recognise_plain_text

Tensors: TypeAlias = Mapping[str, NDArray[Any]]

_STATE_KEYS = ("model", "state_dict", "model_state_dict", "model_state", "net", "weights")
_WRAPPERS = ("module.", "_orig_mod.")
_AVERAGED = "n_averaged"  # a counter that torch's AveragedModel keeps beside the weights

_MOST_HEADER_BYTES = 100 << 20
_DTYPES: Mapping[str, str] = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "<u2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "|i1",
    "U8": "|u1",
    "BOOL": "|b1",
}


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Holds the tensors of a checkpoint.

    `tensors` by name, without the prefixes of wrappers; those of floating-point types are float32. `extras` is what stands beside the
    state dict and is plain (a configuration, an epoch). `sha256` is of the whole file, `notes` say what was chosen or changed.
    """

    source: str
    sha256: str
    tensors: Tensors
    extras: Mapping[str, object] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def read_checkpoint(path: Path) -> Checkpoint:
    """Reads a checkpoint by its content, whatever its name ends with.

    Raises:
        WeightError: the file cannot be read, is something else, or holds objects beside tensors that only its program can load.
        UsageError: it is a `.pth` and torch is not installed.
    """
    head = _read_head(path)
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") <= _MOST_HEADER_BYTES:
        return _finish(path, _read_safetensors(path), {}, [])
    _refuse_foreign(path, head)
    notes: list[str] = []
    state, extras = _choose_state(_load_torch(path), path, notes)
    return _finish(path, {name: _array_from_torch(name, value, path) for name, value in state.items()}, extras, notes)


def _finish(path: Path, tensors: dict[str, NDArray[Any]], extras: dict[str, object], notes: list[str]) -> Checkpoint:
    tensors.pop(_AVERAGED, None)
    for prefix in _find_wrappers(tensors):
        tensors = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
        notes.append(f"the prefix {prefix!r} was dropped from all names")
    if not tensors:
        raise WeightError(f"{path}: this checkpoint holds no tensors")
    return Checkpoint(str(path), sha256_of_file(path), tensors, extras, tuple(notes))


def _find_wrappers(tensors: Tensors) -> list[str]:
    """Returns the prefixes that wrappers (DataParallel, compiled modules) put before every name, outermost first."""
    names = list(tensors)
    found: list[str] = []
    while names:
        prefix = next((one for one in _WRAPPERS if all(name.startswith(one) for name in names)), None)
        if prefix is None:
            return found
        found.append(prefix)
        names = [name.removeprefix(prefix) for name in names]
    return found


def _read_head(path: Path) -> bytes:
    with open_input(path, error=WeightError) as stream:
        return stream.read(HEAD_BYTES)


def _refuse_foreign(path: Path, head: bytes) -> None:
    content = recognise_content(head)
    if content is not None and "PyTorch" in content.name:
        return
    content = content or recognise_plain_text(head)
    if content is not None:
        raise WeightError(f"{path}: expected a PyTorch checkpoint (.pth) or a .safetensors file, this is {content}")


# --- .pth ------------------------------------------------------------------------------------------------------------


def _load_torch(path: Path) -> object:
    if _is_torchscript(path):
        raise WeightError(
            f"{path}: this is a TorchScript archive, a program and not a state dict; save `model.state_dict()` of the model it was "
            "made from"
        )
    try:
        import torch
    except ImportError as error:
        raise UsageError(
            f"{path}: opening a .pth needs PyTorch, which is not installed (pip install torch); a .safetensors needs nothing"
        ) from error
    from argparse import Namespace

    try:
        with torch.serialization.safe_globals([Namespace]):  # training scripts keep their options so: plain data
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds for a damaged file
        raise WeightError(_explain_refusal(path, error)) from error


def _is_torchscript(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.endswith("/constants.pkl") for name in archive.namelist())
    except (zipfile.BadZipFile, OSError):
        return False


def _explain_refusal(path: Path, error: Exception) -> str:
    """Says why torch did not load a file: objects of classes, or damage."""
    text = str(error)
    for start in ("Unsupported global: GLOBAL ", "Unsupported class "):
        if start in text:
            kind = text.split(start, 1)[1].split(" ", 1)[0].rstrip(".,")
            return (
                f"{path}: holds an object of {kind}, not only tensors; loading it would run code of its program. Load it there and save "
                "`model.state_dict()`"
            )
    reason = text.strip().splitlines()[0] if text.strip() else type(error).__name__
    return f"{path}: PyTorch cannot load it ({reason}); the file is damaged or is no checkpoint"


def _choose_state(content: object, path: Path, notes: list[str]) -> tuple[dict[str, object], dict[str, object]]:
    """Returns the state dict within what was loaded, and the plain values beside it."""
    if not isinstance(content, Mapping):
        raise WeightError(f"{path}: expected a state dict or a dictionary with one, got a {type(content).__name__}")
    if _is_state(content):
        return dict(content), {}
    found = [key for key in _STATE_KEYS if _is_state(content.get(key))]
    if not found:
        keys = ", ".join(repr(key) for key in list(content)[:8])
        raise WeightError(
            f"{path}: no state dict among its entries ({keys}); expected one itself, or one under {', '.join(_STATE_KEYS)}"
        )
    chosen = found[0]
    notes.append(f"the state dict under {chosen!r} was taken")
    beside = {str(key): value for key, value in content.items() if key not in found}
    return dict(content[chosen]), beside


def _is_state(value: object) -> bool:
    return (
        isinstance(value, Mapping)
        and bool(value)
        and all(isinstance(name, str) for name in value)
        and all(hasattr(tensor, "detach") or isinstance(tensor, np.ndarray) for tensor in value.values())
    )


def _array_from_torch(name: str, value: Any, path: Path) -> NDArray[Any]:
    if isinstance(value, np.ndarray):
        return value.astype(np.float32) if value.dtype.kind == "f" else value
    try:
        tensor = value.detach()
        return np.ascontiguousarray((tensor.float() if tensor.is_floating_point() else tensor).numpy())
    except (TypeError, RuntimeError, NotImplementedError) as error:
        raise WeightError(
            f"{path}: {name}: not an ordinary tensor ({str(error).splitlines()[0]}); save the model unquantised and dense"
        ) from error


# --- .safetensors ----------------------------------------------------------------------------------------------------


def _read_safetensors(path: Path) -> dict[str, NDArray[Any]]:
    """Reads a file whose first eight bytes are the length of a JSON table of {name: {dtype, shape, data_offsets}}."""
    content = read_input(path, error=WeightError)
    length = int.from_bytes(content[:8], "little")
    try:
        table = json.loads(content[8 : 8 + length])
    except (ValueError, RecursionError) as error:
        raise WeightError(f"{path}: its table of tensors is not JSON ({error}); fetch the file again") from error
    if not isinstance(table, dict):
        raise WeightError(f"{path}: its table of tensors is a {type(table).__name__}, not an object")
    table.pop("__metadata__", None)
    data = memoryview(content)[8 + length :]
    return {name: _read_tensor(path, name, entry, data) for name, entry in table.items()}


def _read_tensor(path: Path, name: str, entry: Any, data: memoryview) -> NDArray[Any]:
    try:
        kind, shape, (start, stop) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        whole = all(is_integer(number) and number >= 0 for number in (*shape, start, stop))
    except (TypeError, KeyError, ValueError) as error:
        raise WeightError(
            f"{path}: {name}: its entry has no dtype, shape and data_offsets; the file is damaged"
        ) from error
    if not isinstance(kind, str) or kind not in _DTYPES:
        raise WeightError(f"{path}: {name}: the type {kind!r:.40} is not read; known: {', '.join(_DTYPES)}")
    dtype = np.dtype(_DTYPES[kind])
    if not whole or not start <= stop <= len(data) or stop - start != math.prod(shape) * dtype.itemsize:
        raise WeightError(
            f"{path}: {name}: {kind} {list(shape)!s:.80} does not fit bytes {start} to {stop} of {len(data)}; "
            "the file is cut off or damaged"
        )
    try:
        array = np.frombuffer(data[start:stop], dtype).reshape(shape)
    except ValueError as error:
        raise WeightError(f"{path}: {name}: {list(shape)!s:.80} is no shape of a tensor ({error})") from error
    if kind == "BF16":
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float32) if dtype.kind == "f" else array.copy()
