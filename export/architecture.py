"""What a network is made of, as data: the choices that a configuration makes, in terms that every checkpoint source shares."""

from __future__ import annotations

from dataclasses import dataclass

from roiline.core.spec import Conventions, DetectionRules
from roiline.core.structures import Float64


@dataclass(frozen=True, slots=True)
class ResNet:
    """Is a residual body. `blocks` are the counts of res2..res5; `stride_in_1x1` puts a stage's stride into branch2a (else branch2b)."""

    blocks: tuple[int, int, int, int]
    groups: int
    stride_in_1x1: bool


@dataclass(frozen=True, slots=True)
class Pyramid:
    """Is an FPN over res2..res5: levels `min_level` to `max_level`; level 6 is every second cell of level 5. `channels` None: free."""

    min_level: int
    max_level: int
    channels: int | None


@dataclass(frozen=True, slots=True)
class RpnLevel:
    """Is one level that the RPN runs on: pixels per cell, and the anchors (A, 4) of its first cell in network-input pixels."""

    level: int
    stride: float
    anchors: Float64


@dataclass(frozen=True, slots=True)
class RpnRules:
    """Is a region proposal network. `nms_thresh` <= 0: no NMS and no limit on a level."""

    levels: tuple[RpnLevel, ...]
    pre_nms_top_n: int
    post_nms_top_n: int
    nms_thresh: float
    min_size: float


@dataclass(frozen=True, slots=True)
class RoiTransform:
    """Is how RoIs take their features: RoIAlign on levels `min_level` to `max_level`."""

    resolution: int
    sampling_ratio: int
    min_level: int
    max_level: int
    canonical_level: int
    canonical_scale: float


@dataclass(frozen=True, slots=True)
class BoxHead:
    """Is a two-layer perceptron on RoI features, with its outputs for K classes. `width` None: the weights decide."""

    transform: RoiTransform
    num_classes: int
    width: int | None
    rules: DetectionRules


@dataclass(frozen=True, slots=True)
class Architecture:
    """Is a whole network. `box_head` is None where it ends at its proposals."""

    name: str
    body: ResNet
    pyramid: Pyramid
    rpn: RpnRules
    box_head: BoxHead | None
    conventions: Conventions
