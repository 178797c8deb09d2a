"""Keypoint heads: features of detections into a heatmap of logits for each keypoint (He et al., Mask R-CNN, 2017)."""

from __future__ import annotations

from roiline.core.spec import Conventions
from roiline.export.graph import GraphWriter
from roiline.export.heads import write_roi_features
from roiline.export.layers import Feature, Kernel, write_conv, write_relu
from roiline.export.map_heads import KeypointHead
from roiline.export.roi_trunks import write_trunk
from roiline.export.upsampling import doubling_kernel, write_bilinear, write_conv_transpose, write_resize

_PURPOSE = "keypoint head"
_COUNT_KEY = "KRCNN.NUM_KEYPOINTS"


def write_keypoint_head(
    g: GraphWriter, head: KeypointHead, features: dict[int, Feature], rois: str, conventions: Conventions
) -> str:
    """Writes the head on RoI rows (M, 5); returns `kps_score` (M, J, size, size), logits. M may be 0."""
    x = write_roi_features(g, head.transform, features, rois, conventions, head.pooled)
    x = write_trunk(g, head.trunk, x, purpose=_PURPOSE, config_key="KRCNN.CONV_HEAD_DIM")
    if head.deconv_channels is not None:
        x = write_conv_transpose(
            g,
            x,
            "kps_deconv",
            doubling_kernel(head.deconv_size),
            purpose=_PURPOSE,
            out=head.deconv_channels,
            config_key="KRCNN.DECONV_DIM",
        )
        x = write_relu(g, x, "kps_deconv")
    return _write_heatmaps(g, head, x).name


def _write_heatmaps(g: GraphWriter, head: KeypointHead, x: Feature) -> Feature:
    blob = "kps_score_lowres" if head.upsample > 1 else "kps_score"
    if head.deconv_output:
        kernel = doubling_kernel(head.deconv_size)
        x = write_conv_transpose(g, x, blob, kernel, purpose=_PURPOSE, out=head.count, name=blob, config_key=_COUNT_KEY)
    else:
        x = write_conv(g, x, blob, Kernel(1), purpose=_PURPOSE, out=head.count, name=blob, config_key=_COUNT_KEY)
    if head.upsample > 1 and head.resized:
        return write_resize(g, x, head.upsample, "kps_score")
    if head.upsample > 1:
        x = write_bilinear(g, x, "kps_score", head.upsample, purpose=_PURPOSE, config_key="KRCNN.UP_SCALE")
    return x
