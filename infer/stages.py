"""The stages of one model file that a host run composes: body, boxes, masks, keypoints, each an engine of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeAlias

from roiline.core.spec import ModelSpec
from roiline.engines.protocol import Engine, Stage, Tensor

Head: TypeAlias = Literal["masks", "keypoints"]
OpenStage: TypeAlias = Callable[[Stage | None], Engine]


_ROIS: Mapping[Head, str] = {"masks": "mask_rois", "keypoints": "keypoint_rois"}


class Stages:
    """Holds the engines of a model cut at its seams, and passes tensors on from one to the next.

    The box stage also gives the features where a head follows. With `body_apart` the body is a stage of its own, so that no boxes are
    computed where only heads run over a picture. No weight of the body is held twice either way. `heads` are those that the model has.
    """

    def __init__(self, open_stage: OpenStage, spec: ModelSpec, *, body_apart: bool = False) -> None:
        seams = spec.seams
        answers = tuple(seams["raw"] if "raw" in seams else seams["candidates"])
        self.heads: tuple[Head, ...] = tuple(head for head in _ROIS if head in seams)
        features = tuple(seams["features"]) if self.heads else ()
        self._rois = {head: tuple(seams[_ROIS[head]]) for head in self.heads}
        stages = {"boxes": Stage(outputs=(*answers, *features))}
        if body_apart:
            stages = {"body": Stage(outputs=features), "boxes": Stage(outputs=answers, inputs=features)}
        for head in self.heads:
            stages[head] = Stage(outputs=tuple(seams[head]), inputs=(*features, *self._rois[head]))
        self._engines: dict[str, Engine] = {}
        try:
            for name, stage in stages.items():
                self._engines[name] = open_stage(stage)
        except BaseException:
            self.close()
            raise

    @property
    def description(self) -> dict[str, str]:
        """Says which engine was really got, and which stages it holds."""
        return {**self._engines["boxes"].description, "stages": ", ".join(self._engines)}

    def run_boxes(self, feeds: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns what the box head says, and the features where a head follows."""
        if "body" not in self._engines:
            return self._run("boxes", feeds)
        features = self.run_body(feeds)
        return {**features, **self._run("boxes", {**feeds, **features})}

    def run_body(self, feeds: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns the features alone; the body must be apart."""
        return self._run("body", feeds)

    def run_head(self, head: Head, feeds: Mapping[str, Tensor], rows: Sequence[Tensor]) -> Tensor:
        """Returns what a head says of RoIs; `rows` are the tensors of its seam, features are among `feeds`."""
        (answer,) = self._run(head, {**feeds, **dict(zip(self._rois[head], rows, strict=True))}).values()
        return answer

    def close(self) -> None:
        """Gives every engine back."""
        while self._engines:
            self._engines.popitem()[1].close()

    def _run(self, stage: str, feeds: Mapping[str, Tensor]) -> dict[str, Tensor]:
        engine = self._engines[stage]
        return engine.run({info.name: feeds[info.name] for info in engine.inputs})
