"""What a checkpoint's configuration says of its network, read for the reference alone.

This is a second reading beside the exporters' own: it shares their readers of files (configuration text and weights), and none of what
they make of them, so that an error there is seen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from roiline.core.spec import Conventions, DetectionRules, ImageRules
from roiline.core.structures import Float32, Float64

FindWeight: TypeAlias = Callable[[str], "Float32 | None"]
"""Returns a parameter by Caffe2's name, None where the checkpoint has none of it."""


@dataclass(frozen=True, slots=True)
class Norm:
    """Is group normalisation: `groups`, or (`channels` > 0) groups of that many channels."""

    groups: int
    channels: int = 0
    epsilon: float = 1e-5

    def count(self, channels: int) -> int:
        """Returns how many groups a layer of this many channels has."""
        return channels // self.channels if self.channels > 0 else self.groups


@dataclass(frozen=True, slots=True)
class Residual:
    """Is a residual body: blocks of res2.., whether a stage strides in its 1x1, norms (None: affine channels), the last stage."""

    blocks: tuple[int, ...]
    groups: int
    stride_in_1x1: bool
    last: int
    stem: Norm | None = None
    block: Norm | None = None
    shortcut: Norm | None = None
    dilation: int = 1
    basic: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """Is one step of a chain: a convolution with ReLU, max pooling, or response normalisation over 5 channels."""

    kind: Literal["conv", "pool", "norm"]
    name: str
    size: int = 3
    stride: int = 1
    pad: int = 0


@dataclass(frozen=True, slots=True)
class Chain:
    """Is a body of steps whose map is declared 2^level pixels a cell."""

    steps: tuple[Step, ...]
    level: int


@dataclass(frozen=True, slots=True)
class PyramidPlan:
    """Is a feature pyramid; level 6 and more are `pooled`, or convolutions of the `body`'s last stage or of nothing (`none`)."""

    low: int
    high: int
    norm: Norm | None
    coarser: Literal["pooled", "body"]
    averaged: bool = False


@dataclass(frozen=True, slots=True)
class Pooling:
    """Is how RoIs take features: `method`, bins a side, samples a bin, the levels, and cells per pixel on the finest."""

    method: Literal["align", "max", "votes"]
    resolution: int
    sampling: int
    low: int
    high: int
    finest_scale: float
    half_pixel: bool
    canonical_level: int = 4
    canonical_scale: float = 224.0

    @property
    def scales(self) -> tuple[float, ...]:
        """Is cells per pixel on every level."""
        return tuple(self.finest_scale / 2**step for step in range(self.high - self.low + 1))


@dataclass(frozen=True, slots=True)
class AnchorLevel:
    """Is one level of an RPN: its number, pixels a cell, and the anchors (A, 4) of its first cell."""

    level: int
    stride: float
    anchors: Float64


@dataclass(frozen=True, slots=True)
class RpnPlan:
    """Is the RPN: its levels (`suffixed` names where there are several), its limits, and how boxes are filtered.

    `native`: Caffe2's operator made the proposals. `by_logit`: scores are logits; `min_side` is in network pixels.
    """

    levels: tuple[AnchorLevel, ...]
    suffixed: bool
    before_nms: int
    after_nms: int
    nms: float
    min_size: float = 0.0
    native: bool = False
    by_logit: bool = False
    min_side: float = 0.0
    depth: int = 1


@dataclass(frozen=True, slots=True)
class Perceptron:
    """Is `count` fully connected layers fc6, fc7, .. after `convs` 3x3 convolutions with `norm`."""

    count: int
    convs: int = 0
    norm: Norm | None = None


@dataclass(frozen=True, slots=True)
class Convs:
    """Is a chain of equal convolutions with ReLU, `{prefix}1`, `{prefix}2`, .."""

    prefix: str
    count: int
    size: int = 3
    pad: int = 1
    dilation: int = 1
    norm: Norm | None = None


@dataclass(frozen=True, slots=True)
class LastStage:
    """Is a residual stage on RoIs: its blocks' prefix, their kind, the first one's stride, its dilation, and what comes `then`."""

    prefix: str
    body: Residual
    blocks: int
    stride: int
    dilation: int = 1
    then: Convs | None = None


@dataclass(frozen=True, slots=True)
class BoxPlan:
    """Is a box head: `pooling` into the blob `pooled`, what stands before the outputs, and what these are.

    `join` fuses an R-FCN head by that rule; `votes` is its pooling, alone where there is no `trunk`. `stages` are the weights of the boxes
    of a cascade's stages up to the last (empty: no cascade), `mean` says over what its probabilities are averaged.
    """

    outputs: Literal["softmax", "sigmoid", "mixed"]
    agnostic: bool
    pooling: Pooling | None
    pooled: str
    trunk: Perceptron | LastStage | None
    votes: Pooling | None = None
    reduced: bool = False
    join: str = ""
    stages: tuple[tuple[float, float, float, float], ...] = ()
    later: Perceptron | None = None
    mean: Literal["none", "last boxes", "own boxes"] = "none"
    clipped: bool = False


@dataclass(frozen=True, slots=True)
class MaskPlan:
    """Is a mask head; `dense` outputs are fully connected, `enlarged` > 1 times bilinearly enlarged at last."""

    pooling: Pooling
    pooled: str
    trunk: Convs | LastStage
    size: int
    agnostic: bool
    dense: bool = False
    enlarged: int = 1


@dataclass(frozen=True, slots=True)
class KeypointPlan:
    """Is a keypoint head; `doubled` first by kps_deconv, made by a `transposed` convolution, `enlarged` by weights or without any."""

    pooling: Pooling
    pooled: str
    trunk: Convs | LastStage
    doubled: bool
    transposed: bool
    kernel: int
    enlarged: int
    weightless: bool = False


@dataclass(frozen=True, slots=True)
class DensePlan:
    """Is a RetinaNet head on the levels from `low`, with the anchors of each; `classes` is K."""

    low: int
    anchors: tuple[Float64, ...]
    classes: int
    convs: int
    shared: bool
    softmax: bool
    before_nms: int
    norm: Norm | None = None


@dataclass(frozen=True, slots=True)
class NetworkPlan:
    """Is the whole network; None is what it has not. `hidden` are the hidden layers of a classifier of pictures."""

    images: ImageRules
    conventions: Conventions
    detection: DetectionRules | None
    body: Residual | Chain
    pyramid: PyramidPlan | None
    rpn: RpnPlan | None = None
    boxes: BoxPlan | None = None
    masks: MaskPlan | None = None
    keypoints: KeypointPlan | None = None
    dense: DensePlan | None = None
    hidden: int | None = None
    tracked: bool = False


@dataclass(frozen=True, slots=True)
class ReferenceSource:
    """Is what a reference is built from: its plan, its parameters, and the kind of checkpoint with the hash of its file."""

    kind: str
    plan: NetworkPlan
    find: FindWeight
    weights_sha256: str
    notes: tuple[str, ...] = ()
