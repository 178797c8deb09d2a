"""What a one-stage detector is made of, as data: it classifies every anchor of every level, without proposals and without RoIs."""

from __future__ import annotations

from dataclasses import dataclass

from roiline.core.structures import Float64
from roiline.export.layers import GroupNorm


@dataclass(frozen=True, slots=True)
class RetinaNet:
    """Is a RetinaNet head (Lin et al., Focal Loss for Dense Object Detection, 2017) on consecutive levels of a pyramid.

    `anchors` are those of the first cell of each level, (A, 4) in network-input pixels, from level `min_level` on; a cell of level l is 2^l
    pixels wide. `num_classes` is K, background included. `num_convs` is the depth of a tower; with `shared_tower` boxes are predicted from
    the class tower. With `softmax` an anchor has a probability for each of K classes that sum to 1, else K - 1 independent ones.
    `pre_nms_top_n` are a level's candidates (0: all). Convolutions of the towers have a `norm` in place of a bias, or (`biased`) beside it.
    `own_towers`: the towers of a level have weights of their own, else all have those of the finest one. `first_class` 0: the
    background is one of the classes that are scored. With `measured_strides` a cell is as wide as comes out for each picture, in whole
    pixels, across and down apart.
    """

    min_level: int
    anchors: tuple[Float64, ...]
    num_classes: int
    num_convs: int
    shared_tower: bool
    softmax: bool
    pre_nms_top_n: int
    norm: GroupNorm | None = None
    biased: bool = False
    own_towers: bool = False
    first_class: int = 1
    measured_strides: bool = False

    @property
    def levels(self) -> range:
        """Is the numbers of the levels, finest first."""
        return range(self.min_level, self.min_level + len(self.anchors))
