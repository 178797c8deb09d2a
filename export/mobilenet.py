"""MobileNetV3 bodies (Howard et al., Searching for MobileNetV3, 2019): inverted residual blocks with gates and hard swish."""

from __future__ import annotations

from roiline.export.architecture import InvertedResidual, MobileNet
from roiline.export.graph import GraphWriter
from roiline.export.layers import Feature, Kernel, write_conv, write_relu, write_sum

_TOP = 5  # the level of the last layer
_SIXTH = 1 / 6


def write_mobilenet(g: GraphWriter, body: MobileNet, picture: Feature) -> dict[int, Feature]:
    """Writes the layers; returns the features of the body's stages by level."""
    x = _write_hard_swish(g, _write_layer(g, picture, "features0", Kernel(3, stride=2, pad=1)), "features0")
    layers = [x]
    for number, block in enumerate(body.blocks, 1):
        x = _write_block(g, block, x, f"features{number}")
        layers.append(x)
    last = f"features{len(layers)}"
    layers.append(_write_hard_swish(g, _write_layer(g, x, last, Kernel(1)), last))
    first = _TOP - len(body.stages) + 1
    return {level: layers[number] for level, number in enumerate(body.stages, first)}


def _write_block(g: GraphWriter, block: InvertedResidual, x: Feature, blob: str) -> Feature:
    y = x
    if block.expanded:
        y = _activate(g, block, _write_layer(g, y, f"{blob}_expand", Kernel(1)), f"{blob}_expand")
    depthwise = Kernel(block.kernel, block.stride, pad=block.kernel // 2, groups=y.channels or 1)
    y = _activate(g, block, _write_layer(g, y, f"{blob}_depthwise", depthwise, out=y.channels), f"{blob}_depthwise")
    if block.squeezed:
        y = _write_gate(g, y, blob)
    out = x.channels if block.residual else None
    y = write_conv(g, y, f"{blob}_project", Kernel(1), purpose="body", out=out, name=None if block.residual else blob)
    return write_sum(g, y, x, blob) if block.residual else y


def _write_layer(g: GraphWriter, x: Feature, blob: str, kernel: Kernel, *, out: int | None = None) -> Feature:
    return write_conv(g, x, blob, kernel, purpose="body", out=out)


def _activate(g: GraphWriter, block: InvertedResidual, x: Feature, name: str) -> Feature:
    return _write_hard_swish(g, x, name) if block.hard_swish else write_relu(g, x, name)


def _write_hard_swish(g: GraphWriter, x: Feature, name: str) -> Feature:
    """Writes x * min(max(x / 6 + 1 / 2, 0), 1)."""
    return Feature(g.op("Mul", x.name, _write_hard_sigmoid(g, x), name=name), x.channels)


def _write_hard_sigmoid(g: GraphWriter, x: Feature) -> str:
    return g.op("HardSigmoid", x.name, alpha=_SIXTH, beta=0.5)


def _write_gate(g: GraphWriter, x: Feature, blob: str) -> Feature:
    """Writes squeeze and excitation: channels are scaled by what two layers make of their means."""
    means = Feature(g.op("GlobalAveragePool", x.name), x.channels)
    hidden = write_relu(g, _write_layer(g, means, f"{blob}_squeeze", Kernel(1)))
    gate = _write_layer(g, hidden, f"{blob}_excite", Kernel(1), out=x.channels)
    return Feature(g.op("Mul", x.name, _write_hard_sigmoid(g, gate), name=f"{blob}_gated"), x.channels)
