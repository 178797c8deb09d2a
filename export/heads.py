"""Box heads: features of RoIs into class probabilities and box deltas (Fast R-CNN, Girshick 2015, and what others put in its place)."""

from __future__ import annotations

from typing import NamedTuple

from roiline.core.spec import Conventions
from roiline.export.architecture import (
    BoxHead,
    BoxOutputs,
    ConvFeatures,
    HeadFeatures,
    MlpFeatures,
    Res5Features,
    RoiTransform,
)
from roiline.export.graph import GraphWriter
from roiline.export.layers import (
    Feature,
    Kernel,
    write_fc,
    write_flatten,
    write_mean,
    write_normed_conv,
    write_relu,
)
from roiline.export.resnet import StageShape, write_res_stage
from roiline.ops.multilevel_roi_align import MULTILEVEL_ROI_ALIGN
from roiline.ops.nodes import Attribute
from roiline.ops.roi_pool import MULTILEVEL_ROI_POOL


class RawTensors(NamedTuple):
    """Names what a head says of RoI rows (T, 5): the rows, class probabilities (T, K), and deltas (T, 4K) or (T, 8)."""

    rois: str
    cls_prob: str
    bbox_pred: str


class LayerNames(NamedTuple):
    """Is what is appended to the names of a head's blobs, and of its weights: heads of a cascade share names and weights."""

    blobs: str = ""
    weights: str = ""


PLAIN_NAMES = LayerNames()
"""Is a head with names of its own."""


def write_roi_features(
    g: GraphWriter,
    transform: RoiTransform,
    features: dict[int, Feature],
    rois: str,
    conventions: Conventions,
    name: str,
) -> Feature:
    """Writes RoIAlign or max pooling over the transform's levels: (T, channels, resolution, resolution)."""
    maps = [features[level] for level in range(transform.min_level, transform.max_level + 1)]
    inputs = (rois, *(feature.name for feature in maps))
    levels: dict[str, Attribute] = {
        "spatial_scales": transform.scales,
        "min_level": transform.min_level,
        "canonical_level": transform.canonical_level,
        "canonical_scale": transform.canonical_scale,
        "size_offset": float(conventions.plus_one),
        "level_epsilon": conventions.epsilon,
        "resolution": transform.resolution,
    }
    if transform.method == "max":
        (pooled,) = g.call(MULTILEVEL_ROI_POOL, *inputs, names=(name,), **levels)
    else:
        half_pixel = conventions.roi_half_pixel if transform.half_pixel is None else transform.half_pixel
        (pooled,) = g.call(
            MULTILEVEL_ROI_ALIGN,
            *inputs,
            names=(name,),
            sampling_ratio=transform.sampling_ratio,
            half_pixel=int(half_pixel),
            epsilon_on_level=int(conventions.level_epsilon == "level"),
            **levels,
        )
    return Feature(pooled, maps[0].channels)


def write_box_head(
    g: GraphWriter, head: BoxHead, features: dict[int, Feature], rois: str, conventions: Conventions
) -> RawTensors:
    """Writes a Fast R-CNN head on RoI rows (T, 5)."""
    pooled = write_roi_features(g, head.transform, features, rois, conventions, head.pooled)
    x = write_head_features(g, head.features, pooled, head.transform.resolution)
    scores, deltas = write_scores(g, head.outputs, x), write_deltas(g, head.outputs, x)
    return RawTensors(rois, write_probabilities(g, scores, head.outputs), deltas.name)


def write_head_features(
    g: GraphWriter, kind: HeadFeatures, pooled: Feature, resolution: int, names: LayerNames = PLAIN_NAMES
) -> Feature:
    """Writes what stands between RoI features (T, channels, resolution, resolution) and the output layers: rows (T, width)."""
    if isinstance(kind, Res5Features):
        return _write_res5(g, kind, pooled)
    if isinstance(kind, ConvFeatures):
        return _write_convs(g, kind, pooled, resolution, names)
    return _write_mlp(g, kind, pooled, resolution, names)


def _write_mlp(g: GraphWriter, kind: MlpFeatures, pooled: Feature, resolution: int, names: LayerNames) -> Feature:
    x = write_flatten(g, pooled, resolution**2)
    for layer in ("fc6", "fc7"):
        x = _write_hidden(g, x, layer, kind.width, names)
    return x


def _write_convs(g: GraphWriter, kind: ConvFeatures, pooled: Feature, resolution: int, names: LayerNames) -> Feature:
    x = pooled
    for index in range(1, kind.count + 1):
        x = write_normed_conv(
            g,
            x,
            f"head_conv{index}{names.blobs}",
            Kernel(3, pad=1),
            kind.norm,
            purpose="box head",
            out=kind.channels,
            relu=True,
            weights_of=f"head_conv{index}{names.weights}",
            config_key="FAST_RCNN.CONV_HEAD_DIM",
        )
    x = write_flatten(g, x, resolution**2)
    for index in range(kind.hidden):
        x = _write_hidden(g, x, f"fc{6 + index}", kind.width, names)
    return x


def _write_hidden(g: GraphWriter, x: Feature, layer: str, width: int | None, names: LayerNames) -> Feature:
    key = "FAST_RCNN.ROI_XFORM_RESOLUTION or MLP_HEAD_DIM" if layer == "fc6" else "FAST_RCNN.MLP_HEAD_DIM"
    blob = f"{layer}{names.blobs}"
    y = write_fc(g, x, blob, purpose="box head", out=width, weights_of=f"{layer}{names.weights}", config_key=key)
    return write_relu(g, y, blob)


def _write_res5(g: GraphWriter, kind: Res5Features, pooled: Feature) -> Feature:
    stage = StageShape(kind.body.blocks[3], stride=kind.stride)
    return write_mean(g, write_res_stage(g, kind.body, pooled, "res5", stage), "res5_pool")


def write_scores(g: GraphWriter, outputs: BoxOutputs, x: Feature, names: LayerNames = PLAIN_NAMES) -> Feature:
    """Writes the class scores (T, K) of head features (T, width)."""
    return _write_output(g, x, "cls_score", outputs.num_classes, names, "MODEL.NUM_CLASSES")


def write_deltas(g: GraphWriter, outputs: BoxOutputs, x: Feature, names: LayerNames = PLAIN_NAMES) -> Feature:
    """Writes the box deltas (T, 4K) or (T, 8) of head features (T, width)."""
    key = "MODEL.CLS_AGNOSTIC_BBOX_REG" if outputs.class_agnostic else "MODEL.NUM_CLASSES"
    return _write_output(g, x, "bbox_pred", 4 * outputs.boxes, names, key)


def _write_output(g: GraphWriter, x: Feature, layer: str, out: int, names: LayerNames, key: str) -> Feature:
    blob, source = f"{layer}{names.blobs}", f"{layer}{names.weights}"
    return write_fc(g, x, blob, purpose="box head outputs", out=out, name=blob, weights_of=source, config_key=key)


def write_probabilities(g: GraphWriter, scores: Feature, outputs: BoxOutputs, name: str = "cls_prob") -> str:
    """Writes softmax over the classes of (T, K), the sigmoid, or their mean."""
    if outputs.independent:
        return g.op("Sigmoid", scores.name, name=name)
    if not outputs.mixed:
        return g.op("Softmax", scores.name, name=name, axis=1)
    both = g.op("Add", g.op("Softmax", scores.name, axis=1), g.op("Sigmoid", scores.name))
    return g.op("Mul", both, g.scalar(0.5), name=name)
