"""Several models that answer together: one makes the proposals, the others' boxes, masks and keypoints are combined.

As Detectron's infer tool has it: models run one after another; boxes, masks and keypoints of an answer are each those of the last model
that gave any. Proposals made by a model are used as they are: not clipped, thinned out or limited as those of a file are. How many there
are is what that model was exported with (the original's tool sets 10,000 before and 2,000 after NMS); a run's overrides are not for it.

An answer has the taps of every model, which therefore must not be of one name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from roiline.core.errors import UsageError
from roiline.core.spec import ModelSpec
from roiline.core.structures import Detections, Float32, ImageBatch, Int64, Proposals, Taps
from roiline.infer.detection_parts import select_rows
from roiline.infer.feeds import batch_from_picture
from roiline.infer.predictor import Predictor


@dataclass(frozen=True, slots=True)
class _Part:
    """Is what one model was given and what its engine gave; the batch of the run in several where its pictures are prepared otherwise."""

    batches: tuple[ImageBatch, ...]
    outputs: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class _Inferred:
    """Is what every model gave, and the taps of the one that made the proposals, picture by picture."""

    parts: tuple[_Part, ...]
    taps: tuple[Taps, ...]


class CombinedPredictor(Predictor):
    """Answers with the combined detections of several models, over the proposals of another one where there is one."""

    needs_pictures = True

    def __init__(self, members: Sequence[Predictor], proposer: Predictor | None = None) -> None:
        """Takes over opened models; the first one's specification governs the run.

        Raises:
            UsageError: classes of the models do not belong together, nobody takes or makes the proposals, or models tap blobs of one name.
        """
        self.spec = members[0].spec
        self._members = tuple(members)
        self._proposer = proposer
        wanting = any(member.needs_proposals for member in members)
        if proposer is not None and not wanting:
            raise UsageError("proposals are made by a model, but no model takes any: all make their own")
        self.needs_proposals = wanting and proposer is None
        check_models_taps([one.spec for one in (*members, proposer) if one is not None])
        self._class_maps = tuple(match_model_classes(self.spec, member.spec) for member in members)

    @property
    def description(self) -> Mapping[str, str]:
        """Says which engine was really got, and how many models it runs."""
        count = len(self._members) + (self._proposer is not None)
        return {**self._members[0].description, "models": str(count)}

    def infer(self, batch: ImageBatch) -> _Inferred:
        """Runs every model; what they return goes to `finish`."""
        taps: tuple[Taps, ...] = ({},) * len(batch.ids)
        if self._proposer is not None:
            made = self._answer(self._proposer, batch)
            proposals = [one for one in made if isinstance(one, Proposals)]
            batch = replace(batch, proposals=tuple(one.boxes for one in proposals))
            taps = tuple(one.taps for one in proposals)
        return _Inferred(tuple(self._infer(member, batch) for member in self._members), taps)

    def finish(self, outputs: _Inferred, batch: ImageBatch) -> list[Detections]:  # noqa: ARG002  # a predictor's form
        """Makes answers of what the engines returned for a batch."""
        answers = [
            _renumber(_finish(member, part), class_map)
            for member, part, class_map in zip(self._members, outputs.parts, self._class_maps, strict=True)
        ]
        return [
            replace(combine_detections(parts), taps=_join_taps([taps, *(part.taps for part in parts)]))
            for taps, *parts in zip(outputs.taps, *answers, strict=True)
        ]

    def close(self) -> None:
        """Gives every engine back."""
        for predictor in (*self._members, self._proposer):
            if predictor is not None:
                predictor.close()

    def _answer(self, predictor: Predictor, batch: ImageBatch) -> list[Proposals] | list[Detections]:
        return _finish(predictor, self._infer(predictor, batch))

    def _infer(self, predictor: Predictor, batch: ImageBatch) -> _Part:
        batches: tuple[ImageBatch, ...] = (batch,)
        if predictor.spec.images != self.spec.image_rules:
            batches = _prepare_again(batch, predictor.spec)
        return _Part(batches, tuple(predictor.infer(one) for one in batches))


def _prepare_again(batch: ImageBatch, spec: ModelSpec) -> tuple[ImageBatch, ...]:
    """Returns the pictures of a batch one by one, as another model wants them."""
    proposals = [[boxes] for boxes in batch.proposals] or [[]] * len(batch.ids)
    rows = zip(batch.pictures, batch.ids, proposals, strict=True)
    return tuple(batch_from_picture(picture, spec.image_rules, image_id, boxes) for picture, image_id, boxes in rows)


def _finish(predictor: Predictor, part: _Part) -> list[Any]:
    pairs = zip(part.outputs, part.batches, strict=True)
    return [answer for outputs, batch in pairs for answer in predictor.finish(outputs, batch)]


def match_model_classes(first: ModelSpec, other: ModelSpec) -> Int64:
    """Returns the class of the first model (K,) for each class of another one: by name where both know names, else by number.

    Raises:
        UsageError: the first model lacks a class of the other.
    """
    if first.class_names_known and other.class_names_known:
        missing = [name for name in other.class_names if name not in first.class_names]
        if missing:
            raise UsageError(
                f"models cannot be combined: the first has no class {', '.join(missing)}\n"
                f"  first: {', '.join(first.class_names)}\n  other: {', '.join(other.class_names)}"
            )
        return np.array([0, *(first.class_names.index(name) + 1 for name in other.class_names)], np.int64)
    if other.num_classes > first.num_classes:
        raise UsageError(
            f"models cannot be combined: the first has {first.num_classes - 1} classes, another has {other.num_classes - 1}, and they "
            "are not all known by name; name the model with more classes first, or export them with --classes"
        )
    return np.arange(other.num_classes)


def check_models_taps(specs: Sequence[ModelSpec]) -> None:
    """Checks that no two models that work together tap blobs of one name.

    Raises:
        UsageError: two do.
    """
    twice = [name for name, count in Counter(tap for spec in specs for tap in spec.taps).items() if count > 1]
    if twice:
        raise UsageError(
            f"models cannot work together: more than one taps {', '.join(twice)}, and a picture's file of taps has a blob of a name once; "
            "export one of them without"
        )


def _join_taps(parts: Sequence[Taps]) -> Taps:
    return {name: blob for part in parts for name, blob in part.items()}


def _renumber(answers: Sequence[Detections], class_map: Int64) -> list[Detections]:
    """Returns detections with the first model's class numbers, still class by class."""
    renumbered = []
    for answer in answers:
        classes = class_map[answer.classes]
        order = np.argsort(classes, kind="stable")
        renumbered.append(select_rows(replace(answer, classes=classes), order))
    return renumbered


def combine_detections(parts: Sequence[Detections]) -> Detections:
    """Returns the last model's boxes with the masks and the keypoints of the last model that gave any for this picture.

    Where these are not the rows of the boxes, `mask_rows` and `keypoint_rows` are their own.
    """
    combined = parts[-1]
    for earlier in reversed(parts[:-1]):
        if not _gave(combined.masks) and _gave(earlier.masks):
            combined = replace(combined, masks=earlier.masks, mask_rows=earlier)
        if not _gave(combined.keypoints) and _gave(earlier.keypoints):
            combined = replace(combined, keypoints=earlier.keypoints, keypoint_rows=earlier)
    return combined


def _gave(rows: Sequence[bytes] | Float32 | None) -> bool:
    return rows is not None and len(rows) > 0
