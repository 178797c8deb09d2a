"""What a network is made of, as data: the choices that a configuration makes, in terms that every checkpoint source shares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from roiline.core.spec import Conventions, DetectionRules, Task
from roiline.core.structures import Float64
from roiline.export.layers import GroupNorm, Kernel
from roiline.export.map_heads import KeypointHead, MaskHead
from roiline.export.one_stage import RetinaNet

# --- bodies ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ResNet:
    """Is a residual body.

    `blocks` are the counts of res2..res5; `stride_in_1x1` puts a stage's stride into branch2a (else branch2b). A norm is None where
    affine channels follow a convolution. `last_stage` is 5, or 4 where res5 belongs to a head. A dilated res5 does not stride. `basic`
    blocks are two 3x3 convolutions (ResNet-18 and 34); their res2 is not `projected`: it keeps its width, so its first block's shortcut
    is the picture of before.
    """

    blocks: tuple[int, int, int, int]
    groups: int
    stride_in_1x1: bool
    stem_norm: GroupNorm | None = None
    block_norm: GroupNorm | None = None
    shortcut_norm: GroupNorm | None = None
    last_stage: Literal[4, 5] = 5
    res5_dilation: int = 1
    basic: bool = False
    res2_projected: bool = True


@dataclass(frozen=True, slots=True)
class InvertedResidual:
    """Is one block of a MobileNet: 1x1 to more channels where it is `expanded`, depthwise, gated where it is `squeezed`, and 1x1 back.

    It adds its input where it is `residual`; `hard_swish` is its activation, else ReLU.
    """

    kernel: int
    stride: int
    expanded: bool
    squeezed: bool
    hard_swish: bool
    residual: bool


@dataclass(frozen=True, slots=True)
class MobileNet:
    """Is MobileNetV3's feature layers (Howard et al. 2019): the stem, `blocks`, and a last 1x1; `stages` are those that a pyramid takes.

    Layers are numbered from the stem, 0, to the last one; stages are levels 5, 4, .. from the last one on.
    """

    blocks: tuple[InvertedResidual, ...]
    stages: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PlainConv:
    """Is a convolution with bias and ReLU."""

    blob: str
    kernel: Kernel


@dataclass(frozen=True, slots=True)
class MaxPool:
    """Is max pooling."""

    blob: str
    kernel: Kernel


@dataclass(frozen=True, slots=True)
class ResponseNorm:
    """Is x * (bias + alpha / size * sum of x^2 over `size` channels around)^-beta (Krizhevsky et al. 2012)."""

    blob: str
    size: int
    alpha: float
    beta: float
    bias: float


@dataclass(frozen=True, slots=True)
class PlainBody:
    """Is a body that is one chain of layers; `level`: its cells are declared 2^level pixels wide."""

    layers: tuple[PlainConv | MaxPool | ResponseNorm, ...]
    level: int


Body: TypeAlias = ResNet | MobileNet | PlainBody


@dataclass(frozen=True, slots=True)
class Pyramid:
    """Is an FPN over res2..res5 with the levels `min_level` to `max_level`.

    Level 6 is every second cell of level 5; with `extra_convs` levels 6 and 7 are strided convolutions of res5, or (`extra_of_pyramid`) of
    level 5. `channels` None: free. Without `upsampled` the stages are of one size, and so are the levels up to 5. `averaged`: what comes
    down and what comes from the side are averaged, not summed.
    """

    min_level: int
    max_level: int
    channels: int | None
    norm: GroupNorm | None = None
    extra_convs: bool = False
    extra_of_pyramid: bool = False
    upsampled: bool = True
    averaged: bool = False


# --- proposals -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RpnLevel:
    """Is one level that the RPN runs on: pixels per cell, and the anchors (A, 4) of its first cell in network-input pixels.

    `stride` None: whole pixels of the network input per cell, as they come out for each picture, across and down apart.
    """

    level: int
    stride: float | None
    anchors: Float64


@dataclass(frozen=True, slots=True)
class RpnRules:
    """Is a region proposal network, on one feature map or on a pyramid (`multilevel`: blobs are named by level, levels are joined).

    `nms_thresh` <= 0: no NMS and no limit on a level. `native`: proposals are those of Caffe2's own operator, which suppresses only
    above the threshold and measures `min_size` in network-input pixels. `depth` is the count of its hidden convolutions, `widths` are
    their channels (0, or none given: as many as they see).

    With `ranked_by_logit` the best of a level are chosen before the sigmoid; with `scored_by_logit` there is no sigmoid at all. Proposals
    that score less than `score_thresh` (0: any score will do) or have a side below `min_side` network-input pixels are dropped.
    """

    levels: tuple[RpnLevel, ...]
    pre_nms_top_n: int
    post_nms_top_n: int
    nms_thresh: float
    min_size: float
    multilevel: bool = True
    native: bool = False
    depth: int = 1
    widths: tuple[int, ...] = ()
    ranked_by_logit: bool = False
    scored_by_logit: bool = False
    score_thresh: float = 0.0
    min_side: float = 0.0


# --- heads -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RoiTransform:
    """Is how RoIs take their features, from levels `min_level` to `max_level`: RoIAlign or (`max`) quantised max pooling.

    `finest_scale` is cells per network-input pixel on `min_level`, halved from level to level. `half_pixel`: whether RoIAlign shifts
    coordinates by -0.5 (None: as the conventions say).
    """

    resolution: int
    sampling_ratio: int
    min_level: int
    max_level: int
    canonical_level: int
    canonical_scale: float
    finest_scale: float
    method: Literal["align", "max"] = "align"
    half_pixel: bool | None = None

    @property
    def scales(self) -> tuple[float, ...]:
        """Is the scale of every level, finest first."""
        return tuple(self.finest_scale / 2**step for step in range(self.max_level - self.min_level + 1))


@dataclass(frozen=True, slots=True)
class MlpFeatures:
    """Is fc6 and fc7 on RoI features. `width` None: the weights decide."""

    width: int | None


@dataclass(frozen=True, slots=True)
class ConvFeatures:
    """Is `count` 3x3 convolutions and `hidden` fully connected layers, fc6, fc7, .., on RoI features."""

    count: int
    channels: int
    width: int
    norm: GroupNorm | None
    hidden: int = 1


@dataclass(frozen=True, slots=True)
class Res5Features:
    """Is res5 of `body`, its first block striding by `stride`, and the mean over its cells."""

    body: ResNet
    stride: int


HeadFeatures: TypeAlias = MlpFeatures | ConvFeatures | Res5Features


@dataclass(frozen=True, slots=True)
class BoxOutputs:
    """Is what a box head says: K classes; deltas of each, or of all as one.

    `mixed`: probabilities are the mean of softmax and sigmoid. `independent`: they are the sigmoid alone.
    """

    num_classes: int
    class_agnostic: bool
    mixed: bool = False
    independent: bool = False

    @property
    def boxes(self) -> int:
        """Is how many boxes an RoI gets: one a class, or background and foreground."""
        return 2 if self.class_agnostic else self.num_classes


@dataclass(frozen=True, slots=True)
class BoxHead:
    """Is a Fast R-CNN head; `pooled` names the blob of its RoI features."""

    transform: RoiTransform
    features: HeadFeatures
    outputs: BoxOutputs
    pooled: str = "roi_feat"


@dataclass(frozen=True, slots=True)
class RfcnHead:
    """Is a position-sensitive head (Dai et al. 2016): G x G maps an output, G = `transform.resolution`. `reduced`: a 1x1 before them."""

    transform: RoiTransform
    outputs: BoxOutputs
    reduced: int | None
    multilevel: bool = False


@dataclass(frozen=True, slots=True)
class FusedHead:
    """Is a Fast R-CNN and a position-sensitive head on the same RoIs, whose scores and deltas are joined.

    `sum` and `mean` join the outputs of both; `concat` appends the position-sensitive votes to the features that the Fast R-CNN
    head's output layers see.
    """

    fast: BoxHead
    rfcn: RfcnHead
    rule: Literal["sum", "mean", "concat"]


@dataclass(frozen=True, slots=True)
class CascadeHead:
    """Is a chain of class-agnostic box heads, each on the boxes of the one before (Cai and Vasconcelos 2018), up to `stage`.

    `later` are the features of the stages after the first; `bbox_reg_weights` those of stages 1, 2, ..; `ensemble` averages the
    probabilities of all heads on the last stage's boxes, or (`own_boxes`) of every head on those of its stage. `clipped`: boxes are
    clipped to the picture from stage to stage.
    """

    first: BoxHead
    later: HeadFeatures
    bbox_reg_weights: tuple[tuple[float, float, float, float], ...]
    stage: int
    ensemble: bool
    own_boxes: bool = False
    clipped: bool = False


@dataclass(frozen=True, slots=True)
class TrackHead:
    """Is a head that compares detections of two pictures: `width` features of each, and the similarity of pairs.

    Similarity is what a network of two hidden layers of `hidden` says of both features, or (`hidden` None) their cosine.
    """

    transform: RoiTransform
    width: int
    hidden: int | None


DetectionHead: TypeAlias = BoxHead | RfcnHead | FusedHead | CascadeHead


@dataclass(frozen=True, slots=True)
class ClassificationHead:
    """Is a classifier of whole pictures: the mean over cells, a perceptron of `widths`, and K classes."""

    widths: tuple[int, ...]
    num_classes: int


@dataclass(frozen=True, slots=True)
class Architecture:
    """Is a whole network.

    Without `rpn` RoIs are inputs. `head` is None where it ends at its proposals; `detection` are the rules for what the head says.
    `mask_head` and `keypoint_head` run on the detections, `track_head` on those of two pictures. A `retinanet` takes the place of `rpn`
    and `head`, `classification` that of everything after the body.
    """

    name: str
    body: Body
    pyramid: Pyramid | None
    rpn: RpnRules | None
    head: DetectionHead | None
    detection: DetectionRules | None
    conventions: Conventions
    mask_head: MaskHead | None = None
    keypoint_head: KeypointHead | None = None
    track_head: TrackHead | None = None
    retinanet: RetinaNet | None = None
    classification: ClassificationHead | None = None

    @property
    def tasks(self) -> tuple[Task, ...]:
        """Is what a model of this network makes."""
        if self.classification is not None:
            return ("classification",)
        tasks: tuple[Task, ...] = ("proposals",) if self.rpn is not None else ()
        return (*tasks, "detections") if self.detection is not None else tasks


def outputs_of_head(head: DetectionHead) -> BoxOutputs:
    """Returns what a head says of a RoI."""
    if isinstance(head, FusedHead):
        return head.fast.outputs
    return head.first.outputs if isinstance(head, CascadeHead) else head.outputs
