"""Mask heads: features of detections into the foreground probabilities of their class (He et al., Mask R-CNN, 2017)."""

from __future__ import annotations

from roiline.core.spec import Conventions
from roiline.export.graph import GraphWriter
from roiline.export.heads import write_roi_features
from roiline.export.layers import Feature, Kernel, write_conv, write_fc, write_flatten, write_relu
from roiline.export.map_heads import MASK_DOUBLING, MaskHead
from roiline.export.roi_trunks import write_trunk
from roiline.export.upsampling import write_bilinear, write_conv_transpose

_PURPOSE = "mask head"


def write_mask_head(
    g: GraphWriter, head: MaskHead, features: dict[int, Feature], rois: str, classes: str, conventions: Conventions
) -> str:
    """Writes the head on RoI rows (M, 5) with their classes (M,) int64; returns `masks` (M, size, size), probabilities. M may be 0."""
    x = write_roi_features(g, head.transform, features, rois, conventions, head.pooled)
    x = write_trunk(g, head.trunk, x, purpose=_PURPOSE, config_key="MRCNN.DIM_REDUCED")
    x = write_conv_transpose(
        g, x, "conv5_mask", MASK_DOUBLING, purpose=_PURPOSE, out=head.channels, config_key="MRCNN.DIM_REDUCED"
    )
    x = write_relu(g, x, "conv5_mask")
    logits = _write_logits(g, head, x)
    probabilities = g.op("Sigmoid", logits.name, name="mask_fcn_probs")
    return _select_masks(g, head, probabilities, classes)


def _write_logits(g: GraphWriter, head: MaskHead, x: Feature) -> Feature:
    """Writes the outputs: maps (M, masks, size, size), or rows (M, masks * size * size) of a dense one."""
    blob = "mask_fcn_logits"
    key = "MODEL.NUM_CLASSES and MRCNN.CLS_SPECIFIC_MASK"
    if head.dense:
        flat = write_flatten(g, x, head.doubled**2)
        return write_fc(
            g, flat, blob, purpose=_PURPOSE, out=head.num_masks * head.size**2, name=blob, config_key="MRCNN.RESOLUTION"
        )
    logits = write_conv(g, x, blob, Kernel(1), purpose=_PURPOSE, out=head.num_masks, name=blob, config_key=key)
    if head.upsample == 1:
        return logits
    up_key = "MRCNN.UPSAMPLE_RATIO"
    return write_bilinear(g, logits, f"{blob}_up", head.upsample, purpose=_PURPOSE, config_key=up_key)


def _select_masks(g: GraphWriter, head: MaskHead, probabilities: str, classes: str) -> str:
    """Writes the choice of each row's mask: its class's one, among all masks of all rows."""
    rows = g.op("Shape", classes)
    every = g.reshape(probabilities, g.op("Mul", rows, g.ints(head.num_masks)), head.size, head.size)
    if head.num_masks == 1:
        return g.op("Identity", every, name="masks")
    first = g.op("Mul", g.range(rows), g.ints(head.num_masks))
    return g.op("Gather", every, g.op("Add", first, classes), name="masks", axis=0)
