"""The numpy reference network: a picture through body, pyramid, proposals, heads and detections, one part at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from roiline.checks.verify.arithmetic import softmax
from roiline.checks.verify.bodies import compute_features
from roiline.checks.verify.computation import Computation, Observer, ignore
from roiline.checks.verify.heads import Features, RawRows, compute_boxes, compute_keypoints, compute_masks
from roiline.checks.verify.pictures import NetworkInput
from roiline.checks.verify.plan import DensePlan, ReferenceSource, RpnPlan
from roiline.checks.verify.proposals import (
    CandidateRows,
    DenseMaps,
    ProposalRows,
    choose_candidates,
    choose_proposals,
    compute_dense_maps,
    compute_rpn_maps,
)
from roiline.core.spec import DetectionRules
from roiline.core.structures import Float32, Int64
from roiline.ops.detection_output import DETECTION_OUTPUT
from roiline.ops.retinanet_output import RETINANET_OUTPUT


class DetectionRows(NamedTuple):
    """Is the detections of one picture: boxes (D, 4) in original pixels, scores (D,), classes (D,) int64."""

    boxes: Float32
    scores: Float32
    classes: Int64


@dataclass(frozen=True, slots=True)
class Reference:
    """Computes the parts of a network from its checkpoint; every method shows its results to an observer."""

    source: ReferenceSource

    def features(self, data: Float32, observe: Observer = ignore) -> dict[int, Float32]:
        """Returns the feature maps (1, C, h, w) by level."""
        plan = self.source.plan
        return compute_features(self._compute("body", observe), plan.body, plan.pyramid, data)

    def rpn_maps(self, features: Features, observe: Observer = ignore) -> DenseMaps:
        """Returns the RPN's objectness and deltas."""
        return compute_rpn_maps(self._compute("RPN", observe), self._rpn, features)

    def choose_proposals(self, maps: DenseMaps, picture: NetworkInput) -> ProposalRows:
        """Returns the proposals that maps of the RPN give, in network-input pixels."""
        return choose_proposals(self._rpn, maps, picture.im_info, self.source.plan.conventions)

    def dense_maps(self, features: Features, observe: Observer = ignore) -> DenseMaps:
        """Returns a one-stage head's probabilities and deltas."""
        return compute_dense_maps(self._compute("dense head", observe), self._dense, features)

    def choose_candidates(self, maps: DenseMaps, picture: NetworkInput) -> CandidateRows:
        """Returns the candidates that maps of a one-stage head give."""
        conventions, regress = self.source.plan.conventions, self._rules.regress
        return choose_candidates(self._dense, maps, picture.im_info, picture.im_size, conventions, regress=regress)

    def boxes(self, features: Features, rois: Float32, picture: NetworkInput, observe: Observer = ignore) -> RawRows:
        """Returns what the box head says of RoIs (T, 5)."""
        plan = self.source.plan
        if plan.boxes is None:
            raise ValueError("this network has no box head")
        extent = picture.im_info[0, :2]
        return compute_boxes(self._compute("box head", observe), plan.boxes, features, rois, extent, plan.conventions)

    def detections(self, raw: RawRows, picture: NetworkInput) -> DetectionRows:
        """Returns the detections of what the box head says."""
        rules, conventions = self._rules, self.source.plan.conventions
        offset = float(conventions.plus_one)
        rows = DETECTION_OUTPUT.run(
            *raw,
            picture.im_info,
            picture.im_size,
            np.array([len(raw.rois)], np.int64),
            score_thresh=rules.score_thresh,
            nms_thresh=rules.nms_thresh,
            max_dets=rules.max_dets,
            bbox_reg_weights=rules.bbox_reg_weights,
            class_agnostic=int(rules.class_agnostic),
            regress=int(rules.regress),
            network_frame=int(conventions.network_frame),
            ranked=int(conventions.ranked),
            later_first=int(conventions.ties == "later"),
            final_clip=int(conventions.final_clip),
            nms_inclusive=int(conventions.nms_inclusive),
            size_offset=offset,
            corner_offset=offset,
            delta_clip=conventions.delta_clip,
        )
        return _first_picture(*rows)

    def dense_detections(self, candidates: CandidateRows, picture: NetworkInput) -> DetectionRows:
        """Returns the detections of a one-stage network's candidates."""
        rules, plan = self._rules, self.source.plan
        rows = RETINANET_OUTPUT.run(
            *candidates,
            *((picture.im_size,) if plan.conventions.final_clip else ()),
            num_classes=self._dense.classes,
            score_thresh=rules.score_thresh,
            coarsest_score_thresh=rules.coarsest_thresh,
            nms_thresh=rules.nms_thresh,
            max_dets=rules.max_dets,
            nms_inclusive=int(plan.conventions.nms_inclusive),
            size_offset=float(plan.conventions.plus_one),
            ranked=int(plan.conventions.ranked),
        )
        return _first_picture(*rows)

    def rois_of_detections(self, found: DetectionRows, picture: NetworkInput) -> Float32:
        """Returns detections as RoI rows (M, 5) in network-input pixels."""
        boxes = found.boxes * self.ratios(picture)
        return np.concatenate([np.zeros((len(boxes), 1), np.float32), boxes], axis=1)

    def ratios(self, picture: NetworkInput) -> Float32:
        """Returns network-input pixels per original pixel (4,), for the corners of boxes."""
        if not self.source.plan.conventions.network_frame:
            return np.full(4, picture.im_info[0, 2], np.float32)
        down, across = picture.im_info[0, :2] / picture.im_size[0]
        return np.array([across, down, across, down], np.float32)

    def masks(self, features: Features, rois: Float32, classes: Int64, observe: Observer = ignore) -> Float32:
        """Returns the probabilities (M, size, size) of each detection's class."""
        plan = self.source.plan
        if plan.masks is None:
            raise ValueError("this network has no mask head")
        computation = self._compute("mask head", observe)
        return compute_masks(computation, plan.masks, features, rois, classes, plan.conventions)

    def keypoints(self, features: Features, rois: Float32, observe: Observer = ignore) -> Float32:
        """Returns the heatmaps (M, J, size, size)."""
        plan = self.source.plan
        if plan.keypoints is None:
            raise ValueError("this network has no keypoint head")
        return compute_keypoints(
            self._compute("keypoint head", observe), plan.keypoints, features, rois, plan.conventions
        )

    def classes(self, features: Features, observe: Observer = ignore) -> Float32:
        """Returns the probabilities (1, K) of whole pictures."""
        c = self._compute("classifier", observe)
        (x,) = features.values()
        x = c.show("final_avg", x.mean(axis=(2, 3), keepdims=True))
        for index in range(self.source.plan.hidden or 0):
            x = c.dense(x, f"fc{6 + index}", relu=True)
        return c.show("cls_prob", softmax(c.dense(x, "logits"), 1))

    def _compute(self, stage: str, observe: Observer) -> Computation:
        return Computation(self.source.find, observe, stage)

    @property
    def _rpn(self) -> RpnPlan:
        plan = self.source.plan.rpn
        if plan is None:
            raise ValueError("this network has no RPN")
        return plan

    @property
    def _dense(self) -> DensePlan:
        plan = self.source.plan.dense
        if plan is None:
            raise ValueError("this network has no one-stage head")
        return plan

    @property
    def _rules(self) -> DetectionRules:
        rules = self.source.plan.detection
        if rules is None:
            raise ValueError("this network makes no detections")
        return rules


def _first_picture(boxes: Float32, scores: Float32, classes: Int64, count: Int64) -> DetectionRows:
    real = slice(int(count[0]))
    return DetectionRows(boxes[0, real], scores[0, real], classes[0, real])
