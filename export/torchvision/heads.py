"""torchvision's RPN and heads: their structure from the shapes of a state dict, their blobs by our names, their rules from options."""

from __future__ import annotations

from roiline.core.errors import ConfigError, ExportError, WeightError
from roiline.core.structures import Float64
from roiline.export.architecture import (
    BoxHead,
    BoxOutputs,
    ConvFeatures,
    HeadFeatures,
    MlpFeatures,
    Pyramid,
    RoiTransform,
    RpnLevel,
    RpnRules,
)
from roiline.export.layers import Kernel
from roiline.export.map_heads import ConvChain, KeypointHead, MaskHead
from roiline.export.one_stage import RetinaNet
from roiline.export.torchvision.bodies import TOP, group_norm
from roiline.export.torchvision.options import Options
from roiline.export.torchvision.state import StateReader
from roiline.ops.anchors.centred import generate_centred_anchors

_RPN = "rpn.head"
_BOX = "roi_heads.box_head"
_MASK = "roi_heads.mask_head"
_KEYPOINT = "roi_heads.keypoint_head"
_TOWERS = {"cls": ("head.classification_head", "cls_logits"), "bbox": ("head.regression_head", "bbox_reg")}
_SAME = Kernel(3, pad=1)
_RPN_MIN_SIDE = 1e-3  # fixed in torchvision's RegionProposalNetwork


def read_anchors(options: Options, name: str, pyramid: Pyramid) -> tuple[Float64, ...]:
    """Returns the anchors (A, 4) of every level's first cell.

    Raises:
        ConfigError: they are given for another number of levels, or levels have different numbers of them.
    """
    given = options[name]
    anchors = tuple(
        generate_centred_anchors(sizes, ratios)
        for sizes, ratios in zip(given["sizes"], given["aspect_ratios"], strict=True)
    )
    levels = pyramid.max_level - pyramid.min_level + 1
    if len(anchors) != levels:
        raise ConfigError(
            f"{options.source}: {name}: sizes for {len(anchors)} levels, the weights' pyramid has {levels} (the coarser ones that are "
            "made of its last one included)"
        )
    if len({len(one) for one in anchors}) != 1:
        counts = [len(one) for one in anchors]
        raise ConfigError(f"{options.source}: {name}: every level needs as many anchors as the others, got {counts}")
    return anchors


def read_rpn(state: StateReader, options: Options, pyramid: Pyramid) -> RpnRules:
    """Reads the region proposal network."""
    anchors = read_anchors(options, "rpn_anchor_generator", pyramid)
    level = f"_fpn{pyramid.min_level}"
    depth = max(state.count(f"{_RPN}.conv.", "."), 1)
    for index in range(depth):
        state.add_layer(f"conv_rpn{index + 1 if index else ''}{level}", f"{_RPN}.conv.{index}.0")
    state.add_layer(f"rpn_cls_logits{level}", f"{_RPN}.cls_logits")
    state.add_layer(f"rpn_bbox_pred{level}", f"{_RPN}.bbox_pred")
    _check_anchors(state, options, "rpn_anchor_generator", f"{_RPN}.cls_logits", len(anchors[0]), 1)
    return RpnRules(
        levels=tuple(RpnLevel(level, None, one) for level, one in enumerate(anchors, pyramid.min_level)),
        pre_nms_top_n=options["rpn_pre_nms_top_n_test"],
        post_nms_top_n=options["rpn_post_nms_top_n_test"],
        nms_thresh=options["rpn_nms_thresh"],
        min_size=0.0,
        native=True,
        depth=depth,
        ranked_by_logit=True,
        score_thresh=options["rpn_score_thresh"],
        min_side=_RPN_MIN_SIDE,
    )


def _check_anchors(state: StateReader, options: Options, name: str, key: str, anchors: int, classes: int) -> None:
    rows = state.shape(f"{key}.weight")[:1]
    if rows and rows != (anchors * classes,):
        raise ConfigError(
            f"{options.source}: {name}: {anchors} anchors a cell, {key} of the weights is for {rows[0] / classes:g}"
        )


def read_transform(options: Options, name: str, pyramid: Pyramid) -> RoiTransform:
    """Returns how RoIs take their features.

    Raises:
        ConfigError: the feature maps that it names are not there, or not next to each other.
    """
    given = options[name]
    here = range(TOP - pyramid.min_level + 1)
    chosen = [index for index in here if str(index) in given["featmap_names"]]
    if not chosen or chosen != list(range(chosen[0], chosen[-1] + 1)):
        raise ConfigError(
            f"{options.source}: {name}: featmap_names {list(given['featmap_names'])} must name neighbours among "
            f"{[str(index) for index in here]}"
        )
    if not pyramid.upsampled:
        chosen = chosen[:1]  # all maps are of one scale: torchvision takes every RoI from the first
    first, last = pyramid.min_level + chosen[0], pyramid.min_level + chosen[-1]
    return RoiTransform(
        resolution=given["output_size"],
        sampling_ratio=max(given["sampling_ratio"], 0),
        min_level=first,
        max_level=last,
        canonical_level=given["canonical_level"],
        canonical_scale=given["canonical_scale"],
        finest_scale=2.0 ** -(first if pyramid.upsampled else TOP),
    )


def read_box_head(state: StateReader, options: Options, pyramid: Pyramid) -> BoxHead:
    """Reads a box head: two layers, or convolutions and a layer.

    Raises:
        WeightError: the weights are for another number of classes than the options say.
    """
    features = _read_mlp(state) if state.has(f"{_BOX}.fc6.") else _read_convs(state, options)
    state.add_layer("cls_score", "roi_heads.box_predictor.cls_score")
    state.add_layer("bbox_pred", "roi_heads.box_predictor.bbox_pred")
    classes = check_classes(state, options, "roi_heads.box_predictor.cls_score", 1)
    transform = read_transform(options, "box_roi_pool", pyramid)
    return BoxHead(transform, features, BoxOutputs(classes, class_agnostic=False))


def check_classes(state: StateReader, options: Options, key: str, anchors: int) -> int:
    """Returns K, background included, as the weights have it.

    Raises:
        WeightError: the options say another number.
    """
    rows = state.shape(f"{key}.weight")[:1]
    classes = rows[0] // anchors if rows else options["num_classes"] or 2
    wanted = options["num_classes"]
    if wanted is not None and classes != wanted:
        raise WeightError(
            f"{state.source}: {key} is for {classes} classes, background included; num_classes is {wanted}"
        )
    return int(classes)


def _read_mlp(state: StateReader) -> MlpFeatures:
    state.add_layer("fc6", f"{_BOX}.fc6")
    state.add_layer("fc7", f"{_BOX}.fc7")
    return MlpFeatures(width=None)


def _read_convs(state: StateReader, options: Options) -> HeadFeatures:
    """Reads FastRCNNConvFCHead: convolutions, a flattening that takes a number of its own, one layer."""
    count = state.count(f"{_BOX}.", ".0.weight")
    norms = {
        state.add_unit(f"head_conv{index + 1}", f"{_BOX}.{index}.0", f"{_BOX}.{index}.1") for index in range(count)
    }
    state.add_layer("fc6", f"{_BOX}.{count + 1}")
    if state.has(f"{_BOX}.{count + 3}."):
        raise ExportError(f"{state.source}: {_BOX} has several fully connected layers; one can be exported")
    first, last = state.shape(f"{_BOX}.0.0.weight"), state.shape(f"{_BOX}.{count + 1}.weight")
    return ConvFeatures(
        count=count,
        channels=(*first, 0)[0],
        width=(*last, 0)[0],
        norm=group_norm("group" if "group" in norms else None, options),
    )


def read_mask_head(state: StateReader, options: Options, pyramid: Pyramid, classes: int) -> MaskHead:
    """Reads a mask head: convolutions, a doubling, and a mask for each class."""
    transform = read_transform(options, "mask_roi_pool", pyramid)
    count = state.count(f"{_MASK}.", ".0.weight")
    norms = {
        state.add_unit(f"_mask_fcn{index + 1}", f"{_MASK}.{index}.0", f"{_MASK}.{index}.1") for index in range(count)
    }
    state.add_layer("conv5_mask", "roi_heads.mask_predictor.conv5_mask")
    state.add_layer("mask_fcn_logits", "roi_heads.mask_predictor.mask_fcn_logits")
    norm = group_norm("group" if "group" in norms else None, options)
    return MaskHead(
        transform=transform,
        pooled="mask_roi_feat",
        trunk=ConvChain("_mask_fcn", count, _SAME, None, norm),
        channels=None,
        num_masks=classes,
        size=2 * transform.resolution,
    )


def read_keypoint_head(state: StateReader, options: Options, pyramid: Pyramid) -> KeypointHead:
    """Reads a keypoint head: convolutions, a doubling to heatmaps, and bilinear enlargement.

    Raises:
        WeightError: the weights are for another number of keypoints than the options say.
    """
    count = 0
    while state.has(f"{_KEYPOINT}.{2 * count}."):
        state.add_layer(f"conv_fcn{count + 1}", f"{_KEYPOINT}.{2 * count}")
        count += 1
    key = "roi_heads.keypoint_predictor.kps_score_lowres"
    state.add_layer("kps_score_lowres", key)
    keypoints = (*state.shape(f"{key}.weight"), 0, 0)[1]
    wanted = options["num_keypoints"]
    if wanted is not None and keypoints and wanted != keypoints:
        raise WeightError(f"{state.source}: {key} is for {keypoints} keypoints; num_keypoints is {wanted}")
    return KeypointHead(
        transform=read_transform(options, "keypoint_roi_pool", pyramid),
        pooled="keypoint_roi_feat",
        trunk=ConvChain("conv_fcn", count, _SAME, None),
        count=keypoints,
        deconv_channels=None,
        deconv_output=True,
        deconv_size=4,
        upsample=2,
        resized=True,
    )


def read_retinanet(state: StateReader, options: Options, pyramid: Pyramid) -> RetinaNet:
    """Reads a RetinaNet head; torchvision scores the background, class 0, like any other class."""
    anchors = read_anchors(options, "anchor_generator", pyramid)
    level, norms, depths = f"fpn{pyramid.min_level}", set(), set()
    for kind, (key, last) in _TOWERS.items():
        count = state.count(f"{key}.conv.", ".")
        for index in range(count):
            blob, conv = f"retnet_{kind}_conv_n{index}_{level}", f"{key}.conv.{index}"
            norms.add(state.add_unit(blob, f"{conv}.0", f"{conv}.1"))
        state.add_layer(f"retnet_{kind}_pred_{level}", f"{key}.{last}")
        depths.add(count)
    if len(depths) > 1:
        raise ExportError(
            f"{state.source}: the towers of head have {sorted(depths)} convolutions; equal ones can be exported"
        )
    _check_anchors(state, options, "anchor_generator", "head.regression_head.bbox_reg", len(anchors[0]), 4)
    return RetinaNet(
        min_level=pyramid.min_level,
        anchors=anchors,
        num_classes=check_classes(state, options, "head.classification_head.cls_logits", len(anchors[0])),
        num_convs=max(depths),
        shared_tower=False,
        softmax=False,
        pre_nms_top_n=options["topk_candidates"],
        norm=group_norm("group" if "group" in norms else None, options),
        first_class=0,
        measured_strides=True,
    )
