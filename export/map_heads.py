"""Heads that make maps of RoIs, as data: masks, and heatmaps of keypoints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from roiline.export.layers import GroupNorm, Kernel
from roiline.export.upsampling import bilinear_kernel, doubling_kernel, enlarged_size

if TYPE_CHECKING:  # an architecture has these heads
    from roiline.export.architecture import ResNet, RoiTransform


@dataclass(frozen=True, slots=True)
class ConvChain:
    """Is `count` equal convolutions with ReLU, `{prefix}1`, `{prefix}2`, ..; their bias gives way to `norm`. `channels` None: free."""

    prefix: str
    count: int
    kernel: Kernel
    channels: int | None
    norm: GroupNorm | None = None

    def size(self, resolution: int) -> int:
        """Returns how many cells a side has after it."""
        reach = self.kernel.dilation * (self.kernel.size - 1)
        return resolution + self.count * (2 * self.kernel.pad - reach)


@dataclass(frozen=True, slots=True)
class RoiStage:
    """Is a res5 of its own, `{prefix}_0`, .., built as the body builds its stages, and a chain after it if there is one.

    A dilated one does not stride.
    """

    prefix: str
    body: ResNet
    stride: int
    dilation: int
    then: ConvChain | None = None

    def size(self, resolution: int) -> int:
        """Returns how many cells a side has after it."""
        size = resolution if self.dilation != 1 else (resolution - 1) // self.stride + 1
        return size if self.then is None else self.then.size(size)


Trunk: TypeAlias = ConvChain | RoiStage

MASK_DOUBLING = doubling_kernel(2)
"""Every mask head doubles its map so, before its outputs."""


@dataclass(frozen=True, slots=True)
class MaskHead:
    """Is a trunk on RoI features, a doubling to `channels`, and the outputs: `size` x `size` cells of K masks, or of one for all classes.

    `pooled` names the blob of the RoI features. `dense`: the outputs are fully connected. `upsample` > 1: they are made that many times
    smaller, and then enlarged bilinearly (a dense output makes the full size itself).
    """

    transform: RoiTransform
    pooled: str
    trunk: Trunk
    channels: int | None
    num_masks: int
    size: int
    dense: bool = False
    upsample: int = 1

    @property
    def doubled(self) -> int:
        """Is how many cells a side has after the doubling."""
        return enlarged_size(self.trunk.size(self.transform.resolution), MASK_DOUBLING)

    @property
    def made(self) -> int:
        """Is how many cells a side the masks have as the layers make them; a head that fits its `size` makes that many."""
        if self.dense:
            return self.doubled * self.upsample
        return enlarged_size(self.doubled, bilinear_kernel(self.upsample)) if self.upsample > 1 else self.doubled


@dataclass(frozen=True, slots=True)
class KeypointHead:
    """Is a trunk on RoI features and a heatmap for each of `count` keypoints.

    `pooled` names the blob of the RoI features. `deconv_channels`: a doubling to that many channels comes before the heatmaps (None:
    none does). The heatmaps are made by a 1x1 convolution or (`deconv_output`) by a doubling; `deconv_size` is the kernel size of both
    doublings. `upsample` > 1: heatmaps are enlarged bilinearly at last, by fixed weights that the file holds, or (`resized`) without any.
    """

    transform: RoiTransform
    pooled: str
    trunk: Trunk
    count: int
    deconv_channels: int | None
    deconv_output: bool
    deconv_size: int
    upsample: int
    resized: bool = False

    @property
    def size(self) -> int:
        """Is how many cells a side a heatmap has."""
        size = self.trunk.size(self.transform.resolution)
        for _ in range((self.deconv_channels is not None) + self.deconv_output):
            size = enlarged_size(size, doubling_kernel(self.deconv_size))
        return enlarged_size(size, bilinear_kernel(self.upsample)) if self.upsample > 1 else size
