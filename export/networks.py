"""A whole network: body, pyramid, proposals, heads, and the seams between them.

Inputs are `data` (N, 3, H, W), `im_info` (N, 3) and, for detectors, `im_size` (N, 2). A network without an RPN takes its RoIs too:

- `rois` (U, 5) rows (image index, box in network-input pixels), picture by picture, each RoI once;
- `roi_index` (T,) int64: for every proposal, picture by picture, the row of `rois` that stands for it;
- `roi_count` (N,) int64: proposals of each picture, T in all.

Heads run on the U rows. Probabilities, deltas and rows are then repeated by `roi_index`, so that whatever comes after sees T proposals;
proposals that share a row share its box too, as in Detectron.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import onnx
from onnx import helper

from roiline.core.spec import Conventions, DetectionRules
from roiline.export.architecture import (
    Architecture,
    BoxHead,
    CascadeHead,
    ClassificationHead,
    DetectionHead,
    FusedHead,
    outputs_of_head,
)
from roiline.export.bodies import write_body
from roiline.export.cascade import write_cascade_head
from roiline.export.classification import write_classification
from roiline.export.detections import DetectionTensors, write_detected_rois, write_detections
from roiline.export.graph import GraphWriter
from roiline.export.heads import RawTensors, write_box_head
from roiline.export.keypoint_heads import write_keypoint_head
from roiline.export.layers import Feature
from roiline.export.mask_heads import write_mask_head
from roiline.export.one_stage import RetinaNet
from roiline.export.retinanet import write_retinanet
from roiline.export.rfcn import write_fused_head, write_rfcn_head
from roiline.export.rpn import ProposalTensors, write_rpn
from roiline.export.taps import choose_taps
from roiline.export.track_heads import write_track_head
from roiline.ops.trim import TRIM


class TensorType(NamedTuple):
    """Is the element type and the shape of a tensor at a seam; names stand for free dimensions."""

    dtype: type[np.generic]
    shape: tuple[int | str | None, ...]


Seam: TypeAlias = dict[str, TensorType]

_PICTURES: Seam = {
    "data": TensorType(np.float32, ("N", 3, "H", "W")),
    "im_info": TensorType(np.float32, ("N", 3)),
}
_SIZES: Seam = {"im_size": TensorType(np.float32, ("N", 2))}
_GIVEN_ROIS: Seam = {
    "rois": TensorType(np.float32, ("U", 5)),
    "roi_index": TensorType(np.int64, ("T",)),
    "roi_count": TensorType(np.int64, ("N",)),
}


@dataclass(frozen=True, slots=True)
class Network:
    """Is a network laid out: its graph so far, its inputs and outputs, its seams by name, and its taps."""

    name: str
    conventions: Conventions
    graph: GraphWriter
    inputs: tuple[onnx.ValueInfoProto, ...]
    outputs: tuple[onnx.ValueInfoProto, ...]
    seams: Mapping[str, tuple[str, ...]]
    taps: tuple[str, ...]


def write_network(
    architecture: Architecture,
    shapes: Mapping[str, tuple[int, ...]],
    *,
    resolve: Callable[[str], str] = str,
    taps: Sequence[str] = (),
) -> Network:
    """Lays a network out over blobs of the given shapes; nothing is computed and no blob is looked at.

    `resolve` maps the name of a parameter to that in the weights file; `taps` name blobs that become outputs too.

    Raises:
        UsageError: a tap names no blob of this network.
    """
    g = GraphWriter(shapes, resolve)
    features = write_body(g, architecture.body, architecture.pyramid, Feature("data", 3))
    seams: dict[str, Seam] = {"images": _PICTURES, "features": _describe_features(features)}
    if architecture.classification is not None:
        (feature,) = features.values()
        return _finish(g, architecture, seams | _write_classification(g, architecture.classification, feature), taps)
    if architecture.detection is not None or architecture.conventions.network_frame:
        seams["images"] = _PICTURES | _SIZES
    if architecture.retinanet is not None and architecture.detection is not None:
        added = _write_one_stage(g, architecture.retinanet, architecture.detection, features, architecture.conventions)
        return _finish(g, architecture, seams | added, taps)
    proposals, added = _write_proposals(g, architecture, features)
    seams |= added
    if architecture.head is not None and architecture.detection is not None:
        found, added = _write_detector(
            g, architecture.head, architecture.detection, features, proposals, architecture.conventions
        )
        seams |= added | _write_map_heads(g, architecture, features, found)
    return _finish(g, architecture, seams, taps)


def _finish(g: GraphWriter, architecture: Architecture, seams: dict[str, Seam], taps: Sequence[str]) -> Network:
    answers = [seams[name] for name in ("classification", "detections", "masks", "keypoints") if name in seams]
    outputs = {name: type_ for seam in answers or [seams["proposals"]] for name, type_ in seam.items()}
    inputs = seams["images"] | seams.get("given_rois", {})
    g.declare(*(_value(name, type_) for seam in seams.values() for name, type_ in seam.items()))
    return Network(
        name=architecture.name,
        conventions=architecture.conventions,
        graph=g,
        inputs=tuple(_value(name, type_) for name, type_ in inputs.items()),
        outputs=tuple(_value(name, type_) for name, type_ in outputs.items()),
        seams={seam: tuple(tensors) for seam, tensors in seams.items()},
        taps=choose_taps(taps, g.blobs, inputs=tuple(inputs)),
    )


def _write_classification(g: GraphWriter, head: ClassificationHead, feature: Feature) -> dict[str, Seam]:
    probabilities = write_classification(g, head, feature)
    return {
        "images": {"data": _PICTURES["data"]},
        "classification": {probabilities: TensorType(np.float32, ("N", head.num_classes))},
    }


def _write_proposals(
    g: GraphWriter, architecture: Architecture, features: dict[int, Feature]
) -> tuple[ProposalTensors | None, dict[str, Seam]]:
    """Writes the RPN where there is one; returns the seams that it, or its absence, adds."""
    if architecture.rpn is None:
        return None, {"given_rois": _GIVEN_ROIS}
    proposals = write_rpn(g, architecture.rpn, features, "im_info", architecture.conventions)
    original = g.op("Div", proposals.boxes, _write_scale(g, architecture.conventions), name="proposal_boxes")
    seam = {
        original: TensorType(np.float32, ("N", "R", 4)),
        proposals.scores: TensorType(np.float32, ("N", "R")),
        proposals.count: TensorType(np.int64, ("N",)),
    }
    return proposals, {"proposals": seam}


def _write_scale(g: GraphWriter, conventions: Conventions) -> str:
    """Writes network-input pixels per original pixel, (N, 1, 1), or (N, 1, 4) for boxes where they differ across and down."""
    if not conventions.network_frame:
        return g.unsqueeze(g.columns("im_info", 2, 3, axis=1), 1)
    ratios = g.op("Div", g.columns("im_info", 0, 2, axis=1), "im_size")
    down, across = g.columns(ratios, 0, 1), g.columns(ratios, 1, 2)
    return g.unsqueeze(g.concat(across, down, across, down, axis=1), 1)


def _write_detector(
    g: GraphWriter,
    head: DetectionHead,
    rules: DetectionRules,
    features: dict[int, Feature],
    proposals: ProposalTensors | None,
    conventions: Conventions,
) -> tuple[DetectionTensors, dict[str, Seam]]:
    """Writes a head on RoI rows and the final detections; returns the seams that they add."""
    if proposals is None:
        raw, count = _write_head(g, head, features, "rois", conventions), "roi_count"
        raw = _repeat_rows(g, raw, "roi_index")
    else:
        (rois,) = g.call(TRIM, proposals.boxes, proposals.count, names=("rois",))
        raw, count = _write_head(g, head, features, rois, conventions), proposals.count
    outputs = outputs_of_head(head)
    seam = {
        raw.rois: TensorType(np.float32, ("T", 5)),
        count: TensorType(np.int64, ("N",)),
        raw.cls_prob: TensorType(np.float32, ("T", outputs.num_classes)),
        raw.bbox_pred: TensorType(np.float32, ("T", 4 * outputs.boxes)),
    }
    found = write_detections(g, rules, raw, count, conventions)
    return found, {"raw": seam, "detections": _describe_detections(found)}


def _write_map_heads(
    g: GraphWriter, architecture: Architecture, features: dict[int, Feature], found: DetectionTensors
) -> dict[str, Seam]:
    """Writes the heads that run on the detections; returns the seams that they add."""
    seams: dict[str, Seam] = {}
    mask, keypoint, conventions = architecture.mask_head, architecture.keypoint_head, architecture.conventions
    if mask is not None:
        rows = write_detected_rois(g, found, _write_scale(g, conventions), "mask")
        masks = write_mask_head(g, mask, features, rows.rois, rows.classes, conventions)
        seams["mask_rois"] = {
            rows.rois: TensorType(np.float32, ("M", 5)),
            rows.classes: TensorType(np.int64, ("M",)),
        }
        seams["masks"] = {masks: TensorType(np.float32, ("M", mask.size, mask.size))}
    if keypoint is not None:
        rows = write_detected_rois(g, found, _write_scale(g, conventions), "keypoint")
        maps = write_keypoint_head(g, keypoint, features, rows.rois, conventions)
        seams["keypoint_rois"] = {rows.rois: TensorType(np.float32, ("M", 5))}
        seams["keypoints"] = {maps: TensorType(np.float32, ("M", keypoint.count, keypoint.size, keypoint.size))}
    if architecture.track_head is not None:
        rows = write_detected_rois(g, found, _write_scale(g, conventions), "track")
        similarity = write_track_head(g, architecture.track_head, features, rows.rois, conventions)
        seams["track_rois"] = {rows.rois: TensorType(np.float32, ("M", 5))}
        seams["tracks"] = {similarity: TensorType(np.float32, ("P",))}
    return seams


def _write_one_stage(
    g: GraphWriter,
    retinanet: RetinaNet,
    rules: DetectionRules,
    features: dict[int, Feature],
    conventions: Conventions,
) -> dict[str, Seam]:
    said = write_retinanet(g, retinanet, features, rules, conventions)
    candidates = {
        said.candidates.boxes: TensorType(np.float32, ("N", "M", 4)),
        said.candidates.scores: TensorType(np.float32, ("N", "M")),
        said.candidates.classes: TensorType(np.int64, ("N", "M")),
        said.candidates.levels: TensorType(np.int64, ("N", "M")),
    }
    return {"candidates": candidates, "detections": _describe_detections(said.detections)}


def _write_head(
    g: GraphWriter, head: DetectionHead, features: dict[int, Feature], rois: str, conventions: Conventions
) -> RawTensors:
    if isinstance(head, BoxHead):
        return write_box_head(g, head, features, rois, conventions)
    if isinstance(head, CascadeHead):
        return write_cascade_head(g, head, features, rois, conventions)
    if isinstance(head, FusedHead):
        return write_fused_head(g, head, features, rois, conventions)
    return write_rfcn_head(g, head, features, rois, conventions)


def _repeat_rows(g: GraphWriter, raw: RawTensors, index: str) -> RawTensors:
    return RawTensors(
        *(
            g.op("Gather", tensor, index, name=f"proposal_{part}", axis=0)
            for part, tensor in zip(RawTensors._fields, raw, strict=True)
        )
    )


def _describe_features(features: dict[int, Feature]) -> Seam:
    return {
        feature.name: TensorType(np.float32, ("N", feature.channels, f"H{level}", f"W{level}"))
        for level, feature in sorted(features.items())
    }


def _describe_detections(found: DetectionTensors) -> Seam:
    return {
        found.boxes: TensorType(np.float32, ("N", "D", 4)),
        found.scores: TensorType(np.float32, ("N", "D")),
        found.classes: TensorType(np.int64, ("N", "D")),
        found.count: TensorType(np.int64, ("N",)),
    }


def _value(name: str, type_: TensorType) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(type_.dtype)), type_.shape)
