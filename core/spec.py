"""The specification that a model file carries: all that an engine and a run must know, and nothing of how it was made.

It is JSON in the ONNX file's `metadata_props` under `roiline`. Conventions (are widths x2 - x1 + 1, does NMS suppress at equality,
how is a picture resized) are data here, consumed by the operators and the image preparation; no code asks where a model came from.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

from roiline.core.errors import ExportError, ModelError
from roiline.core.records import plain_from_record, record_from_plain
from roiline.core.spec_checks import find_faults

FORMAT_VERSION = 1
METADATA_KEY = "roiline"

Precision: TypeAlias = Literal["fp32", "fp16", "bf16", "int8"]
Task: TypeAlias = Literal["proposals", "detections", "classification"]
TASKS: tuple[Task, ...] = ("proposals", "detections", "classification")


@dataclass(frozen=True, slots=True)
class Conventions:
    """Is one code base's way with boxes.

    `plus_one`: corners are inclusive, a width is x2 - x1 + 1. `nms_inclusive`: NMS suppresses at IoU >= threshold, else only above.
    `roi_half_pixel`: RoIAlign shifts coordinates by -0.5 (the `aligned` form). `delta_clip`: upper bound of dw and dh, ln of a ratio.

    `network_frame`: boxes are decoded and clipped in network-input pixels, and become original ones at last, by the ratios of both
    sizes, across and down apart; else they are divided by the scale first, and clipped to the original picture. `smallest_side`:
    detections with a shorter side, in pixels of that frame, are dropped (0: none is). `ranked`: a picture's detections come by
    descending score, exactly as many as the limit; else class by class, with all ties at the limit. `final_clip`: original boxes are
    clipped to the original picture at last (one-stage boxes: only then), and those without area are dropped after the limit.
    `ties`: of detections of a class that score the same, NMS takes the earlier or the later RoI first, or the one that the original's
    sort puts first, which only the host can say (see `ops.visit_order`).
    `level_epsilon`: whether the `epsilon` that keeps an RoI's pyramid level stable is added to the ratio of sides, or to the level.
    """

    name: str
    plus_one: bool
    nms_inclusive: bool
    roi_half_pixel: bool
    delta_clip: float
    network_frame: bool = False
    smallest_side: float = 0.0
    ranked: bool = False
    level_epsilon: Literal["ratio", "level"] = "ratio"
    epsilon: float = 1e-6
    final_clip: bool = False
    ties: Literal["earlier", "later", "quicksort"] = "earlier"


@dataclass(frozen=True, slots=True)
class ImageRules:
    """Is how a picture becomes network input.

    `channel_order` of the network. Values 0 to 255 are divided by `divisor`; `means` are subtracted per channel in that order, then values
    are divided by `stds`.
    The shorter side becomes `scale` pixels unless the longer would exceed `max_size`. `resize` names the sampling rule: `detectron`
    subtracts first and samples floats by the scale factor itself (not by the ratio of sizes); `detectron_stretch` subtracts first and
    makes every picture `scale` wide and `max_size` high, by the ratio of sizes, though the scale that it reports is the usual one;
    `torchvision` subtracts first, cuts sides to whole pixels, and samples by the ratio of sizes, `torchvision_stretch` likewise to
    `scale` wide and `max_size` high; `detectron2` samples the 8-bit picture, smoothed where it shrinks, rounds sides to the nearest pixel,
    and subtracts then (`scale` 0: no picture is resized).
    Height and width are padded at the bottom and right with zeros to multiples of `pad_multiple` (1: no padding). The `extent` that the
    network is told, to which proposals are clipped, is the padded size or that of the resized picture. `exif`: whether the source reads
    pictures upright.
    """

    channel_order: Literal["BGR", "RGB"]
    means: tuple[float, float, float]
    stds: tuple[float, float, float]
    scale: int
    max_size: int
    resize: Literal["detectron", "detectron_stretch", "torchvision", "torchvision_stretch", "detectron2"]
    pad_multiple: int
    exif: Literal["apply", "ignore"]
    divisor: float = 1.0
    extent: Literal["padded", "resized"] = "padded"


@dataclass(frozen=True, slots=True)
class DetectionRules:
    """Is how raw class scores and boxes become detections: scores above `score_thresh`, NMS per class, at most `max_dets` a picture.

    `max_dets` <= 0: no limit. `class_agnostic`: one regressed box serves all classes. `bbox_reg_weights` divide (dx, dy, dw, dh).
    Without `regress` a detection has its proposal's box, neither moved nor clipped. Of a one-stage model, `first_class` is the class of
    the first column of its scores (0: the background has one too), and `coarsest_score_thresh` holds on the coarsest level instead of
    `score_thresh` (None: it is no exception).
    """

    score_thresh: float
    nms_thresh: float
    max_dets: int
    class_agnostic: bool
    bbox_reg_weights: tuple[float, float, float, float]
    regress: bool = True
    first_class: int = 1
    coarsest_score_thresh: float | None = 0.0

    @property
    def coarsest_thresh(self) -> float:
        """Is the threshold on the coarsest level of a one-stage model."""
        return self.score_thresh if self.coarsest_score_thresh is None else self.coarsest_score_thresh


@dataclass(frozen=True, slots=True)
class GivenProposals:
    """Is how proposals from outside become RoIs: the first `limit` of a picture; those that agree after x `dedup` (<= 0: none do)
    and rounding are one RoI, whose box serves all of them.

    With `network_frame` they are taken by descending score, scaled across and down apart, clipped to the resized picture, and those without
    area are dropped before the `limit`; a file's other rules (no duplicates, no slivers) do not hold then.
    """

    limit: int
    dedup: float
    network_frame: bool = False


@dataclass(frozen=True, slots=True)
class MaskRules:
    """Is how class-selected probabilities (M, `resolution`, `resolution`) become masks: pixels above `threshold`, placed as `paste` says.

    `detectron`: in a box cut to whole pixels; `detectron2`: in the box as it is, and pixels at the threshold are in too.
    """

    resolution: int
    threshold: float
    paste: Literal["detectron", "detectron2"] = "detectron"


@dataclass(frozen=True, slots=True)
class KeypointRules:
    """Is how heatmaps of `count` keypoints are decoded: on maps of at least `min_size` pixels a side (<= 0: as large as the box).

    `confidence` is the score that a person's keypoints are written with; `nms_oks` suppresses persons by keypoint similarity. With
    `network_frame` maps are as large as the box is in network-input pixels, else in original ones; with `map_normalised` a keypoint's
    probability is relative to the heatmap as the network gives it, else to the enlarged one.
    """

    count: int
    min_size: int
    confidence: Literal["bbox", "logit", "prob"]
    nms_oks: bool
    network_frame: bool = False
    map_normalised: bool = False


@dataclass(frozen=True, slots=True)
class TrackRules:
    """Is how detections of two pictures are paired: one to one, of one class, by the largest sum of similarities from `threshold` on."""

    threshold: float


@dataclass(frozen=True, slots=True)
class SoftNmsRules:
    """Is that scores decay instead of boxes being dropped (TEST.SOFT_NMS); the overlap threshold is `DetectionRules.nms_thresh`."""

    method: Literal["linear", "gaussian", "hard"]
    sigma: float


@dataclass(frozen=True, slots=True)
class VotingRules:
    """Is that kept boxes are refined by all boxes that overlap them by at least `vote_thresh` (TEST.BBOX_VOTE)."""

    vote_thresh: float
    scoring_method: Literal["ID", "TEMP_AVG", "AVG", "IOU_AVG", "GENERALIZED_AVG", "QUASI_SUM"]


@dataclass(frozen=True, slots=True)
class Augmentation:
    """Is the passes of test-time augmentation beside the picture itself.

    `h_flip` mirrors it; every one of `scales` (shorter side; longer at most `max_size`) is a pass, mirrored too with `scale_h_flip`;
    every one of `aspect_ratios` stretches its width, mirrored too with `aspect_ratio_h_flip`.
    """

    h_flip: bool
    scales: tuple[int, ...]
    max_size: int
    scale_h_flip: bool
    aspect_ratios: tuple[float, ...]
    aspect_ratio_h_flip: bool


@dataclass(frozen=True, slots=True)
class BoxAugmentation:
    """Is augmentation of boxes (TEST.BBOX_AUG): how scores and how coordinates of the passes are joined (UNION: both)."""

    passes: Augmentation
    scores: Literal["UNION", "AVG", "ID"]
    coordinates: Literal["UNION", "AVG", "ID"]


@dataclass(frozen=True, slots=True)
class MaskAugmentation:
    """Is augmentation of masks (TEST.MASK_AUG): mean, maximum, or mean of logits over the passes."""

    passes: Augmentation
    join: Literal["SOFT_AVG", "SOFT_MAX", "LOGIT_AVG"]


@dataclass(frozen=True, slots=True)
class KeypointAugmentation:
    """Is augmentation of keypoint maps (TEST.KPS_AUG): mean or maximum over the passes.

    With `by_size` a box below `area_thresh` square pixels leaves the passes of smaller scales out, a larger one those of larger scales.
    """

    passes: Augmentation
    join: Literal["HM_AVG", "HM_MAX"]
    by_size: bool
    area_thresh: int


@dataclass(frozen=True, slots=True)
class TestOptions:
    """Is what a run does on the host beside the graph, as the configuration's TEST section asks; None: not at all."""

    __test__: ClassVar[bool] = False  # pytest takes a class of this name for a test otherwise

    soft_nms: SoftNmsRules | None = None
    voting: VotingRules | None = None
    box_augmentation: BoxAugmentation | None = None
    mask_augmentation: MaskAugmentation | None = None
    keypoint_augmentation: KeypointAugmentation | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """Is where the model came from: kind of checkpoint, SHA-256 of its weights, and the whole merged configuration as YAML text."""

    kind: str
    weights_sha256: str
    config_yaml: str


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Is the whole specification of one model file.

    `class_names` are the K - 1 foreground names in class order; `class_names_known` is False where the checkpoint did not say them
    (they are class_1, class_2, .. then). `given_proposals` is there where the model has no proposals of its own and wants them fed.
    `seams` name tensors at which the graph may be cut; a model has those of its parts:

    - `images`: its inputs that come from pictures;
    - `given_rois`: its inputs `rois` (U, 5) without repetitions, `roi_index` (T,) of each proposal's row there, `roi_count` (N,);
    - `features`;
    - `proposals`: boxes in original pixels, scores, count;
    - `raw`: rois, their count, class probabilities, box deltas;
    - `candidates` (one-stage models): decoded boxes, scores, classes, levels, before any threshold and NMS;
    - `detections`: boxes, scores, classes, count;
    - `mask_rois` (rois (M, 5) of the detections, their classes) and `masks` (their class's probabilities, row by row);
    - `keypoint_rois` and `keypoints` (maps, row by row);
    - `track_rois` (rois (M, 5) of the detections) and `tracks` (the similarity of every row of the first picture with every row of the
      others, first picture's rows outermost), which no whole model gives: they are for a stage over two pictures;
    - `classification`: the probabilities (N, K) of whole pictures.

    `precision` is the type of the trunk's layers; inputs, outputs and tensors at seams have the same types in all of them.
    `taps` are further outputs, by Caffe2's blob name.

    `labels_are_category_ids`: class k is the dataset's category of id k (torchvision's COCO models have 90 labels for 80 categories);
    it decides where names are not known and the numbers of classes and categories differ.
    """

    architecture: str
    tasks: tuple[Task, ...]
    class_names: tuple[str, ...]
    class_names_known: bool
    conventions: Conventions
    images: ImageRules | None
    detection: DetectionRules | None
    seams: Mapping[str, tuple[str, ...]]
    source: Source
    precision: Precision = "fp32"
    taps: tuple[str, ...] = ()
    given_proposals: GivenProposals | None = None
    masks: MaskRules | None = None
    keypoints: KeypointRules | None = None
    tracks: TrackRules | None = None
    test: TestOptions = TestOptions()
    labels_are_category_ids: bool = False
    format_version: int = FORMAT_VERSION

    @property
    def num_classes(self) -> int:
        """Is K, background included."""
        return len(self.class_names) + 1

    @property
    def image_rules(self) -> ImageRules:
        """Is how pictures become network input.

        Raises:
            ModelError: the model was exported without a configuration, which would say so.
        """
        if self.images is None:
            raise ModelError(
                "this model says nothing of pictures: it was exported without a configuration (--cfg), and runs over none"
            )
        return self.images

    def to_json(self) -> str:
        """Returns the JSON text that a model file carries; the same spec gives the same text.

        Raises:
            ExportError: a setting is out of its range, so that no run could use the model.
        """
        faults = find_faults(self)
        if faults:
            raise ExportError("no run could use a model with these settings; correct them:\n  " + "\n  ".join(faults))
        return json.dumps(plain_from_record(self), indent=1, ensure_ascii=False)


def spec_from_json(text: str, *, where: str) -> ModelSpec:
    """Reads a spec back.

    Raises:
        ModelError: the text is not JSON, not of this format version, or a field is wrong or out of its range.
    """
    try:
        plain = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{where}: its specification is not JSON ({error}); export the model again") from error
    version = plain.get("format_version") if isinstance(plain, dict) else None
    if version != FORMAT_VERSION:
        raise ModelError(
            f"{where}: its specification has format version {version!r}, this roiline reads {FORMAT_VERSION}; export the model again"
        )
    spec = record_from_plain(ModelSpec, plain, where=f"{where}: specification", error=ModelError)
    faults = find_faults(spec)
    if faults:
        raise ModelError(
            f"{where}: its specification cannot be used; export the model again:\n  " + "\n  ".join(faults)
        )
    return spec
