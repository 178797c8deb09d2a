"""A model whose engine prepares pictures itself: readers only decode, and bytes go to the device instead of network input."""

from __future__ import annotations

from roiline.core.errors import UsageError
from roiline.core.spec import ImageRules, ModelSpec, Task
from roiline.core.structures import ImageBatch, UInt8
from roiline.engines.protocol import Engine, Ticket
from roiline.infer.device_preparation import can_prepare_on_device, plan_device_preparation
from roiline.infer.feeds import count_proposals, make_feeds
from roiline.infer.model import WholePredictor
from roiline.infer.preparation import PreparedPicture, leave_unprepared


class PicturePredictor(WholePredictor):
    """Answers with one engine call over the pictures of a batch."""

    needs_pictures = True

    def __init__(self, engine: Engine, spec: ModelSpec, task: Task) -> None:
        """Takes over an engine that takes pictures.

        Raises:
            UsageError: the model's rule of resizing has no kernel; the engine is closed then.
        """
        if not can_prepare_on_device(spec.image_rules):
            engine.close()
            raise UsageError(
                f"pictures with the resizing rule {spec.image_rules.resize!r} are prepared on the host, there is no kernel for it; "
                "use --engine tensorrt"
            )
        super().__init__(engine, spec, task)

    def prepare(self, picture: UInt8, rules: ImageRules) -> PreparedPicture:
        """Returns the sizes alone."""
        return leave_unprepared(picture, rules)

    def submit(self, batch: ImageBatch) -> Ticket | None:
        """Starts the engine over the pictures of a batch; None where a model that needs given proposals has none."""
        rules = self.spec.image_rules
        feeds = make_feeds(batch, self.spec, rules)
        if self.needs_proposals and not count_proposals(batch):
            return None
        height, width = batch.pixels.shape[2:]
        plans = [plan_device_preparation(picture, rules) for picture in batch.pictures]
        others = {info.name: feeds[info.name] for info in self.engine.inputs if info.name != "data"}
        return self.engine.submit_pictures(plans, (height, width), others)
