"""A model opened to answer batches: the engine's stage for the task, and what is left to do on the host.

An ordinary run is one engine call. Where a run overrides thresholds, the model is cut before its last operator and that operator's
numpy reference does the rest with the run's values; the model file stays as it is.
"""

from __future__ import annotations

from pathlib import Path

from roiline.core.errors import UsageError
from roiline.core.spec import ModelSpec, Task
from roiline.core.structures import Detections, ImageBatch, Proposals
from roiline.engines.model_file import read_spec
from roiline.engines.protocol import Device, Engine, Stage, Tensor
from roiline.engines.registry import open_engine
from roiline.infer.request import RunOverrides, spec_with_overrides
from roiline.ops.detection_output import DETECTION_OUTPUT


class Predictor:
    """Answers batches with proposals or detections in original pixels.

    `spec` is the model's specification with the run's overrides applied.
    """

    def __init__(self, engine: Engine, spec: ModelSpec, task: Task, *, on_host: bool) -> None:
        self.spec = spec
        self._engine = engine
        self._task = task
        self._on_host = on_host

    @property
    def description(self) -> dict[str, str]:
        """Says which engine was really got."""
        return self._engine.description

    def run(self, batch: ImageBatch) -> list[Proposals] | list[Detections]:
        """Returns one answer a picture, in batch order."""
        return self.finish(self.infer(batch), batch)

    def infer(self, batch: ImageBatch) -> dict[str, Tensor]:
        """Runs the engine; what it returns goes to `finish`."""
        feeds = {"data": batch.pixels, "im_info": batch.im_info, "im_size": batch.sizes}
        return self._engine.run({info.name: feeds[info.name] for info in self._engine.inputs})

    def finish(self, outputs: dict[str, Tensor], batch: ImageBatch) -> list[Proposals] | list[Detections]:
        """Makes answers of what the engine returned for a batch."""
        if self._task == "proposals":
            return self._split_proposals(batch, *(outputs[name] for name in self.spec.seams["proposals"]))
        if self._on_host:
            return self._split_detections(batch, *self._finish_detections(batch, outputs))
        return self._split_detections(batch, *(outputs[name] for name in self.spec.seams["detections"]))

    def close(self) -> None:
        """Gives the engine back."""
        self._engine.close()

    def _finish_detections(self, batch: ImageBatch, outputs: dict[str, Tensor]) -> tuple[Tensor, ...]:
        rules, conventions = self.spec.detection, self.spec.conventions
        if rules is None:
            raise UsageError("this model has no detections")
        rois, count, cls_prob, bbox_pred = (outputs[name] for name in self.spec.seams["raw"])
        offset = float(conventions.plus_one)
        return DETECTION_OUTPUT.run(
            rois,
            cls_prob,
            bbox_pred,
            batch.im_info,
            batch.sizes,
            count,
            score_thresh=rules.score_thresh,
            nms_thresh=rules.nms_thresh,
            max_dets=rules.max_dets,
            bbox_reg_weights=rules.bbox_reg_weights,
            class_agnostic=int(rules.class_agnostic),
            nms_inclusive=int(conventions.nms_inclusive),
            size_offset=offset,
            corner_offset=offset,
            delta_clip=conventions.delta_clip,
        )

    @staticmethod
    def _split_proposals(batch: ImageBatch, boxes: Tensor, scores: Tensor, count: Tensor) -> list[Proposals]:
        return [
            Proposals(image_id, boxes[i, : count[i]].copy(), scores[i, : count[i]].copy())
            for i, image_id in enumerate(batch.ids)
        ]

    @staticmethod
    def _split_detections(
        batch: ImageBatch, boxes: Tensor, scores: Tensor, classes: Tensor, count: Tensor
    ) -> list[Detections]:
        return [
            Detections(
                image_id, boxes[i, : count[i]].copy(), scores[i, : count[i]].copy(), classes[i, : count[i]].copy()
            )
            for i, image_id in enumerate(batch.ids)
        ]


def open_predictor(
    model: Path, task: Task, device: Device, *, engine: str = "auto", overrides: RunOverrides | None = None
) -> Predictor:
    """Opens a model for a task on a device.

    Raises:
        UsageError: the model cannot do the task.
        ModelError: the file is no model of ours.
        EngineError: the engine or the device is not there.
    """
    asked = overrides or RunOverrides()
    stored = read_spec(model)
    spec = spec_with_overrides(stored, asked)
    if task not in spec.tasks:
        raise UsageError(f"{model}: this model makes {' and '.join(spec.tasks)}, not {task}")
    on_host = task == "detections" and spec.detection != stored.detection
    seam = "proposals" if task == "proposals" else "raw"
    whole = task == spec.tasks[-1] and not on_host
    stage = None if whole else Stage(outputs=tuple(spec.seams[seam]))
    return Predictor(open_engine(model, engine=engine, device=device, stage=stage), spec, task, on_host=on_host)
