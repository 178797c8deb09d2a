"""The RetinaNet head: towers of convolutions on every level, class probabilities and deltas of every anchor, and the detections of them.

The weights of the finest level serve all levels. Between dense maps and detections stand the candidates, a few thousand decoded rows a
picture with neither threshold nor NMS applied: the seam at which a run goes on by itself, with soft-NMS or with thresholds of its own
(`retinanet_results` beside the operator RetinaNetOutput). There are no proposals and no RoIs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from roiline.core.spec import Conventions, DetectionRules
from roiline.export.detections import DetectionTensors
from roiline.export.graph import GraphWriter
from roiline.export.layers import Feature, Kernel, write_conv, write_normed_conv
from roiline.export.one_stage import RetinaNet
from roiline.export.rpn import write_strides
from roiline.ops.retinanet_candidates import RETINANET_CANDIDATES
from roiline.ops.retinanet_output import RETINANET_OUTPUT

_PURPOSE = "RetinaNet head"
_TOWER_KERNEL = Kernel(3, pad=1)
_ANCHOR_KEYS = "RETINANET.ASPECT_RATIOS, RETINANET.SCALES_PER_OCTAVE"
_CLASS_KEYS = f"MODEL.NUM_CLASSES, RETINANET.SOFTMAX, {_ANCHOR_KEYS}"


class CandidateTensors(NamedTuple):
    """Names candidates in original pixels: boxes (N, M, 4), scores (N, M), classes (N, M) from 1, levels (N, M) from 0."""

    boxes: str
    scores: str
    classes: str
    levels: str


class RetinaNetTensors(NamedTuple):
    """Names what a RetinaNet head says: its candidates, and the padded detections made of them."""

    candidates: CandidateTensors
    detections: DetectionTensors


def write_retinanet(
    g: GraphWriter,
    retinanet: RetinaNet,
    features: dict[int, Feature],
    rules: DetectionRules,
    conventions: Conventions,
) -> RetinaNetTensors:
    """Writes the head on its levels, and decode, NMS per class and the limit per picture."""
    maps = [write_level(g, retinanet, level, features[level]) for level in retinanet.levels]
    offset = float(conventions.plus_one)
    names = ("candidate_boxes", "candidate_scores", "candidate_classes", "candidate_levels")
    boxes, scores, classes, levels = g.call(
        RETINANET_CANDIDATES,
        *(cls_prob for cls_prob, _ in maps),
        *(bbox_pred for _, bbox_pred in maps),
        g.constant(np.stack(retinanet.anchors).astype(np.float32)),
        "im_info",
        "im_size",
        *_write_strides(g, retinanet, features),
        names=names,
        strides=tuple(2.0**level for level in retinanet.levels),
        pre_nms_top_n=retinanet.pre_nms_top_n,
        regress=int(rules.regress),
        network_frame=int(conventions.network_frame),
        clip=int(not conventions.final_clip),
        first_class=retinanet.first_class,
        size_offset=offset,
        corner_offset=offset,
        delta_clip=conventions.delta_clip,
    )
    candidates = CandidateTensors(boxes, scores, classes, levels)
    return RetinaNetTensors(candidates, _write_detections(g, retinanet, candidates, rules, conventions))


def _write_detections(
    g: GraphWriter,
    retinanet: RetinaNet,
    candidates: CandidateTensors,
    rules: DetectionRules,
    conventions: Conventions,
) -> DetectionTensors:
    boxes, scores, classes, count = g.call(
        RETINANET_OUTPUT,
        *candidates,
        *(("im_size",) if conventions.final_clip else ()),
        names=("boxes", "scores", "classes", "count"),
        num_classes=retinanet.num_classes,
        first_class=retinanet.first_class,
        score_thresh=rules.score_thresh,
        coarsest_score_thresh=rules.coarsest_thresh,
        nms_thresh=rules.nms_thresh,
        max_dets=rules.max_dets,
        nms_inclusive=int(conventions.nms_inclusive),
        size_offset=float(conventions.plus_one),
        ranked=int(conventions.ranked),
    )
    return DetectionTensors(boxes, scores, classes, count)


def write_level(g: GraphWriter, retinanet: RetinaNet, level: int, feature: Feature) -> tuple[str, str]:
    """Writes the head on one level: foreground probabilities (N, A * (K - 1), h, w) and deltas (N, 4A, h, w)."""
    here, shared = f"fpn{level}", f"fpn{retinanet.min_level}"
    anchors = len(retinanet.anchors[0])
    classes = retinanet.num_classes if retinanet.softmax else retinanet.num_classes - retinanet.first_class
    tower = _write_tower(g, retinanet, feature, "cls", here, shared)
    logits = _write_prediction(g, tower, "cls", anchors * classes, here, shared, _CLASS_KEYS)
    if not retinanet.shared_tower:
        tower = _write_tower(g, retinanet, feature, "bbox", here, shared)
    deltas = _write_prediction(g, tower, "bbox", 4 * anchors, here, shared, _ANCHOR_KEYS)
    probabilities = f"retnet_cls_prob_{here}"
    if retinanet.softmax:
        return _write_softmax(g, logits, anchors, classes, probabilities), deltas
    return g.op("Sigmoid", logits, name=probabilities), deltas


def _write_strides(g: GraphWriter, retinanet: RetinaNet, features: dict[int, Feature]) -> tuple[str, ...]:
    """Writes pixels a cell (L, 2) where they are measured."""
    if not retinanet.measured_strides:
        return ()
    strides = (g.unsqueeze(write_strides(g, features[level]), 0) for level in retinanet.levels)
    return (g.concat(*strides, axis=0),)


def _write_tower(g: GraphWriter, retinanet: RetinaNet, x: Feature, kind: str, here: str, shared: str) -> Feature:
    """Writes 3x3 convolutions with ReLU; Caffe2 applies ReLU in place, so the blob is what follows it."""
    owner = here if retinanet.own_towers else shared
    for index in range(retinanet.num_convs):
        blob = f"retnet_{kind}_conv_n{index}"
        x = write_normed_conv(
            g,
            x,
            f"{blob}_{here}",
            _TOWER_KERNEL,
            retinanet.norm,
            purpose=_PURPOSE,
            out=x.channels,
            relu=True,
            biased=retinanet.biased,
            weights_of=f"{blob}_{owner}",
            config_key="FPN.DIM",
        )
    return x


def _write_prediction(g: GraphWriter, x: Feature, kind: str, channels: int, here: str, shared: str, keys: str) -> str:
    """Writes the last 3x3 convolution of a tower."""
    blob = f"retnet_{kind}_pred"
    return write_conv(
        g,
        x,
        f"{blob}_{here}",
        _TOWER_KERNEL,
        purpose=_PURPOSE,
        out=channels,
        name=f"{blob}_{here}",
        weights_of=f"{blob}_{shared}",
        config_key=keys,
    ).name


def _write_softmax(g: GraphWriter, logits: str, anchors: int, classes: int, name: str) -> str:
    """Writes the softmax over each anchor's block of channels, blob `name`; returns it without each block's background channel."""
    images, height, width = g.dims(logits, 0, 2, 3)
    blocks = g.op("Softmax", g.reshape(logits, images, anchors, classes, height, width), axis=2)
    g.op("Reshape", blocks, g.op("Shape", logits), name=name)
    foreground = g.columns(blocks, 1, classes, axis=2)
    return g.reshape(foreground, images, anchors * (classes - 1), height, width)
