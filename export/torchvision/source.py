"""A torchvision checkpoint and its options as an architecture, blobs, and the rules of a model's specification."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from roiline.core.errors import ConfigError, WeightError
from roiline.core.spec import Conventions, DetectionRules, ImageRules, KeypointRules, MaskRules
from roiline.export.architecture import Architecture
from roiline.export.checkpoints import Checkpoint
from roiline.export.torchvision.bodies import read_mobilenet, read_pyramid, read_resnet
from roiline.export.torchvision.heads import (
    read_box_head,
    read_keypoint_head,
    read_mask_head,
    read_retinanet,
    read_rpn,
)
from roiline.export.torchvision.options import Options
from roiline.export.torchvision.state import StateReader

_DELTA_CLIP = math.log(1000.0 / 16)
_SMALLEST_SIDE = 1e-2  # fixed in torchvision's RoIHeads
_MASK_THRESHOLD = 0.5
_COARSEST_STRIDE = 32

_EPSILON = 1e-5
# The first eight digits of the SHA-256 of torchvision's own files whose frozen norms have no epsilon; their names carry them.
_WITHOUT_EPSILON = ("258fb6c6", "bf2d0c1e", "fc266e95", "eeacb38b")

_OTHER_HEADS = (("roi_heads.mask_", "mask head"), ("roi_heads.keypoint_", "keypoint head"))
_AFTER_PROPOSALS = "roi_heads."


@dataclass(frozen=True, slots=True)
class TorchvisionSource:
    """Is a model read: what it is made of, its blobs by our names, and notes about what was taken for granted or left out."""

    architecture: Architecture
    state: StateReader
    notes: tuple[str, ...]


def read_source(checkpoint: Checkpoint, options: Options, *, proposals_only: bool) -> TorchvisionSource:
    """Reads a checkpoint as the model that the options name, without its heads where only proposals are wanted.

    Raises:
        WeightError: tensors are missing, or are of another network.
        ConfigError: the options do not fit the weights.
        ExportError: the network is one that cannot be expressed.
    """
    notes = list(checkpoint.notes)
    epsilon = _choose_epsilon(checkpoint, options)
    state = StateReader(checkpoint.tensors, checkpoint.source, epsilon=_EPSILON if epsilon is None else epsilon)
    if epsilon is None and state.frozen:
        notes.append(
            "the weights are of frozen batch norms, whose epsilon a state dict does not tell: 1e-05 was taken; torchvision's own first "
            "COCO weights want `norm_eps: 0` in --cfg"
        )
    architecture = _read_architecture(state, options, proposals_only=proposals_only)
    state.raise_if_missing(options.arch)
    notes += _explain_leftovers(state, options, proposals_only=proposals_only)
    return TorchvisionSource(architecture, state, tuple(notes))


def _choose_epsilon(checkpoint: Checkpoint, options: Options) -> float | None:
    given: float | None = options["norm_eps"]
    return 0.0 if given is None and checkpoint.sha256.startswith(_WITHOUT_EPSILON) else given


def _read_architecture(state: StateReader, options: Options, *, proposals_only: bool) -> Architecture:
    model = options.model
    body = read_resnet(state, options) if model.body == "resnet" else read_mobilenet(state)
    pyramid = read_pyramid(state, options, body)
    trunk = Architecture(
        name=options.arch,
        body=body,
        pyramid=pyramid,
        rpn=None,
        head=None,
        detection=None,
        conventions=_conventions(),
    )
    if model.one_stage:
        retinanet = read_retinanet(state, options, pyramid)
        return replace(trunk, retinanet=retinanet, detection=_one_stage_rules(options))
    proposer = replace(trunk, rpn=read_rpn(state, options, pyramid))
    if proposals_only:
        return proposer
    head = read_box_head(state, options, pyramid)
    classes = head.outputs.num_classes
    return replace(
        proposer,
        head=head,
        detection=_two_stage_rules(options),
        mask_head=read_mask_head(state, options, pyramid, classes) if model.mask else None,
        keypoint_head=read_keypoint_head(state, options, pyramid) if model.keypoints else None,
    )


def _explain_leftovers(state: StateReader, options: Options, *, proposals_only: bool) -> list[str]:
    """Returns notes about tensors of whole heads that the model does without.

    Raises:
        WeightError: other tensors are left: the weights are of another network, and this one would compute something else.
    """
    left = state.leftovers
    heads = [(_AFTER_PROPOSALS, "heads")] if proposals_only else list(_OTHER_HEADS)
    notes = []
    for prefix, name in heads:
        here = [key for key in left if key.startswith(prefix)]
        left = [key for key in left if not key.startswith(prefix)]
        if here:
            notes.append(f"the weights have {name} that this model does without ({len(here)} tensors)")
    if left:
        more = f"\n  .. and {len(left) - 12} more" if len(left) > 12 else ""
        raise WeightError(
            f"{state.source}: not the weights of {options.arch}: {len(left)} tensors have no place in it\n  "
            + "\n  ".join(left[:12])
            + more
        )
    return notes


# --- rules -----------------------------------------------------------------------------------------------------------


def _conventions() -> Conventions:
    """Returns torchvision's way with boxes."""
    return Conventions(
        name="torchvision",
        plus_one=False,
        nms_inclusive=False,
        roi_half_pixel=False,
        delta_clip=_DELTA_CLIP,
        network_frame=True,
        smallest_side=_SMALLEST_SIDE,
        ranked=True,
        level_epsilon="level",
    )


def image_rules_from_options(options: Options) -> ImageRules:
    """Returns how torchvision prepares a picture, read as it lies in the file.

    Raises:
        ConfigError: pictures are not padded so that every level of the pyramid has twice the cells of the next.
    """
    if options["size_divisible"] % _COARSEST_STRIDE:
        raise ConfigError(
            f"{options.source}: size_divisible: {options['size_divisible']}; multiples of {_COARSEST_STRIDE} can be exported"
        )
    fixed = options["fixed_size"]
    return ImageRules(
        channel_order="RGB",
        means=options["image_mean"],
        stds=options["image_std"],
        scale=options["min_size"] if fixed is None else fixed[0],
        max_size=options["max_size"] if fixed is None else fixed[1],
        resize="torchvision" if fixed is None else "torchvision_stretch",
        pad_multiple=options["size_divisible"],
        exif="ignore",
        divisor=255.0,
        extent="resized",
    )


def mask_rules_from_architecture(architecture: Architecture) -> MaskRules | None:
    """Returns how masks are made of probabilities; torchvision leaves the threshold to its users and speaks of 0.5."""
    head = architecture.mask_head
    return None if head is None else MaskRules(resolution=head.size, threshold=_MASK_THRESHOLD)


def keypoint_rules_from_architecture(architecture: Architecture) -> KeypointRules | None:
    """Returns how heatmaps are decoded."""
    head = architecture.keypoint_head
    return None if head is None else KeypointRules(head.count, 0, "bbox", nms_oks=False, network_frame=True)


def _two_stage_rules(options: Options) -> DetectionRules:
    return DetectionRules(
        score_thresh=options["box_score_thresh"],
        nms_thresh=options["box_nms_thresh"],
        max_dets=options["box_detections_per_img"],
        class_agnostic=False,
        bbox_reg_weights=options["bbox_reg_weights"],
    )


def _one_stage_rules(options: Options) -> DetectionRules:
    return DetectionRules(
        score_thresh=options["score_thresh"],
        nms_thresh=options["nms_thresh"],
        max_dets=options["detections_per_img"],
        class_agnostic=True,
        bbox_reg_weights=(1.0, 1.0, 1.0, 1.0),
        first_class=0,
        coarsest_score_thresh=None,
    )
