"""An engine without a network: boxes and scores that follow from the pixels, so that a result tells which picture it came from.

It opens any model file of ours, gives the outputs of the stage under their own names, and obeys the tensor contract (padding rows and a
count, boxes in original pixels, scores descending). A tap is a few numbers a picture. Runs can be tried and tested with it in seconds
and without a runtime; it is chosen by name only, never by `auto`.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from roiline.core.errors import EngineError, ModelError
from roiline.core.spec import ModelSpec
from roiline.engines.model_file import read_spec
from roiline.engines.protocol import Device, Stage, Tensor, TensorInfo

MOST_PROPOSALS = 50
MOST_DETECTIONS = 12
TAP_VALUES = 8
SAMPLED_ROWS, SAMPLED_COLUMNS = 4, 16
"""Of larger pictures only about so many rows, and so many columns in their middle, are looked at: the engine costs next to nothing."""
ANSWERS = 1 << 6
"""How many sets of boxes there are to choose from; two pictures with the same one still differ in scores."""

_INPUTS = (
    TensorInfo("data", "float32", (None, 3, None, None)),
    TensorInfo("im_info", "float32", (None, 3)),
    TensorInfo("im_size", "float32", (None, 2)),
)
_KINDS: dict[str, tuple[TensorInfo, ...]] = {
    "proposals": (
        TensorInfo("boxes", "float32", (None, MOST_PROPOSALS, 4)),
        TensorInfo("scores", "float32", (None, MOST_PROPOSALS)),
        TensorInfo("count", "int64", (None,)),
    ),
    "detections": (
        TensorInfo("boxes", "float32", (None, MOST_DETECTIONS, 4)),
        TensorInfo("scores", "float32", (None, MOST_DETECTIONS)),
        TensorInfo("classes", "int64", (None, MOST_DETECTIONS)),
        TensorInfo("count", "int64", (None,)),
    ),
}


class FakeBackend:
    """Makes up proposals or detections from a checksum of each picture's own pixels (its padding left out; of large ones a sample)."""

    inputs = _INPUTS

    def __init__(
        self, seam: str, names: tuple[str, ...], num_classes: int, device: Device, taps: tuple[str, ...] = ()
    ) -> None:
        self._names = names
        self._taps = taps
        limit = MOST_PROPOSALS if seam == "proposals" else MOST_DETECTIONS
        random = np.random.default_rng(0)
        self._counts = random.integers(0, limit + 1, ANSWERS)
        there = np.arange(limit) < self._counts[:, None]
        boxes = np.sort(random.random((ANSWERS, limit, 2, 2), np.float32), axis=2).reshape(ANSWERS, limit, 4)
        scores = np.sort(random.random((ANSWERS, limit, 1), np.float32), axis=1)[:, ::-1]
        self._rows = np.concatenate([boxes, scores], axis=2) * there[..., None]
        self._classes = np.sort(random.integers(1, max(2, num_classes), (ANSWERS, limit)), axis=1) * there
        self._kinds = _KINDS[seam]
        self.outputs = (
            *(TensorInfo(name, info.dtype, info.shape) for name, info in zip(names, self._kinds, strict=True)),
            *(TensorInfo(name, "float32", (None, TAP_VALUES)) for name in taps),
        )
        self.description: Mapping[str, str] = {"backend": "fake", "device": device.kind, "threads": str(device.threads)}

    def run(self, feeds: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns the outputs for one batch; a row depends on its own picture only."""
        sizes, scales = feeds["im_size"].tolist(), feeds["im_info"][:, 2].tolist()
        drawn = [_draw_number(*picture) for picture in zip(feeds["data"], sizes, scales, strict=True)]
        which = np.array([number % ANSWERS for number in drawn])
        extents = [
            ((width - 1, height - 1, width - 1, height - 1, 1 - number / (1 << 33)),)
            for (height, width), number in zip(sizes, drawn, strict=True)
        ]
        rows = self._rows.take(which, axis=0) * np.array(extents, np.float32)
        classes = () if self._kinds is _KINDS["proposals"] else (self._classes.take(which, axis=0),)
        values = (rows[..., :4], rows[..., 4], *classes, self._counts.take(which))
        outputs = dict(zip(self._names, values, strict=True))
        for number, name in enumerate(self._taps):
            outputs[name] = rows.reshape(len(rows), -1)[:, :TAP_VALUES] + number
        return outputs

    def close(self) -> None:
        """Has nothing to give back."""


def _draw_number(pixels: Tensor, size_hw: Sequence[float], scale: float) -> int:
    """Returns a number of 32 bits that follows from network input (3, H, W) of a picture of (height, width) `size_hw`."""
    down, across = (max(1, round(side * scale)) for side in size_hw)
    step, first = max(1, down // SAMPLED_ROWS), max(0, (across - SAMPLED_COLUMNS) // 2)
    return zlib.crc32(pixels[:, :down:step, first : min(across, first + SAMPLED_COLUMNS)].tobytes())


def open_backend(path: Path, stage: Stage | None, device: Device) -> FakeBackend:
    """Opens a model file's specification; the graph is not looked at.

    Raises:
        ModelError: the file is no model of ours, or the stage is neither its proposals nor its detections.
        EngineError: the device is not the CPU.
    """
    if device.kind != "cpu":
        raise EngineError(f"the fake engine runs on the CPU, not on {device.kind}")
    spec = read_spec(path)
    seam = _find_seam(spec, stage)
    if seam is None:
        raise ModelError(f"{path}: the fake engine makes proposals or detections, not {stage}")
    names = tuple(spec.seams[seam])
    taps = tuple(tap for tap in spec.taps if tap not in names)
    return FakeBackend(seam, names, spec.num_classes, device, taps)


def _find_seam(spec: ModelSpec, stage: Stage | None) -> str | None:
    if stage is None:
        return spec.tasks[-1]
    asked = {*stage.outputs} - {*spec.taps}
    return next((seam for seam in _KINDS if seam in spec.seams and {*spec.seams[seam]} - {*spec.taps} == asked), None)
