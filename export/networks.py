"""A whole network: body, pyramid, proposals, heads, and the seams between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import onnx
from onnx import helper

from roiline.core.spec import Conventions
from roiline.export.architecture import Architecture, BoxHead
from roiline.export.bodies import write_pyramid, write_resnet
from roiline.export.graph import GraphWriter
from roiline.export.heads import write_box_head, write_detections
from roiline.export.layers import Feature
from roiline.export.rpn import ProposalTensors, write_rpn
from roiline.ops.trim import TRIM


@dataclass(frozen=True, slots=True)
class Network:
    """Is a network laid out: its graph so far, its inputs and outputs, and its seams by name."""

    name: str
    conventions: Conventions
    graph: GraphWriter
    inputs: tuple[onnx.ValueInfoProto, ...]
    outputs: tuple[onnx.ValueInfoProto, ...]
    seams: Mapping[str, tuple[str, ...]]


def write_network(architecture: Architecture, shapes: Mapping[str, tuple[int, ...]]) -> Network:
    """Lays a network out over blobs of the given shapes; nothing is computed and no blob is looked at."""
    g = GraphWriter(shapes)
    conventions = architecture.conventions
    stages = write_resnet(g, architecture.body, Feature("data", 3))
    features = write_pyramid(g, architecture.pyramid, architecture.body, stages)
    proposals = write_rpn(g, architecture.rpn, features, "im_info", conventions)
    scale = g.unsqueeze(g.columns("im_info", 2, 3, axis=1), 1)
    original = g.op("Div", proposals.boxes, scale, name="proposal_boxes")
    seams = {
        "images": {name: _IMAGES[name] for name in ("data", "im_info")},
        "features": {
            feature.name: _Type(np.float32, ("N", feature.channels, f"H{level}", f"W{level}"))
            for level, feature in sorted(features.items())
        },
        "proposals": {
            original: _Type(np.float32, ("N", "R", 4)),
            proposals.scores: _Type(np.float32, ("N", "R")),
            proposals.count: _Type(np.int64, ("N",)),
        },
    }
    if architecture.box_head is not None:
        seams["images"] = _IMAGES
        seams |= _write_detector(g, architecture.box_head, features, proposals, conventions)
    answers = seams.get("detections", seams["proposals"])
    g.declare(*(_value(name, type_) for seam in seams.values() for name, type_ in seam.items()))
    return Network(
        name=architecture.name,
        conventions=conventions,
        graph=g,
        inputs=tuple(_value(name, type_) for name, type_ in seams["images"].items()),
        outputs=tuple(_value(name, type_) for name, type_ in answers.items()),
        seams={seam: tuple(tensors) for seam, tensors in seams.items()},
    )


class _Type(NamedTuple):
    dtype: type[np.generic]
    shape: tuple[int | str | None, ...]


_IMAGES = {
    "data": _Type(np.float32, ("N", 3, "H", "W")),
    "im_info": _Type(np.float32, ("N", 3)),
    "im_size": _Type(np.float32, ("N", 2)),
}


def _write_detector(
    g: GraphWriter,
    head: BoxHead,
    features: dict[int, Feature],
    proposals: ProposalTensors,
    conventions: Conventions,
) -> dict[str, dict[str, _Type]]:
    """Writes the box head and the final detections; returns the seams that they add."""
    (rois,) = g.call(TRIM, proposals.boxes, proposals.count, names=("rois",))
    raw = write_box_head(g, head, features, rois, conventions)
    found = write_detections(g, head, rois, raw, proposals.count, conventions)
    boxes = 2 if head.rules.class_agnostic else head.num_classes
    return {
        "raw": {
            rois: _Type(np.float32, ("T", 5)),
            proposals.count: _Type(np.int64, ("N",)),
            raw.cls_prob: _Type(np.float32, ("T", head.num_classes)),
            raw.bbox_pred: _Type(np.float32, ("T", 4 * boxes)),
        },
        "detections": {
            found.boxes: _Type(np.float32, ("N", "D", 4)),
            found.scores: _Type(np.float32, ("N", "D")),
            found.classes: _Type(np.int64, ("N", "D")),
            found.count: _Type(np.int64, ("N",)),
        },
    }


def _value(name: str, type_: _Type) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(type_.dtype)), type_.shape)
