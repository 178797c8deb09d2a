"""Which operators of a NetDef are known, and the walk that translates a net with them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from roiline.core.errors import ExportError, WeightError
from roiline.export.caffe2 import arrangement, layers, regions
from roiline.export.caffe2.fillers import FILLERS
from roiline.export.caffe2.keypoints import translate_heatmap_max_keypoint
from roiline.export.caffe2.netdef import OperatorDef
from roiline.export.caffe2.translation import Call, Translation

Translator: TypeAlias = Callable[[Call], None]

TRANSLATORS: Mapping[str, Translator] = {
    "Add": arrangement.arithmetic("Add"),
    "AffineChannel": layers.translate_affine_channel,
    "Alias": arrangement.translate_copy,
    "AveragePool": layers.translate_average_pool,
    "BBoxTransform": regions.translate_bbox_transform,
    "BatchPermutation": arrangement.translate_batch_permutation,
    "BoxWithNMSLimit": regions.translate_box_with_nms_limit,
    "CollectAndDistributeFpnRpnProposals": regions.translate_collect_and_distribute,
    "CollectRpnProposals": regions.translate_collect,
    "Concat": arrangement.translate_concat,
    "Conv": layers.translate_conv,
    "ConvTranspose": layers.translate_conv_transpose,
    "Copy": arrangement.translate_copy,
    "DistributeFpnProposals": regions.translate_distribute,
    "Div": arrangement.arithmetic("Div"),
    "Dropout": arrangement.translate_dropout,
    "FC": layers.translate_fc,
    "Flatten": arrangement.translate_flatten,
    "GenerateProposals": regions.translate_generate_proposals,
    "GenerateProposalsCPP": regions.translate_generate_proposals,
    "GroupNorm": layers.translate_group_norm,
    "GroupSpatialSoftmax": layers.translate_group_spatial_softmax,
    "HeatmapMaxKeypoint": translate_heatmap_max_keypoint,
    "LRN": layers.translate_lrn,
    "LeakyRelu": arrangement.translate_leaky_relu,
    "MaxPool": layers.translate_max_pool,
    "Mul": arrangement.arithmetic("Mul"),
    "Relu": arrangement.elementwise("Relu"),
    "Reshape": arrangement.translate_reshape,
    "ResizeNearest": layers.translate_resize_nearest,
    "RoIAlign": regions.translate_roi_align,
    "RoIPool": regions.translate_roi_pool,
    "RoIPoolF": regions.translate_roi_pool,
    "Sigmoid": arrangement.elementwise("Sigmoid"),
    "Softmax": layers.translate_softmax,
    "SpatialBN": layers.translate_spatial_bn,
    "SpatialNarrowAs": arrangement.translate_narrow_as,
    "StopGradient": arrangement.translate_copy,
    "Sub": arrangement.arithmetic("Sub"),
    "Sum": arrangement.translate_sum,
    "Tanh": arrangement.elementwise("Tanh"),
    "Transpose": arrangement.translate_transpose,
    "UpsampleBilinear": layers.translate_upsample_bilinear,
    "UpsampleNearest": layers.translate_upsample_nearest,
}


def refuse_unknown(operators: Iterable[OperatorDef], where: str) -> None:
    """Checks that every operator is known.

    Raises:
        ExportError: some are not; all of them are named, each with how often it occurs and what the first one makes.
    """
    unknown: dict[str, list[OperatorDef]] = {}
    for operator in operators:
        if operator.type not in TRANSLATORS and operator.type not in FILLERS:
            unknown.setdefault(operator.type, []).append(operator)
    if not unknown:
        return
    lines = [
        f"{kind} (x {len(found)}, the first makes {', '.join(found[0].outputs) or 'nothing'})"
        for kind, found in sorted(unknown.items())
    ]
    if "Python" in unknown:
        lines.append(
            "Python operators are code of the program that wrote the net and not part of the file: export its "
            "configuration and weights with `roiline export detectron`, or convert the net with its own convert_pkl_to_pb"
        )
    listing = "\n  ".join(lines)
    raise ExportError(f"{where}: operators without a translation:\n  {listing}")


def translate_operators(translation: Translation, where: str) -> None:
    """Translates all operators of a net, in order.

    Raises:
        ExportError: one cannot be translated.
        WeightError: weights are missing; all of them are listed.
    """
    for operator in translation.net.operators:
        try:
            TRANSLATORS[operator.type](Call(translation, operator))
        except ExportError as error:
            raise ExportError(f"{where}: {error}") from error
    if translation.missing:
        listing = "\n  ".join(f"{name}: {purpose}" for name, purpose in sorted(translation.missing.items()))
        raise WeightError(
            f"{where}: {len(translation.missing)} weights are not filled by the init net; is it of another model?\n  {listing}"
        )
