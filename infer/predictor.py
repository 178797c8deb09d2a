"""What a predictor is: a model, or several, opened on a device to answer batches of pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from roiline.core.spec import ImageRules, ModelSpec
from roiline.core.structures import ImageBatch, Result, UInt8
from roiline.infer.preparation import PreparedPicture, prepare_picture


class Predictor(Protocol):
    """Answers batches with proposals or detections in original pixels.

    `spec` is the model's specification with the run's overrides applied. `needs_pictures`: batches carry the original pictures.
    `needs_proposals`: batches carry given proposals. `depth` is how many batches may be in flight between `begin` and `wait`.
    """

    spec: ModelSpec
    needs_pictures: bool
    needs_proposals: bool

    @property
    def description(self) -> Mapping[str, str]:
        """Says which engine was really got."""

    @property
    def depth(self) -> int:
        """Is 1 where `begin` does all the work."""
        return 1

    @property
    def usual_hw(self) -> tuple[int, int] | None:
        """Is the size of the network's input that the model was tuned for; None where any will do."""
        return None

    def prepare(self, picture: UInt8, rules: ImageRules) -> PreparedPicture:
        """Makes network input of a BGR picture; called from several threads. One that needs the pictures may leave its pixels out."""
        return prepare_picture(picture, rules)

    def begin(self, batch: ImageBatch) -> Any:
        """Starts the model over a batch, at most `depth` at a time; what comes out is only for `wait`."""
        return self.infer(batch)

    def wait(self, pending: Any) -> Any:
        """Waits for the batch that was begun first of those in flight; what comes out is only for `finish`."""
        return pending

    def infer(self, batch: ImageBatch) -> Any:
        """Runs the model; what comes out is only for `finish`."""

    def finish(self, outputs: Any, batch: ImageBatch) -> Sequence[Result]:
        """Makes results in original pixels of what the model gave: one an image, in batch order."""

    def run(self, batch: ImageBatch) -> Sequence[Result]:
        """Returns one result an image, in batch order: both steps at once."""
        return self.finish(self.infer(batch), batch)

    def close(self) -> None:
        """Gives back what the predictor holds."""
