"""The stages of one model file that a host run composes: body, boxes, masks, keypoints, each an engine of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeAlias

from roiline.core.errors import ModelError
from roiline.core.spec import ModelSpec
from roiline.engines.protocol import Engine, Stage, Tensor

Head: TypeAlias = Literal["masks", "keypoints"]
OpenStage: TypeAlias = Callable[[Stage | None], Engine]
FindTaps: TypeAlias = Callable[[Sequence[str]], tuple[str, ...]]
"""Returns the taps of the model that are computed from any of the named tensors, or are one of them."""


_ROIS: Mapping[Head, str] = {"masks": "mask_rois", "keypoints": "keypoint_rois"}


class Stages:
    """Holds the engines of a model cut at its seams, and passes tensors on from one to the next.

    The box stage also gives the features where a head follows. With `body_apart` the body is a stage of its own, so that no boxes are
    computed where only heads run over a picture. No weight of the body is held twice either way. `heads` are those that the model has.
    Taps are given by the stage that they are of: a head's, named by `head_taps`, are of the RoIs that it runs on, the others come with
    the boxes.
    """

    def __init__(
        self, open_stage: OpenStage, find_taps: FindTaps, spec: ModelSpec, *, body_apart: bool = False
    ) -> None:
        seams = spec.seams
        answers = seams.get("raw", seams.get("candidates", ()))
        self.heads: tuple[Head, ...] = tuple(head for head in _ROIS if head in seams)
        features = seams.get("features", ()) if self.heads else ()
        if not answers or (self.heads and not features):
            raise ModelError(
                "the model's specification names no tensors of scores and boxes (or none of features for its heads), where this run "
                "would cut it; export the model again"
            )
        self._rois = {head: tuple(seams[_ROIS[head]]) for head in self.heads}
        self.head_taps: dict[Head, tuple[str, ...]] = {
            head: find_taps(self._rois[head]) if spec.taps else () for head in self.heads
        }
        of_heads = {tap for taps in self.head_taps.values() for tap in taps}
        early = [tap for tap in spec.taps if tap not in of_heads]
        stages = {"boxes": _make_stage((*answers, *features), (), early)}
        if body_apart:
            after_body = find_taps(features) if spec.taps else ()
            stages = {
                "body": _make_stage(features, (), [tap for tap in early if tap not in after_body]),
                "boxes": _make_stage(answers, features, [tap for tap in early if tap in after_body]),
            }
        for head in self.heads:
            stages[head] = _make_stage(tuple(seams[head]), (*features, *self._rois[head]), self.head_taps[head])
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

    def run_head(self, head: Head, feeds: Mapping[str, Tensor], rows: Sequence[Tensor]) -> dict[str, Tensor]:
        """Returns what a head says of RoIs, and these; `rows` are the tensors of its seam, features are among `feeds`."""
        rois = dict(zip(self._rois[head], rows, strict=True))
        return {**rois, **self._run(head, {**feeds, **rois})}

    def close(self) -> None:
        """Gives every engine back."""
        while self._engines:
            self._engines.popitem()[1].close()

    def _run(self, stage: str, feeds: Mapping[str, Tensor]) -> dict[str, Tensor]:
        engine = self._engines[stage]
        return engine.run({info.name: feeds[info.name] for info in engine.inputs})


def _make_stage(answers: tuple[str, ...], inputs: tuple[str, ...], taps: Sequence[str]) -> Stage:
    """Returns a stage that gives taps too, but for those that it gives or is given anyway."""
    return Stage(outputs=(*answers, *(tap for tap in taps if tap not in answers and tap not in inputs)), inputs=inputs)
