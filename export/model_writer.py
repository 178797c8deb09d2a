"""Writing a finished model to disk: whole or not at all."""

from __future__ import annotations

from pathlib import Path

import onnx

from roiline.core.errors import ExportError
from roiline.core.files import write_durable

_PROTOBUF_LIMIT = 2**31 - 1


def write_model(model: onnx.ModelProto, out: Path) -> None:
    """Writes a model; the same model gives the same bytes.

    Raises:
        ExportError: the model is larger than one ONNX file can be (2 GiB), or the file cannot be written.
    """
    size = model.ByteSize()
    if size > _PROTOBUF_LIMIT:
        raise ExportError(f"{out}: the model has {size / 2**30:.1f} GiB; one ONNX file holds at most 2")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_durable(out, model.SerializeToString(deterministic=True))
    except OSError as error:
        raise ExportError(f"{out}: cannot be written ({error.strerror})") from error
