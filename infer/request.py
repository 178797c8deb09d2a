"""What a dataset run is asked to do, and what it answers: plain values, shared by the command line, the pool and the workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from roiline.core.errors import UsageError
from roiline.core.spec import ModelSpec, Task
from roiline.engines.protocol import Device
from roiline.infer.pictures import MAX_PIXELS, TruncatedPolicy

BatchMode: TypeAlias = Literal["exact", "padded"]
ExifPolicy: TypeAlias = Literal["as-source", "apply", "ignore"]

FORMATS: Mapping[Task, tuple[str, ...]] = {
    "proposals": ("detectron", "detectron2", "mmdet", "parquet"),
    "detections": ("detectron", "coco", "parquet"),
    "classification": ("json",),
}
DEFAULT_FORMATS: Mapping[Task, tuple[str, ...]] = {
    "proposals": ("detectron",),
    "detections": ("coco",),
    "classification": ("json",),
}
LARGEST_BATCH = 4096
IMAGE_TIMEOUT_S = 600.0
"""How long a picture may take unless a run says otherwise: far beyond what any takes, short beside a run."""
LONGEST_TIMEOUT_S = 1e6
LONGEST_SIDE = 16384
"""Of the network's input in pixels: beyond it one picture alone takes gigabytes."""
MOST_DETECTIONS = 1_000_000
MODEL_PREDICTOR = "roiline.infer.model:open_predictor"


@dataclass(frozen=True, slots=True)
class RunOverrides:
    """Is what a run changes of the model's own settings; None leaves a setting as the model has it."""

    score_thresh: float | None = None
    nms_thresh: float | None = None
    max_dets: int | None = None
    scale: int | None = None
    max_size: int | None = None

    @property
    def changes_thresholds(self) -> bool:
        """Says whether the run changes what becomes a detection."""
        return any(value is not None for value in (self.score_thresh, self.nms_thresh, self.max_dets))


@dataclass(frozen=True, slots=True)
class Companions:
    """Is the model files that work together with a run's model: one that makes its proposals, and others whose answers are combined."""

    proposals_from: Path | None = None
    others: tuple[Path, ...] = ()


NO_COMPANIONS = Companions()


def check_overrides(overrides: RunOverrides) -> None:
    """Checks that every overridden setting is a value that can be meant.

    Raises:
        UsageError: one is not finite or out of its range.
    """
    ranges: dict[str, tuple[float | None, float, float]] = {
        "--score-thresh": (overrides.score_thresh, 0, 1),
        "--nms": (overrides.nms_thresh, 0, 1),
        "--max-dets": (overrides.max_dets, 0, MOST_DETECTIONS),
        "--scale": (overrides.scale, 1, LONGEST_SIDE),
        "--max-size": (overrides.max_size, 1, LONGEST_SIDE),
    }
    for option, (value, least, most) in ranges.items():
        if value is not None and not least <= value <= most:
            raise UsageError(f"{option}: expected a value from {least} to {most}, got {value}")


def spec_with_overrides(spec: ModelSpec, overrides: RunOverrides) -> ModelSpec:
    """Returns the specification that governs a run: the model's own with what the run overrides; applying it again changes nothing.

    Raises:
        UsageError: an overridden setting is out of its range.
    """
    check_overrides(overrides)
    images = replace(
        spec.image_rules,
        scale=spec.image_rules.scale if overrides.scale is None else overrides.scale,
        max_size=spec.image_rules.max_size if overrides.max_size is None else overrides.max_size,
    )
    detection = spec.detection
    if detection is not None:
        chosen: dict[str, Any] = {
            "score_thresh": overrides.score_thresh,
            "nms_thresh": overrides.nms_thresh,
            "max_dets": overrides.max_dets,
        }
        detection = replace(detection, **{name: value for name, value in chosen.items() if value is not None})
    return replace(spec, images=images, detection=detection)


@dataclass(frozen=True, slots=True)
class DataSource:
    """Is one DATA of the command line, with the options that belong to it; `source` is several paths where they are single pictures."""

    source: str | tuple[str, ...]
    images: Path | None = None
    split: str | None = None
    proposals: Path | None = None


@dataclass(frozen=True, slots=True)
class Slot:
    """Is the place of one worker: its device as the worker will see it, and the environment that makes it see it so."""

    device: Device
    environment: Mapping[str, str] = field(default_factory=dict)
    label: str = "cpu"


@dataclass(frozen=True, slots=True)
class RunRequest:
    """Is a whole dataset run.

    `id_range` is half-open over image positions in ascending order of image ids; `limit` takes the first images of it.
    `predictor` names the function that a worker calls to open the model, as `module:function`. A worker that is
    silent for `image_timeout_s` a picture in its hands is ended (0: never). Pictures of more than `max_pixels` pixels
    fail unread. `cluster` is the address of the Ray cluster that the slots are on, None for this machine.
    """

    model: Path
    task: Task
    data: tuple[DataSource, ...]
    out: Path
    slots: tuple[Slot, ...]
    engine: str = "auto"
    batch_size: int = 1
    batch_mode: BatchMode = "exact"
    exif: ExifPolicy = "as-source"
    overrides: RunOverrides = field(default_factory=RunOverrides)
    formats: tuple[str, ...] = ()
    id_range: tuple[int, int] | None = None
    limit: int | None = None
    class_names: tuple[str, ...] | None = None
    fresh: bool = False
    companions: Companions = NO_COMPANIONS
    traced: bool = False
    predictor: str = MODEL_PREDICTOR
    max_pixels: int = MAX_PIXELS
    truncated: TruncatedPolicy = "skip"
    image_timeout_s: float = IMAGE_TIMEOUT_S
    cluster: str | None = None

    @property
    def models(self) -> tuple[Path, ...]:
        """Are all model files that a worker opens."""
        proposer = self.companions.proposals_from
        return (self.model, *self.companions.others, *(() if proposer is None else (proposer,)))


@dataclass(frozen=True, slots=True)
class RunSummary:
    """Is how a run ended: its exit code, how many images it has, how many failed, and the result files.

    `degraded` counts the images whose pictures are not whole and were used all the same.
    """

    exit_code: int
    images: int
    failed: int
    files: tuple[Path, ...]
    degraded: int = 0
