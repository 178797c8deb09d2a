"""Taking the padding away that an engine of fixed sizes gives, so that its answers are those of ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from roiline.core.errors import EngineError
from roiline.engines.protocol import Tensor
from roiline.engines.tensorrt.rows import RowKind


@dataclass(frozen=True, slots=True)
class OutputTrim:
    """Is how one output of a lowered model becomes that of the model itself; `kind` and `count` are those of `rows.Rows`."""

    output: str
    kind: RowKind
    count: str = ""


def trim_outputs(outputs: Mapping[str, Tensor], trims: Sequence[OutputTrim], images: int) -> dict[str, Tensor]:
    """Returns the outputs that `trims` name, for the first `images` pictures of the batch, without padding.

    `padded` outputs are cut to the fullest of these pictures, `rows` lose the padding of each picture, `front` all that comes after the
    real rows. Arrays may be views.

    Raises:
        EngineError: a count is more than there are rows, so the engine did not do what it was built for.
    """
    return {trim.output: _trim(outputs, trim, images) for trim in trims}


def _trim(outputs: Mapping[str, Tensor], trim: OutputTrim, images: int) -> Tensor:
    tensor = outputs[trim.output]
    if trim.kind == "given":
        return tensor
    if trim.kind == "batch":
        return tensor[:images]
    counts = outputs[trim.count][:images].astype(np.int64)
    if trim.kind == "front":
        _check_counts(counts.sum(keepdims=True), len(tensor), trim)
        return tensor[: int(counts.sum())]
    if trim.kind == "padded":
        _check_counts(counts, tensor.shape[1], trim)
        return tensor[:images, : int(counts.max(initial=0))]
    capacity = tensor.shape[0] // max(len(outputs[trim.count]), 1)
    _check_counts(counts, capacity, trim)
    by_picture = tensor[: images * capacity].reshape(images, capacity, *tensor.shape[1:])
    real: Tensor = by_picture[np.arange(capacity) < counts[:, None]]
    return real


def _check_counts(counts: Tensor, capacity: int, trim: OutputTrim) -> None:
    if len(counts) and not (counts.min() >= 0 and counts.max() <= capacity):
        raise EngineError(
            f"the engine's output `{trim.output}` has room for {capacity} rows, and `{trim.count}` counts {counts.tolist()}; "
            "build the engine again (roiline build --rebuild), and report this if it stays so"
        )
