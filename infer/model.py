"""A model opened to answer batches: the engine's stages for the task, and what is left to do on the host.

An ordinary run is one engine call. Where a run overrides thresholds, or the model's test options need the host (soft-NMS, box voting,
augmentation), the model is cut at its seams and the host does the rest; the model file stays as it is.

A model with taps runs picture by picture, whatever the batch: so its blobs are, to the byte, those of a run over the picture alone, and
which rows of one belong to which picture is no question.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np

from roiline.core.errors import UsageError
from roiline.core.spec import ModelSpec, Task, TestOptions
from roiline.core.structures import Classification, Detections, ImageBatch, Proposals, Result
from roiline.engines.model_file import find_dependents, read_spec
from roiline.engines.protocol import Device, Engine, Stage, Tensor, Ticket
from roiline.engines.registry import open_engine
from roiline.infer.detection_parts import complete_detections, empty_detections, split_rows
from roiline.infer.feeds import copy_taps, count_proposals, make_feeds, split_batch
from roiline.infer.predictor import Predictor
from roiline.infer.request import NO_COMPANIONS, Companions, RunOverrides, spec_with_overrides

_Answer: TypeAlias = tuple[ImageBatch, dict[str, Tensor]]


@dataclass(frozen=True, slots=True)
class _Pending:
    """Is a batch in flight: the engine's ticket (None where there was nothing to run), or the answers where they are there already."""

    batch: ImageBatch
    ticket: Ticket | None
    answers: list[_Answer] | None = None


class WholePredictor(Predictor):
    """Answers with one engine call: the whole model, or the model cut at its proposals."""

    needs_pictures = False

    def __init__(self, engine: Engine, spec: ModelSpec, task: Task) -> None:
        self.spec = spec
        self.needs_proposals = spec.given_proposals is not None
        self.engine = engine
        self._task = task
        takes_one = any(info.name == "data" and info.shape[0] == 1 for info in engine.inputs)
        self._one_picture = takes_one or bool(spec.taps)
        self._has_parts = "masks" in spec.seams or "keypoints" in spec.seams

    @property
    def description(self) -> Mapping[str, str]:
        """Says which engine was really got."""
        return self.engine.description

    @property
    def depth(self) -> int:
        """Is the engine's own, and 1 where batches are split up."""
        return 1 if self._one_picture else self.engine.depth

    @property
    def usual_hw(self) -> tuple[int, int] | None:
        """Is the engine's own."""
        return self.engine.usual_hw

    def begin(self, batch: ImageBatch) -> _Pending:
        """Starts the engine over a batch; a model that takes one picture only, or has taps, is run at once, picture by picture."""
        if not self._one_picture:
            return _Pending(batch, self.submit(batch))
        return _Pending(batch, None, [(part, self._collect(self.submit(part))) for part in split_batch(batch)])

    def wait(self, pending: _Pending) -> list[_Answer]:
        """Returns what the engine answered to which pictures.

        An answer is empty where a model that needs given proposals has none in the whole batch.
        """
        if pending.answers is not None:
            return pending.answers
        return [(pending.batch, self._collect(pending.ticket))]

    def infer(self, batch: ImageBatch) -> list[_Answer]:
        """Runs the engine over a batch."""
        return self.wait(self.begin(batch))

    def finish(self, outputs: list[_Answer], batch: ImageBatch) -> Sequence[Result]:
        """Makes answers of what the engine returned for a batch."""
        del batch
        return [answer for part, tensors in outputs for answer in self._finish_part(tensors, part)]

    def submit(self, batch: ImageBatch) -> Ticket | None:
        """Starts the engine over a batch; None where a model that needs given proposals has none."""
        feeds = make_feeds(batch, self.spec, self.spec.image_rules)
        if self.needs_proposals and not count_proposals(batch):
            return None
        return self.engine.submit({info.name: feeds[info.name] for info in self.engine.inputs})

    def _collect(self, ticket: Ticket | None) -> dict[str, Tensor]:
        return {} if ticket is None else self.engine.collect(ticket)

    def _finish_part(self, outputs: dict[str, Tensor], batch: ImageBatch) -> Sequence[Result]:
        if not outputs:
            return [empty_detections(image_id, self.spec) for image_id in batch.ids]
        answers = self._split_task(outputs, batch)
        if not self.spec.taps:
            return answers
        (answer,) = answers
        return [replace(answer, taps=copy_taps(outputs, self.spec.taps))]

    def _split_task(self, outputs: dict[str, Tensor], batch: ImageBatch) -> Sequence[Result]:
        if self._task == "classification":
            return self._split_scores(outputs, batch)
        return self._split_proposals(outputs, batch) if self._task == "proposals" else self._split(outputs, batch)

    def close(self) -> None:
        """Gives the engine back."""
        self.engine.close()

    def _split_proposals(self, outputs: dict[str, Tensor], batch: ImageBatch) -> list[Proposals]:
        boxes, scores, count = (outputs[name] for name in self.spec.seams["proposals"])
        return [
            Proposals(image_id, boxes[i, : count[i]].copy(), scores[i, : count[i]].copy())
            for i, image_id in enumerate(batch.ids)
        ]

    def _split_scores(self, outputs: dict[str, Tensor], batch: ImageBatch) -> list[Classification]:
        (name,) = self.spec.seams["classification"]
        return [Classification(image_id, outputs[name][i].copy()) for i, image_id in enumerate(batch.ids)]

    def _split(self, outputs: dict[str, Tensor], batch: ImageBatch) -> list[Detections]:
        boxes, scores, classes, count = [outputs[name] for name in self.spec.seams["detections"]]
        found = [
            Detections(image_id, boxes[i, :rows].copy(), scores[i, :rows].copy(), classes[i, :rows].copy())
            for i, (image_id, rows) in enumerate(zip(batch.ids, count.tolist(), strict=True))
        ]
        if not self._has_parts:
            return found
        masks, maps = (split_rows(self._part(outputs, part), count) for part in ("masks", "keypoints"))
        return [
            complete_detections(one, masks[i], maps[i], batch.sizes[i], self.spec, network_hw=batch.im_info[i, :2])
            for i, one in enumerate(found)
        ]

    def _part(self, outputs: dict[str, Tensor], part: str) -> Tensor | None:
        if part not in self.spec.seams:
            return None
        (name,) = self.spec.seams[part]
        return np.asarray(outputs[name])


def open_predictor(
    model: Path,
    task: Task,
    device: Device,
    *,
    engine: str = "auto",
    overrides: RunOverrides | None = None,
    companions: Companions = NO_COMPANIONS,
) -> Predictor:
    """Opens a model for a task on a device, with the models that it works together with.

    Raises:
        UsageError: a model cannot do its task, or models cannot be combined.
        ModelError: a file is no model of ours.
        EngineError: the engine or the device is not there.
    """
    asked = overrides or RunOverrides()
    first = _open_one(model, task, device, engine, asked)
    if companions == NO_COMPANIONS:
        return first
    from roiline.infer.combination import CombinedPredictor

    opened = [first]
    try:
        opened += [_open_one(other, task, device, engine, asked) for other in companions.others]
        if companions.proposals_from is not None:
            unchanged = RunOverrides()
            opened.append(_open_one(companions.proposals_from, "proposals", device, engine, unchanged))
        proposer = opened[-1] if companions.proposals_from is not None else None
        return CombinedPredictor(opened[: len(companions.others) + 1], proposer)
    except BaseException:
        for predictor in opened:
            predictor.close()
        raise


def _open_one(model: Path, task: Task, device: Device, engine: str, overrides: RunOverrides) -> Predictor:
    stored = read_spec(model)
    if task not in stored.tasks:
        able = " and ".join(stored.tasks) or "nothing of pictures (it was exported without --cfg)"
        raise UsageError(f"{model}: this model makes {able}, not {task}")
    spec = spec_with_overrides(stored, overrides)
    if overrides.changes_thresholds and stored.detection is None and task == "detections":
        raise UsageError(f"{model}: the thresholds of this model are part of its net and cannot be changed for a run")

    def find_taps(sources: Sequence[str]) -> tuple[str, ...]:
        return find_dependents(model, spec.taps, sources)

    def open_stage(stage: Stage | None) -> Engine:
        return open_engine(model, engine=engine, device=device, stage=stage)

    changed = spec.detection != stored.detection or spec.test != TestOptions()
    if task == "detections" and (changed or spec.conventions.ties == "quicksort"):
        from roiline.infer.host_detection import HostPredictor

        return HostPredictor(open_stage, find_taps, spec)
    opened = open_stage(choose_stage(spec, task))
    if opened.takes_pictures:
        from roiline.infer.picture_predictor import PicturePredictor

        return PicturePredictor(opened, spec, task)
    return WholePredictor(opened, spec, task)


def choose_stage(spec: ModelSpec, task: Task) -> Stage | None:
    """Returns the stage that does a task, None for the whole model.

    The whole of a foreign net has outputs of its own, and a tracking head would run for nothing in the whole of its model.
    """
    if task != spec.tasks[-1] or "outputs" in spec.seams:
        answers = [*spec.seams[task]]
    elif "tracks" in spec.seams:
        answers = [name for seam in ("detections", "masks", "keypoints") for name in spec.seams.get(seam, ())]
    else:
        return None
    return Stage(outputs=(*answers, *(tap for tap in spec.taps if tap not in answers)))
