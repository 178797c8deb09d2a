"""Named layers of the reference network: parameters are found by Caffe2's names; they and all named results are shown to an observer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from roiline.checks.verify.arithmetic import (
    connect,
    convolve,
    flatten,
    normalise_groups,
    pool_maximum,
    rectify,
    scale_channels,
    transpose_convolve,
)
from roiline.checks.verify.plan import Convs, FindWeight, LastStage, Norm, Residual
from roiline.core.errors import WeightError
from roiline.core.structures import Float32

Observer: TypeAlias = Callable[[str, str, Float32], None]
"""Takes the stage, the name and the values of a result or a parameter."""


def ignore(stage: str, name: str, values: Float32) -> None:
    """Observes nothing."""
    del stage, name, values


@dataclass(slots=True)
class Computation:
    """Computes layers; `stage` is what results belong to at the moment."""

    find: FindWeight
    observe: Observer = ignore
    stage: str = field(default="input")

    def weight(self, name: str) -> Float32:
        """Returns a parameter, and shows it to the observer.

        Raises:
            WeightError: the checkpoint has none of this name.
        """
        return self.show(name, self._stored(name))

    def _stored(self, name: str) -> Float32:
        found = self.find(name)
        if found is None:
            raise WeightError(f"the checkpoint has no parameter {name}, which the network of this configuration needs")
        return found

    def show(self, name: str, values: Float32) -> Float32:
        """Shows a named result to the observer, and returns it."""
        self.observe(self.stage, name, values)
        return values

    def conv(
        self,
        x: Float32,
        layer: str,
        *,
        stride: int = 1,
        pad: int = 0,
        dilation: int = 1,
        groups: int = 1,
        norm: Norm | None = None,
        relu: bool = False,
        weights_of: str | None = None,
        biased: bool = False,
    ) -> Float32:
        """Computes a convolution with its bias, or with group normalisation (blob `.._gn`), and ReLU where asked for.

        A bias stands beside the normalisation only where the layer is `biased`.
        """
        source = weights_of or layer
        bias = self.weight(f"{source}_b") if norm is None or biased else None
        y = convolve(x, self.weight(f"{source}_w"), bias, stride=stride, pad=pad, dilation=dilation, groups=groups)
        return self._finish(y, layer, source, norm, relu=relu)

    def unit(
        self,
        x: Float32,
        layer: str,
        norm: Norm | None,
        *,
        relu: bool,
        affine: str | None = None,
        stride: int = 1,
        pad: int = 0,
        dilation: int = 1,
        groups: int = 1,
    ) -> Float32:
        """Computes a convolution of a residual body: no bias, then an affine channel (in place, it has the layer's name) or a norm."""
        weight = self._stored(f"{layer}_w")
        y = convolve(x, weight, stride=stride, pad=pad, dilation=dilation, groups=groups)
        if norm is not None:
            self.show(f"{layer}_w", weight)
            self.show(layer, y)
            y = self._normalise(y, layer, norm)
            return self.show(f"{layer}_gn", rectify(y)) if relu else y
        name = affine or f"{layer}_bn"
        scale = self._stored(f"{name}_s")
        self.show(f"{layer}_w", weight * scale[:, None, None, None])  # as a model holds it that has no affine channels
        y = scale_channels(y, scale, self.weight(f"{name}_b"))
        return self.show(layer, rectify(y)) if relu else y

    def _finish(self, y: Float32, layer: str, source: str, norm: Norm | None, *, relu: bool) -> Float32:
        if norm is not None:
            self.show(layer, y)
            y, layer = self._normalise(y, source, norm), f"{layer}_gn"
        return self.show(layer, rectify(y) if relu else y)

    def _normalise(self, y: Float32, layer: str, norm: Norm) -> Float32:
        scale, shift = self.weight(f"{layer}_gn_s"), self.weight(f"{layer}_gn_b")
        return normalise_groups(y, scale, shift, groups=norm.count(y.shape[1]), epsilon=norm.epsilon)

    def deconv(self, x: Float32, layer: str, *, stride: int = 2, pad: int | None = None, relu: bool = False) -> Float32:
        """Computes a transposed convolution that doubles (or, with `pad`, enlarges `stride` times)."""
        weight = self.weight(f"{layer}_w")
        edge = max(weight.shape[2] // 2 - 1, 0) if pad is None else pad
        y = transpose_convolve(x, weight, self.weight(f"{layer}_b"), stride=stride, pad=edge)
        return self.show(layer, rectify(y) if relu else y)

    def dense(self, x: Float32, layer: str, *, relu: bool = False, weights_of: str | None = None) -> Float32:
        """Computes a fully connected layer on what each row holds."""
        source = weights_of or layer
        y = connect(flatten(x), self.weight(f"{source}_w"), self.weight(f"{source}_b"))
        return self.show(layer, rectify(y) if relu else y)

    # --- what several parts of a network are made of -----------------------------------------------------------------

    def residual_stage(self, x: Float32, body: Residual, stage: LastStage) -> Float32:
        """Computes one stage of residual blocks; a dilated one does not stride."""
        for index in range(stage.blocks):
            first, last = index == 0, index == stage.blocks - 1
            stride = stage.stride if first and stage.dilation == 1 else 1
            x = self._block(x, body, f"{stage.prefix}_{index}", stride, stage.dilation, last=last)
        return x

    def _block(self, x: Float32, body: Residual, block: str, stride: int, dilation: int, *, last: bool) -> Float32:
        branch, norm = f"{block}_branch2", body.block
        if body.basic:
            y = self.unit(x, f"{branch}a", norm, relu=True, stride=stride, pad=dilation, dilation=dilation)
            y = self.unit(y, f"{branch}b", norm, relu=False, pad=dilation, dilation=dilation)
        else:
            early, late = (stride, 1) if body.stride_in_1x1 else (1, stride)
            y = self.unit(x, f"{branch}a", norm, relu=True, stride=early)
            y = self.unit(
                y, f"{branch}b", norm, relu=True, stride=late, pad=dilation, dilation=dilation, groups=body.groups
            )
            y = self.unit(y, f"{branch}c", norm, relu=False)
        if self.find(f"{block}_branch1_w") is not None:
            x = self.unit(x, f"{block}_branch1", body.shortcut, relu=False, stride=stride)
            self.show(f"{block}_branch1_{'bn' if body.shortcut is None else 'gn'}", x)
        ending = f"{branch}{'b' if body.basic else 'c'}_{'bn' if norm is None else 'gn'}"
        return self.show(f"{block}_sum" if last else ending, rectify(y + x))

    def roi_trunk(self, x: Float32, trunk: Convs | LastStage) -> Float32:
        """Computes the convolutions, or the residual stage, of a mask or keypoint head."""
        if isinstance(trunk, LastStage):
            x = self.residual_stage(x, trunk.body, trunk)
            return x if trunk.then is None else self.roi_trunk(x, trunk.then)
        for index in range(1, trunk.count + 1):
            name = f"{trunk.prefix}{index}"
            x = self.conv(x, name, pad=trunk.pad, dilation=trunk.dilation, norm=trunk.norm, relu=True)
        return x

    def pool(self, x: Float32, name: str, size: int, *, stride: int, pad: int = 0) -> Float32:
        """Computes max pooling."""
        return self.show(name, pool_maximum(x, size, stride=stride, pad=pad))
