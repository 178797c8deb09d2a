"""What the parent and a worker say to each other over their pipe: plain values, pickled by the connection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

from roiline.core.spec import Task
from roiline.core.structures import Float32, ImageId
from roiline.core.timing import Samples, Span
from roiline.engines.protocol import Device
from roiline.infer.pictures import MAX_PIXELS, TruncatedPolicy
from roiline.infer.request import NO_COMPANIONS, BatchMode, Companions, RunOverrides


@dataclass(frozen=True, slots=True)
class Setup:
    """Is the first message to a worker: what to open, and how to work.

    `exif` is resolved. `readers` is how many threads read beside the model (0: pictures are read when the model comes to them),
    `read_ahead` how many images may be on their way to it.
    """

    python_path: tuple[str, ...]
    predictor: str
    model: Path
    task: Task
    device: Device
    engine: str
    overrides: RunOverrides
    exif: Literal["apply", "ignore"]
    batch_size: int
    batch_mode: BatchMode
    readers: int
    read_ahead: int
    companions: Companions = NO_COMPANIONS
    traced: bool = False
    max_pixels: int = MAX_PIXELS
    truncated: TruncatedPolicy = "skip"


class ImageWork(NamedTuple):
    """Is one image to work on: its position in the run, its id, its file, and its (height, width) where the dataset knows it.

    There are many of these: a tuple travels several times faster than a dataclass, and a string than a `Path`.

    `proposals` (R, 4) in original pixels are given where the model makes none.
    """

    position: int
    image_id: ImageId
    path: str
    size_hw: tuple[int, int] | None
    proposals: Float32 | None = None


@dataclass(frozen=True, slots=True)
class ShardWork:
    """Is one shard to work on, and where and how to write it.

    `key` is the scheduler's number of the shard, `index` the shard's own within its dataset. `careful`: one batch at a time, nothing read
    ahead. Images in `skip` (position -> reason) are not touched.
    """

    key: int
    index: int
    path: Path
    identity: str
    images: tuple[ImageWork, ...]
    careful: bool = False
    skip: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Stop:
    """Tells a worker to finish the shards that it has begun, to drop the others, and to go."""


@dataclass(frozen=True, slots=True)
class Ready:
    """Says that the model is open and warm: what was got, and what that took."""

    description: Mapping[str, str]
    warm_up: Samples


@dataclass(frozen=True, slots=True)
class Refused:
    """Says that the model could not be opened, for a reason that trying again does not change: an error's class name and text."""

    kind: str
    text: str


class Started(NamedTuple):
    """Says that an image is touched from now on. This and `Finished` come for every image: a tuple travels several times faster."""

    key: int
    position: int


class Finished(NamedTuple):
    """Says that an image has its result, or failed with the reason `failure`.

    `detect_s` is its share of preparing and inferring, `misc_s` of post-processing, in seconds.
    """

    key: int
    position: int
    failure: str | None
    detect_s: float = 0.0
    misc_s: float = 0.0


class Several(NamedTuple):
    """Brings reports of images together, in their order: a message costs far more than what it says."""

    reports: tuple[Started | Finished, ...]


@dataclass(frozen=True, slots=True)
class Done:
    """Says that a shard is on the disk, with what each lane measured since the last time."""

    key: int
    lanes: Mapping[str, Samples]


@dataclass(frozen=True, slots=True)
class Failing:
    """Says that the worker cannot go on, as its last word: the reason in one line, and the trace for the log."""

    reason: str
    trace: str


@dataclass(frozen=True, slots=True)
class Unwritable:
    """Says that results cannot be put on the disk, and why: no other worker and no other try could do better."""

    reason: str


@dataclass(frozen=True, slots=True)
class CutShort:
    """Says that a picture is cut short, which the run is to stop at, and which."""

    reason: str


@dataclass(frozen=True, slots=True)
class Left:
    """Says that the worker goes as it was told to; `spans` are all of each lane's where the run is traced."""

    lanes: Mapping[str, Samples]
    spans: Mapping[str, Sequence[Span]] = field(default_factory=dict)


Order: TypeAlias = Setup | ShardWork | Stop
Report: TypeAlias = Ready | Refused | Started | Finished | Several | Done | Failing | Unwritable | CutShort | Left
