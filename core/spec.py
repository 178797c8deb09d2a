"""The specification that a model file carries: all that an engine and a run must know, and nothing of how it was made.

It is JSON in the ONNX file's `metadata_props` under `roiline`. Conventions (are widths x2 - x1 + 1, does NMS suppress at equality,
how is a picture resized) are data here, consumed by the operators and the image preparation; no code asks where a model came from.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from roiline.core.errors import ModelError
from roiline.core.records import plain_from_record, record_from_plain

FORMAT_VERSION = 1
METADATA_KEY = "roiline"

Task: TypeAlias = Literal["proposals", "detections"]
TASKS: tuple[Task, ...] = ("proposals", "detections")


@dataclass(frozen=True, slots=True)
class Conventions:
    """Is one code base's way with boxes.

    `plus_one`: corners are inclusive, a width is x2 - x1 + 1. `nms_inclusive`: NMS suppresses at IoU >= threshold, else only above.
    `roi_half_pixel`: RoIAlign shifts coordinates by -0.5 (the `aligned` form). `delta_clip`: upper bound of dw and dh, ln of a ratio.
    """

    name: str
    plus_one: bool
    nms_inclusive: bool
    roi_half_pixel: bool
    delta_clip: float


@dataclass(frozen=True, slots=True)
class ImageRules:
    """Is how a picture becomes network input.

    `channel_order` of the network; `means` are subtracted per channel in that order, then values are divided by `stds`.
    The shorter side becomes `scale` pixels unless the longer would exceed `max_size`. `resize` names the sampling rule: `detectron`
    subtracts first and samples floats by the scale factor itself (not by the ratio of sizes). Height and width are padded at the bottom
    and right with zeros to multiples of `pad_multiple` (1: no padding). `exif`: whether the source reads pictures upright.
    """

    channel_order: Literal["BGR", "RGB"]
    means: tuple[float, float, float]
    stds: tuple[float, float, float]
    scale: int
    max_size: int
    resize: Literal["detectron"]
    pad_multiple: int
    exif: Literal["apply", "ignore"]


@dataclass(frozen=True, slots=True)
class DetectionRules:
    """Is how raw class scores and boxes become detections: scores above `score_thresh`, NMS per class, at most `max_dets` a picture.

    `max_dets` <= 0: no limit. `class_agnostic`: one regressed box serves all classes. `bbox_reg_weights` divide (dx, dy, dw, dh).
    """

    score_thresh: float
    nms_thresh: float
    max_dets: int
    class_agnostic: bool
    bbox_reg_weights: tuple[float, float, float, float]


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
    (they are class_1, class_2, .. then). `seams` name tensors at which the graph may be cut: `images` (its inputs), `proposals`
    (boxes in original pixels, scores, count), `raw` (rois, their count, class probabilities, box deltas), `detections`
    (boxes, scores, classes, count), `features`. A model has the seams of its tasks.
    """

    architecture: str
    tasks: tuple[Task, ...]
    class_names: tuple[str, ...]
    class_names_known: bool
    conventions: Conventions
    images: ImageRules
    detection: DetectionRules | None
    seams: Mapping[str, tuple[str, ...]]
    source: Source
    precision: Literal["fp32", "fp16", "bf16", "int8"] = "fp32"
    taps: tuple[str, ...] = ()
    format_version: int = FORMAT_VERSION

    @property
    def num_classes(self) -> int:
        """Is K, background included."""
        return len(self.class_names) + 1

    def to_json(self) -> str:
        """Returns the JSON text that a model file carries; the same spec gives the same text."""
        return json.dumps(plain_from_record(self), indent=1, ensure_ascii=False)


def spec_from_json(text: str, *, where: str) -> ModelSpec:
    """Reads a spec back.

    Raises:
        ModelError: the text is not JSON, not of this format version, or a field is wrong.
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
    return record_from_plain(ModelSpec, plain, where=f"{where}: specification", error=ModelError)
