"""Writing a finished model to disk, whole or not at all, and what an export says of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import onnx

from roiline.core.errors import ExportError
from roiline.core.files import make_folder, write_durable
from roiline.core.spec import ModelSpec

_PROTOBUF_LIMIT = 2**31 - 1


@dataclass(frozen=True, slots=True)
class ExportReport:
    """Is what an export made: the file and its specification.

    `warnings` are what the configuration and the checkpoint gave reason to say, `leftovers` what of the checkpoint the model does without,
    `notes` what was found while its precision was changed.
    """

    path: Path
    spec: ModelSpec
    warnings: tuple[str, ...]
    leftovers: tuple[str, ...]
    notes: tuple[str, ...] = field(default=(), kw_only=True)


def write_model(model: onnx.ModelProto, out: Path) -> None:
    """Writes a model; the same model gives the same bytes.

    Raises:
        ExportError: the model is larger than one ONNX file can be (2 GiB).
        OutputError: the file cannot be written.
    """
    size = model.ByteSize()
    if size > _PROTOBUF_LIMIT:
        raise ExportError(f"{out}: the model has {size / 2**30:.1f} GiB; one ONNX file holds at most 2")
    make_folder(out.parent)
    write_durable(out, model.SerializeToString(deterministic=True))
