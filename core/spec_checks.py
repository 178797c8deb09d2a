"""What a specification must say to be one of ours: the seams of its tasks, and settings within the ranges that runs can work with.

The fields' types are checked where the JSON is decoded; here are the rules between values, for a file that was damaged or changed by hand.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from roiline.core.spec import Augmentation, ImageRules, ModelSpec

LONGEST_SIDE = 1 << 16
"""The largest side in pixels of a network input; strides, masks and heatmaps are no larger either."""

MOST_KEYPOINTS = 1 << 12

_SEAM_LENGTHS = {
    "proposals": 3,
    "detections": 4,
    "classification": 1,
    "given_rois": 3,
    "raw": 4,
    "candidates": 4,
    "mask_rois": 2,
    "masks": 1,
    "keypoint_rois": 1,
    "keypoints": 1,
    "track_rois": 1,
    "tracks": 1,
}
_NEEDED_BESIDE = {"masks": "mask_rois", "keypoints": "keypoint_rois", "tracks": "track_rois"}


def find_faults(spec: ModelSpec) -> tuple[str, ...]:
    """Returns what is wrong with a specification, one phrase each; a good one has none."""
    return (*_check_seams(spec), *_check_images(spec.images), *_check_detection(spec), *_check_parts(spec))


def _check_seams(spec: ModelSpec) -> Iterator[str]:
    for name in (*spec.tasks, *(("images",) if spec.tasks else ())):
        if not spec.seams.get(name):
            yield f"seams: the model is said to be for {' and '.join(spec.tasks)}, but has no seam `{name}`"
    for name, length in _SEAM_LENGTHS.items():
        if name in spec.seams and len(spec.seams[name]) != length:
            yield f"seams.{name}: expected the names of {length} tensors, got {len(spec.seams[name])}"
    for name, beside in _NEEDED_BESIDE.items():
        if name in spec.seams and beside not in spec.seams:
            yield f"seams: the model has the seam `{name}`, but no `{beside}`"
    rules = {"masks": spec.masks, "keypoints": spec.keypoints, "tracks": spec.tracks}
    for name, given in rules.items():
        if name in spec.seams and given is None:
            yield f"{name}: the model has the seam `{name}`, but no rules for it"
    if spec.tasks and spec.images is None:
        yield "images: the model is for pictures, but says nothing of them"


def _check_images(rules: ImageRules | None) -> Iterator[str]:
    if rules is None:
        return
    least = 0 if rules.resize == "detectron2" else 1
    yield from _check_range("images.scale", rules.scale, least, LONGEST_SIDE)
    if rules.resize.endswith("_stretch"):
        yield from _check_range("images.max_size", rules.max_size, 1, LONGEST_SIDE)
    else:
        yield from _check_range("images.max_size", rules.max_size, 1)
    yield from _check_range("images.pad_multiple", rules.pad_multiple, 1, LONGEST_SIDE)
    if rules.divisor <= 0:
        yield f"images.divisor: expected a number above 0, got {rules.divisor}"
    if 0 in rules.stds:
        yield f"images.stds: expected numbers other than 0, got {rules.stds}"


def _check_detection(spec: ModelSpec) -> Iterator[str]:
    rules = spec.detection
    if rules is not None:
        if 0 in rules.bbox_reg_weights:
            yield f"detection.bbox_reg_weights: expected numbers other than 0, got {rules.bbox_reg_weights}"
        yield from _check_range("detection.first_class", rules.first_class, 0, 1)
    soft = spec.test.soft_nms
    if soft is not None and soft.sigma <= 0:
        yield f"test.soft_nms.sigma: expected a number above 0, got {soft.sigma}"


def _check_parts(spec: ModelSpec) -> Iterator[str]:
    if spec.masks is not None:
        yield from _check_range("masks.resolution", spec.masks.resolution, 1, LONGEST_SIDE)
    if spec.keypoints is not None:
        yield from _check_range("keypoints.count", spec.keypoints.count, 1, MOST_KEYPOINTS)
        yield from _check_range("keypoints.min_size", spec.keypoints.min_size, most=LONGEST_SIDE)
    for name in ("box_augmentation", "mask_augmentation", "keypoint_augmentation"):
        augmentation = getattr(spec.test, name)
        if augmentation is not None:
            yield from _check_passes(f"test.{name}.passes", augmentation.passes)


def _check_passes(where: str, passes: Augmentation) -> Iterator[str]:
    for scale in passes.scales:
        yield from _check_range(f"{where}.scales", scale, 1, LONGEST_SIDE)
    yield from _check_range(f"{where}.max_size", passes.max_size, 1)
    for ratio in passes.aspect_ratios:
        if not 1 / LONGEST_SIDE <= ratio <= LONGEST_SIDE:
            yield f"{where}.aspect_ratios: expected a number from 1 / {LONGEST_SIDE} to {LONGEST_SIDE}, got {ratio}"


def _check_range(where: str, value: int, least: int | None = None, most: int | None = None) -> Iterator[str]:
    if (least is not None and value < least) or (most is not None and value > most):
        bounds = [f"at least {least}"] if least is not None else []
        bounds += [f"at most {most}"] if most is not None else []
        yield f"{where}: expected {' and '.join(bounds)}, got {value}"
