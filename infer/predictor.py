"""What a predictor is: a model, or several, opened on a device to answer batches of pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from roiline.core.spec import ModelSpec
from roiline.core.structures import ImageBatch, Result


class Predictor(Protocol):
    """Answers batches with proposals or detections in original pixels.

    `spec` is the model's specification with the run's overrides applied. `needs_pictures`: batches carry the original pictures.
    `needs_proposals`: batches carry given proposals.
    """

    spec: ModelSpec
    needs_pictures: bool
    needs_proposals: bool

    @property
    def description(self) -> Mapping[str, str]:
        """Says which engine was really got."""

    def infer(self, batch: ImageBatch) -> Any:
        """Runs the model; what comes out is only for `finish`."""

    def finish(self, outputs: Any, batch: ImageBatch) -> Sequence[Result]:
        """Makes results in original pixels of what the model gave: one an image, in batch order."""

    def run(self, batch: ImageBatch) -> Sequence[Result]:
        """Returns one result an image, in batch order: both steps at once."""
        return self.finish(self.infer(batch), batch)

    def close(self) -> None:
        """Gives back what the predictor holds."""
