"""Bodies that are one chain of layers: VGG16 (Simonyan and Zisserman 2015) and VGG_CNN_M_1024 (Chatfield et al. 2014)."""

from __future__ import annotations

from roiline.export.architecture import MaxPool, PlainBody, PlainConv, ResponseNorm
from roiline.export.graph import GraphWriter
from roiline.export.layers import Feature, Kernel, write_conv, write_max_pool, write_relu, write_response_norm

_SAME = Kernel(3, pad=1)
_HALF = Kernel(2, stride=2)

# VGG16's widths, like those of every layer, come from the weights.
VGG16 = PlainBody(
    layers=(
        PlainConv("conv1_1", _SAME),
        PlainConv("conv1_2", _SAME),
        MaxPool("pool1", _HALF),
        PlainConv("conv2_1", _SAME),
        PlainConv("conv2_2", _SAME),
        MaxPool("pool2", _HALF),
        PlainConv("conv3_1", _SAME),
        PlainConv("conv3_2", _SAME),
        PlainConv("conv3_3", _SAME),
        MaxPool("pool3", _HALF),
        PlainConv("conv4_1", _SAME),
        PlainConv("conv4_2", _SAME),
        PlainConv("conv4_3", _SAME),
        MaxPool("pool4", _HALF),
        PlainConv("conv5_1", _SAME),
        PlainConv("conv5_2", _SAME),
        PlainConv("conv5_3", _SAME),
    ),
    level=4,
)
"""Is 13 convolutions; there is no pool5, RoIs are taken from conv5_3."""

# The cells of VGG_CNN_M_1024 are declared 16 pixels wide, though convolutions without padding make its map smaller than that.
VGG_CNN_M_1024 = PlainBody(
    layers=(
        PlainConv("conv1", Kernel(7, stride=2)),
        ResponseNorm("norm1", size=5, alpha=0.0005, beta=0.75, bias=2.0),
        MaxPool("pool1", Kernel(3, stride=2)),
        PlainConv("conv2", Kernel(5, stride=2)),
        ResponseNorm("norm2", size=5, alpha=0.0005, beta=0.75, bias=2.0),
        MaxPool("pool2", Kernel(3, stride=2)),
        PlainConv("conv3", _SAME),
        PlainConv("conv4", _SAME),
        PlainConv("conv5", _SAME),
    ),
    level=4,
)
"""Is five convolutions with response normalisation."""


def write_plain_body(g: GraphWriter, body: PlainBody, picture: Feature) -> Feature:
    """Writes the chain; returns its last feature."""
    x = picture
    for layer in body.layers:
        if isinstance(layer, PlainConv):
            x = write_conv(g, x, layer.blob, layer.kernel, purpose="body", config_key="MODEL.CONV_BODY")
            x = write_relu(g, x, layer.blob)
        elif isinstance(layer, MaxPool):
            x = write_max_pool(g, x, layer.kernel, layer.blob)
        else:
            x = write_response_norm(
                g, x, size=layer.size, alpha=layer.alpha, beta=layer.beta, bias=layer.bias, name=layer.blob
            )
    return x
