"""Detections that the host makes between the stages of a model: with soft-NMS, box voting, augmentation, or a run's own thresholds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeAlias

import numpy as np

from roiline.core.spec import ModelSpec
from roiline.core.structures import Detections, Float32, ImageBatch, ImageId, Int64, Taps
from roiline.engines.protocol import Tensor
from roiline.infer.augmentation import Pass, identity_pass, join_boxes, join_keypoints, join_masks, list_passes
from roiline.infer.detection_parts import complete_detections, empty_detections, split_rows
from roiline.infer.detection_rules import (
    Candidates,
    ScoredBoxes,
    clip_detections,
    network_scales,
    read_candidates,
    read_scored_boxes,
    select_detections,
    stack_rois,
)
from roiline.infer.feeds import batch_from_picture, copy_taps, count_proposals, image_feeds, make_feeds, split_batch
from roiline.infer.predictor import Predictor
from roiline.infer.stages import FindTaps, Head, OpenStage, Stages

Raw: TypeAlias = ScoredBoxes | Candidates


@dataclass(frozen=True, slots=True)
class Inferred:
    """Is what the engines gave for one picture: its raw rows, and with heads its detections and what the heads say of each; its taps.

    All None: no engine was asked, for the picture has no proposals.
    """

    raw: Raw | None = None
    found: Detections | None = None
    masks: Float32 | None = None
    maps: Float32 | None = None
    taps: Taps = field(default_factory=dict)


class HeadAnswer(NamedTuple):
    """Is what a head says of RoIs, row by row, and everything that its stage took and gave, by name."""

    rows: Float32
    tensors: Mapping[str, Tensor]


class HostPredictor(Predictor):
    """Answers with detections by several stages of a model.

    Where heads follow the boxes, NMS belongs to `infer`, since the heads wait for it; otherwise to `finish`. Pictures are augmented one
    by one, and run one by one where there are taps: these are of the picture as it is, not of its altered forms.
    """

    def __init__(self, open_stage: OpenStage, find_taps: FindTaps, spec: ModelSpec) -> None:
        self.spec = spec
        self.needs_proposals = spec.given_proposals is not None
        boxes, masks, keypoints = (
            spec.test.box_augmentation,
            spec.test.mask_augmentation,
            spec.test.keypoint_augmentation,
        )
        self._box_passes = list_passes(boxes.passes, spec.image_rules) if boxes else ()
        self._mask_passes = list_passes(masks.passes, spec.image_rules) if masks and "masks" in spec.seams else ()
        self._map_passes = (
            list_passes(keypoints.passes, spec.image_rules) if keypoints and "keypoints" in spec.seams else ()
        )
        self.needs_pictures = bool(self._box_passes or self._mask_passes or self._map_passes)
        self._plus_one = float(spec.conventions.plus_one)
        body_apart = bool(self._mask_passes or self._map_passes)
        self._stages = Stages(open_stage, find_taps, spec, body_apart=body_apart)

    @property
    def description(self) -> Mapping[str, str]:
        """Says which engine was really got."""
        return self._stages.description

    def infer(self, batch: ImageBatch) -> list[Inferred]:
        """Runs the engines; what they return goes to `finish`."""
        if self.needs_pictures or self.spec.taps:
            return [inferred for single in split_batch(batch) for inferred in self._infer(single)]
        return self._infer(batch)

    def finish(self, outputs: list[Inferred], batch: ImageBatch) -> list[Detections]:
        """Makes answers of what the engines returned for a batch."""
        rows = zip(outputs, batch.ids, batch.sizes, batch.im_info[:, :2], strict=True)
        return [replace(self._finish(inferred, *row), taps=inferred.taps) for inferred, *row in rows]

    def close(self) -> None:
        """Gives the engines back."""
        self._stages.close()

    def _infer(self, batch: ImageBatch) -> list[Inferred]:
        feeds = make_feeds(batch, self.spec, self.spec.image_rules)
        if self.needs_proposals and not count_proposals(batch):
            return [Inferred()] * len(batch.ids)
        outputs = self._stages.run_boxes(feeds)
        raw = self._read(batch, outputs)
        if not self._stages.heads:
            return [Inferred(rows, taps=copy_taps(outputs, self.spec.taps)) for rows in raw]
        found = [
            self._select(image_id, rows, size_hw)
            for image_id, rows, size_hw in zip(batch.ids, raw, batch.sizes, strict=True)
        ]
        counts = np.array([len(one.scores) for one in found])
        said = (self._run_masks(batch, outputs, found), self._run_keypoints(batch, outputs, found))
        masks, maps = (split_rows(None if answer is None else answer.rows, counts) for answer in said)
        tensors = dict(outputs)
        for answer in said:
            tensors.update({} if answer is None else answer.tensors)
        taps = copy_taps(tensors, self.spec.taps)
        return [Inferred(raw[i], found[i], masks[i], maps[i], taps) for i in range(len(found))]

    def _select(self, image_id: ImageId, raw: Raw, size_hw: Float32) -> Detections:
        return clip_detections(select_detections(image_id, raw, self.spec), size_hw, self.spec)

    def _finish(self, inferred: Inferred, image_id: ImageId, size_hw: Float32, network_hw: Float32) -> Detections:
        if inferred.raw is None:
            return empty_detections(image_id, self.spec)
        found = inferred.found
        if found is None:
            found = self._select(image_id, inferred.raw, size_hw)
        if not len(found.scores):
            return empty_detections(image_id, self.spec)
        return complete_detections(found, inferred.masks, inferred.maps, size_hw, self.spec, network_hw=network_hw)

    def _read(self, batch: ImageBatch, outputs: Mapping[str, Tensor]) -> list[Raw]:
        """Returns what the box stage says of every picture, joined with what it says of altered ones."""
        if "candidates" in self.spec.seams:
            return [*read_candidates(outputs, self.spec)]
        scored = read_scored_boxes(outputs, batch, self.spec)
        rule = self.spec.test.box_augmentation
        if rule is None:
            return [*scored]
        return [join_boxes(self._score_altered(batch), scored[0], rule)]

    # -- augmentation ------------------------------------------------------------------------------------------------------------

    def _alter(self, batch: ImageBatch, one: Pass) -> ImageBatch:
        """Returns the only picture of a batch, and its proposals, as a pass wants them."""
        picture = batch.pictures[0]
        proposals = [one.alter_boxes(boxes, picture.shape[1], plus_one=self._plus_one) for boxes in batch.proposals]
        return batch_from_picture(
            one.alter_picture(picture), one.image_rules(self.spec.image_rules), batch.ids[0], proposals
        )

    def _score_altered(self, batch: ImageBatch) -> list[ScoredBoxes]:
        """Returns what the box stage says of each altered form of the only picture of a batch, boxes restored."""
        altered = []
        for one in self._box_passes:
            changed = self._alter(batch, one)
            outputs = self._stages.run_boxes(make_feeds(changed, self.spec, one.image_rules(self.spec.image_rules)))
            (scored,) = read_scored_boxes(outputs, changed, self.spec)
            boxes = one.restore_boxes(scored.boxes, batch.pictures[0].shape[1], plus_one=self._plus_one)
            altered.append(replace(scored, boxes=boxes))
        return altered

    def _wants(self, head: Head, found: Sequence[Detections]) -> bool:
        """Whether a head is to run; without detections it is only for its taps, which have no rows then."""
        if head not in self._stages.heads:
            return False
        return any(len(one.scores) for one in found) or bool(self._stages.head_taps[head])

    def _run_masks(
        self, batch: ImageBatch, outputs: Mapping[str, Tensor], found: Sequence[Detections]
    ) -> HeadAnswer | None:
        """Returns the masks (M, S, S) of all pictures' detections; None where there are none."""
        if not self._wants("masks", found):
            return None
        classes = np.concatenate([one.classes for one in found])
        own = self._run_head("masks", batch, outputs, found, classes)
        rule = self.spec.test.mask_augmentation
        if rule is None or not len(own.rows):
            return own
        altered = [
            one.restore_masks(self._run_altered("masks", batch, one, found[0], classes)) for one in self._mask_passes
        ]
        return own._replace(rows=join_masks([own.rows, *altered], rule))

    def _run_keypoints(
        self, batch: ImageBatch, outputs: Mapping[str, Tensor], found: Sequence[Detections]
    ) -> HeadAnswer | None:
        """Returns the keypoint maps (M, J, S, S) of all pictures' detections; None where there are none."""
        if not self._wants("keypoints", found):
            return None
        own = self._run_head("keypoints", batch, outputs, found)
        rule = self.spec.test.keypoint_augmentation
        if rule is None or not len(own.rows):
            return own
        altered = [
            one.restore_keypoints(self._run_altered("keypoints", batch, one, found[0])) for one in self._map_passes
        ]
        passes = (identity_pass(self.spec.image_rules), *self._map_passes)
        joined = join_keypoints([own.rows, *altered], passes, found[0].boxes, rule, plus_one=self._plus_one)
        return own._replace(rows=joined)

    def _run_altered(self, head: Head, batch: ImageBatch, one: Pass, found: Detections, *labels: Int64) -> Float32:
        """Runs a head over the altered picture, on the boxes where they are there."""
        changed = self._alter(batch, one)
        boxes = one.alter_boxes(found.boxes, batch.pictures[0].shape[1], plus_one=self._plus_one)
        features = self._stages.run_body(image_feeds(changed))
        return self._run_head(head, changed, features, [replace(found, boxes=boxes)], *labels).rows

    def _run_head(
        self,
        head: Head,
        batch: ImageBatch,
        features: Mapping[str, Tensor],
        found: Sequence[Detections],
        *labels: Int64,
    ) -> HeadAnswer:
        """Runs a head on the boxes of detections; `labels` are what it takes beside RoIs."""
        rows: tuple[Tensor, ...] = (stack_rois(found, network_scales(batch, self.spec.conventions)), *labels)
        tensors = self._stages.run_head(head, image_feeds(batch) | dict(features), rows)
        (answer,) = self.spec.seams[head]
        return HeadAnswer(tensors[answer], tensors)
