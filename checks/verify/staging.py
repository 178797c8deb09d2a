"""One picture through the reference and the exported model, part by part; each part of the model is fed with the reference's own numbers.

So a fault shows where it is, and what comes after it is judged by itself: body and pyramid on the reference's input, RPN on its feature
maps, box head on its RoIs, NMS on its scores, masks and keypoints on its detections. At last the whole model runs on the picture alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from roiline.checks.verify.computation import Observer
from roiline.checks.verify.exported import ExportedModel, SlicedTensors
from roiline.checks.verify.heads import RawRows
from roiline.checks.verify.measures import (
    WEIGHT_TOLERANCE,
    BoxRows,
    Measure,
    Tolerances,
    match_boxes,
    measure_boxes,
    measure_tensor,
)
from roiline.checks.verify.pictures import NetworkInput, prepare_input
from roiline.checks.verify.plan import DensePlan
from roiline.checks.verify.proposals import DenseMaps, name_dense_maps, name_rpn_maps
from roiline.checks.verify.reference import DetectionRows, Reference
from roiline.core.errors import ModelError
from roiline.core.structures import Float32, UInt8
from roiline.engines.protocol import Tensor
from roiline.infer.preparation import PreparedPicture, prepare_picture

_INNER = re.compile(
    r"branch|lateral|topdown|fpn_inner|conv_rpn|_conv_n\d|probs|fcn\d|^fc\d|head_conv|deconv|_relu$|^conv5_mask"
)
"""Tensors inside a stage, which are only compared layer by layer."""
_AS_SETS = re.compile(r"^(rpn_(boxes|scores|count|roi_probs)|proposal_|candidate_)")
"""Rows of boxes, which are compared as sets."""
_GIVEN_PROPOSALS = 64
_TOGETHER, _TOGETHER_BY_LAYER = 64, 12
"""How many tensors of the model lie in memory at once: they are few where only the ends of stages are compared."""


@dataclass(frozen=True, slots=True)
class Answers:
    """Is what the reference says of a whole picture; None is what its network does not make."""

    proposals: BoxRows | None = None
    detections: DetectionRows | None = None
    masks: Float32 | None = None
    keypoints: Float32 | None = None
    probabilities: Float32 | None = None


@dataclass(slots=True)
class PictureCheck:
    """Compares the parts on one picture; `feeds` grows by what the reference has made, `measures` by what was found.

    `weights_too`: the parameters that the graph holds are compared as well, so that one is seen whose input is zero on the picture.
    """

    reference: Reference
    model: ExportedModel
    tolerances: Tolerances
    number: int
    by_layer: bool
    weights_too: bool
    measures: list[Measure] = field(default_factory=list)
    feeds: dict[str, Tensor] = field(default_factory=dict)
    not_compared: set[str] = field(default_factory=set)
    _weights_seen: set[str] = field(default_factory=set)

    def run(self, picture: UInt8) -> Answers:
        """Compares everything on a BGR picture; returns what the reference answers."""
        plan = self.reference.source.plan
        network_input = self._check_input(picture)
        features = self._check_features(network_input)
        if plan.hidden is not None:
            return Answers(probabilities=self._check_classes(features))
        if plan.dense is not None:
            return Answers(detections=self._check_dense(plan.dense, features, network_input))
        rois = self._check_proposals(features, network_input)
        if plan.boxes is None:
            return Answers(proposals=self._answer_proposals(network_input))
        found = self._check_detections(self._check_boxes(features, rois, network_input), network_input)
        rows = self.reference.rois_of_detections(found, network_input)
        masks = self._check_masks(features, rows, found)
        return Answers(None, found, masks, self._check_keypoints(features, rows))

    # --- parts -------------------------------------------------------------------------------------------------------

    def _check_input(self, picture: UInt8) -> NetworkInput:
        expected = prepare_input(picture, self.reference.source.plan.images)
        got = feed_of_picture(prepare_picture(picture, self.model.spec.image_rules), picture)
        for name, values in expected._asdict().items():
            self._note(measure_tensor("input", name, self.number, values, got[name], self.tolerances.input))
        self.feeds |= expected._asdict()
        return expected

    def _check_features(self, network_input: NetworkInput) -> dict[int, Float32]:
        names = self.model.seam("features")
        observe = self._observe(names, ())
        features = self.reference.features(network_input.data, observe)
        if len(names) != len(features):
            raise ModelError(
                f"{self.model.path}: model and checkpoint do not match: the model has {len(names)} feature maps "
                f"({', '.join(names)}), the network of the configuration {len(features)}"
            )
        self.feeds |= dict(zip(names, (features[level] for level in sorted(features)), strict=True))
        return features

    def _check_proposals(self, features: dict[int, Float32], network_input: NetworkInput) -> Float32:
        """Compares the RPN and its proposals; returns the reference's RoIs (R, 5), or made up ones where there is no RPN."""
        plan = self.reference.source.plan.rpn
        if plan is None:
            return _make_rois(network_input, self.number)
        inputs = self.model.seam("features")
        maps = self.reference.rpn_maps(features, self._observe(self.model.seam("proposals"), inputs))
        seen, (boxes, scores, count) = self._fetch_rows(
            name_rpn_maps(plan), ("rpn_boxes", "rpn_scores", "rpn_count"), inputs
        )
        expected = self.reference.choose_proposals(seen, network_input)
        got = _rows(boxes[0, : count[0]], scores[0, : count[0]])
        self._note(self._measure_boxes("proposals", _rows(*expected), got))
        proposals = self.reference.choose_proposals(maps, network_input).boxes
        return np.concatenate([np.zeros((len(proposals), 1), np.float32), proposals], axis=1)

    def _answer_proposals(self, network_input: NetworkInput) -> BoxRows:
        """Returns the proposals, in original pixels, that the reference makes of the maps that the model makes of the picture."""
        plan = self.reference.source.plan.rpn
        if plan is None:
            raise ValueError("this network has no RPN")
        seen, _ = self._fetch_rows(name_rpn_maps(plan), (), ())
        boxes, scores = self.reference.choose_proposals(seen, network_input)
        return _rows(boxes / self.reference.ratios(network_input), scores)

    def _fetch_rows(
        self, names: tuple[tuple[str, ...], tuple[str, ...]], rows: Sequence[str], inputs: Sequence[str]
    ) -> tuple[DenseMaps, list[Tensor]]:
        """Returns the model's maps of scores and deltas and the rows that it makes of them.

        The reference makes its own rows of the same maps: of scores that are nearly equal the last bit decides which are taken.
        """
        got = self.model.run((*names[0], *names[1], *rows), inputs, self.feeds)
        scores, deltas = (tuple(got[name] for name in part) for part in names)
        return DenseMaps(scores, deltas), [got[name] for name in rows]

    def _check_boxes(self, features: dict[int, Float32], rois: Float32, network_input: NetworkInput) -> RawRows:
        given = "given_rois" in self.model.spec.seams
        self.feeds["rois"] = rois
        self.feeds["roi_index"] = np.arange(len(rois), dtype=np.int64)
        self.feeds["roi_count"] = np.array([len(rois)], np.int64)
        names = self.model.seam("raw")
        inputs = (*self.model.seam("features"), *(() if given else ("rois",)))
        raw = self.reference.boxes(features, rois, network_input, self._observe((names[0], *names[2:]), inputs))
        self.feeds |= dict(zip((names[0], *names[2:]), raw, strict=True))
        self.feeds[names[1]] = np.array([len(rois)], np.int64)
        return raw

    def _check_detections(self, raw: RawRows, network_input: NetworkInput) -> DetectionRows:
        found = self.reference.detections(raw, network_input)
        self._note_detections(found, self.model.seam("raw"))
        return found

    def _check_dense(self, plan: DensePlan, features: dict[int, Float32], network_input: NetworkInput) -> DetectionRows:
        seam, inputs = self.model.seam("candidates"), self.model.seam("features")
        maps = self.reference.dense_maps(features, self._observe(seam, inputs))
        seen, (boxes, scores, classes, _) = self._fetch_rows(name_dense_maps(plan), seam, inputs)
        chosen = self.reference.choose_candidates(seen, network_input)
        expected = BoxRows(chosen.boxes[0], chosen.scores[0], chosen.classes[0])
        self._note(self._measure_boxes("candidates", expected, BoxRows(boxes[0], scores[0], classes[0])))
        candidates = self.reference.choose_candidates(maps, network_input)
        self.feeds |= dict(zip(seam, candidates, strict=True))
        found = self.reference.dense_detections(candidates, network_input)
        self._note_detections(found, seam)
        return found

    def _note_detections(self, found: DetectionRows, inputs: Sequence[str]) -> None:
        boxes, scores, classes, count = self.model.run(self.model.seam("detections"), inputs, self.feeds).values()
        real = slice(int(count[0]))
        got = BoxRows(boxes[0, real], scores[0, real], classes[0, real])
        self._note(self._measure_boxes("detections", BoxRows(*found), got))

    def _check_masks(self, features: dict[int, Float32], rows: Float32, found: DetectionRows) -> Float32 | None:
        if self.reference.source.plan.masks is None:
            return None
        rois, classes = self.model.seam("mask_rois")
        self.feeds |= {rois: rows, classes: found.classes}
        inputs = (*self.model.seam("features"), rois, classes)
        return self.reference.masks(features, rows, found.classes, self._observe(self.model.seam("masks"), inputs))

    def _check_keypoints(self, features: dict[int, Float32], rows: Float32) -> Float32 | None:
        if self.reference.source.plan.keypoints is None:
            return None
        (rois,) = self.model.seam("keypoint_rois")
        self.feeds[rois] = rows
        inputs = (*self.model.seam("features"), rois)
        return self.reference.keypoints(features, rows, self._observe(self.model.seam("keypoints"), inputs))

    def _check_classes(self, features: dict[int, Float32]) -> Float32:
        seam = self.model.seam("classification")
        return self.reference.classes(features, self._observe(seam, self.model.seam("features")))

    # --- comparing ---------------------------------------------------------------------------------------------------

    def _observe(self, outputs: Sequence[str], inputs: Sequence[str]) -> Observer:
        """Returns what compares the reference's results with the model's tensors of their names as they are made."""
        names = [name for name in self.model.names_between(inputs, outputs) if not _AS_SETS.search(name)]
        if not self.by_layer:
            names = [name for name in names if not _INNER.search(name)]
        together = _TOGETHER_BY_LAYER if self.by_layer else _TOGETHER
        tensors = SlicedTensors(names, self._fetcher(inputs), together=together)
        self.not_compared |= set(names)

        def compare(stage: str, name: str, values: Float32) -> None:
            got = tensors.get(name)
            if got is not None:
                self.not_compared.discard(name)
                self._note(measure_tensor(stage, name, self.number, values, got, self.tolerances.tensor))
            elif self.weights_too and name not in self._weights_seen:
                self._compare_weight(stage, name, values)

        return compare

    def _compare_weight(self, stage: str, name: str, values: Float32) -> None:
        got = self.model.weight(name)
        if got is not None:
            self._weights_seen.add(name)
            self._note(measure_tensor(stage, name, self.number, values, got, WEIGHT_TOLERANCE))

    def _fetcher(self, inputs: Sequence[str]) -> Callable[[Sequence[str]], Mapping[str, Tensor]]:
        return lambda names: self.model.run(names, inputs, self.feeds)

    def _measure_boxes(self, stage: str, expected: BoxRows, got: BoxRows) -> Measure:
        limits = self.tolerances
        return measure_boxes(stage, self.number, expected, got, score=limits.score, unmatched=limits.unmatched)

    def _note(self, measure: Measure) -> None:
        self.measures.append(measure)


def feed_of_picture(prepared: PreparedPicture, picture: UInt8) -> dict[str, Tensor]:
    """Returns a prepared picture as a model's inputs."""
    extent = prepared.extent_hw or prepared.pixels.shape[1:]
    return {
        "data": prepared.pixels[None],
        "im_info": np.array([[*extent, prepared.scale]], np.float32),
        "im_size": np.array([picture.shape[:2]], np.float32),
    }


def compare_answers(
    stage: str, number: int, expected: Answers, got: Answers, tolerances: Tolerances, *, unmatched: float
) -> list[Measure]:
    """Compares what two programs say of a whole picture, box by box; maps are compared where their boxes are one.

    `unmatched` is the share of boxes that may have no partner.
    """
    measures = []
    compare = partial(measure_boxes, score=tolerances.score, unmatched=unmatched, one_may_flip=True)
    if expected.probabilities is not None and got.probabilities is not None:
        return [measure_tensor(stage, "cls_prob", number, expected.probabilities, got.probabilities, tolerances.tensor)]
    if expected.detections is None or got.detections is None:
        if expected.proposals is not None and got.proposals is not None:
            measures.append(compare(stage, number, expected.proposals, got.proposals, name="proposals"))
        return measures
    one, other = BoxRows(*expected.detections), BoxRows(*got.detections)
    measures.append(compare(stage, number, one, other, name="detections"))
    partner = match_boxes(one, other, tolerances.score)
    pairs = partner >= 0
    for name, first, second in (("masks", expected.masks, got.masks), ("keypoints", expected.keypoints, got.keypoints)):
        if first is not None and second is not None:
            rows = first[pairs], second[partner[pairs]]
            measures.append(measure_tensor(stage, name, number, *rows, tolerances.maps))
    return measures


def read_answers(outputs: Mapping[str, Tensor], model_seams: Mapping[str, tuple[str, ...]]) -> Answers:
    """Returns what a whole model said of one picture; proposals in original pixels."""

    def take(seam: str) -> list[Tensor] | None:
        names = model_seams.get(seam, ())
        return [outputs[name] for name in names] if names and all(name in outputs for name in names) else None

    proposals, detections = take("proposals"), take("detections")
    masks, keypoints, classes = take("masks"), take("keypoints"), take("classification")
    real = slice(int(detections[3][0])) if detections else slice(0)
    return Answers(
        proposals=_rows(proposals[0][0, : proposals[2][0]], proposals[1][0, : proposals[2][0]]) if proposals else None,
        detections=DetectionRows(*(part[0, real] for part in detections[:3])) if detections else None,
        masks=masks[0] if masks else None,
        keypoints=keypoints[0] if keypoints else None,
        probabilities=classes[0] if classes else None,
    )


def _rows(boxes: Float32, scores: Float32) -> BoxRows:
    return BoxRows(boxes, scores, np.zeros(len(scores), np.int64))


def _make_rois(network_input: NetworkInput, seed: int) -> Float32:
    """Returns RoIs (R, 5) in network-input pixels for a network that is given its proposals: of all sizes and places."""
    random = np.random.default_rng(seed)
    height, width, _ = network_input.im_info[0]
    sides = np.exp(random.uniform(np.log(0.05), np.log(0.9), (_GIVEN_PROPOSALS, 2))) * (width, height)
    low = random.uniform(0, 1, (_GIVEN_PROPOSALS, 2)) * (np.array([width, height]) - sides)
    boxes = np.concatenate([low, low + sides - 1], axis=1)
    return np.concatenate([np.zeros((_GIVEN_PROPOSALS, 1)), boxes], axis=1).astype(np.float32)
