"""run.json: what a run is, so that it can go on, be joined with others, and be understood later.

The identity of a run is the SHA-256 of its settings: everything that changes answers, and nothing else. Workers, devices, batch size (in
batch mode `exact`) and formats may change when a run goes on.
"""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from roiline.core.errors import DataError, UsageError
from roiline.core.files import read_json_object, sha256_of_file, write_json
from roiline.core.records import plain_from_record, record_from_plain
from roiline.core.spec import Task
from roiline.infer.pictures import MAX_PIXELS
from roiline.infer.request import BatchMode, RunOverrides
from roiline.infer.result_rows import Part
from roiline.ops.keypoint_decode import KeypointConfidence

FORMAT_VERSION = 1
RUN_FILE = "run.json"
FAILED_FILE = "failed.json"
TIMING_FILE = "timing.json"
SHARDS_FOLDER = "shards"


@dataclass(frozen=True, slots=True)
class RunSettings:
    """Is all that determines a run's answers.

    `id_range` is what is really run over, in positions by ascending image id. `batch_size` is None in batch mode `exact`, where it
    changes nothing. `truncated` is `skip` too of runs that stop at a picture that is cut short, as they have none. `proposals` is the
    SHA-256 of a file of given proposals, `proposals_from` and `others` those of companion models.
    """

    model_sha256: str
    engine: str
    precision: str
    task: Task
    dataset: str
    id_range: tuple[int, int]
    exif: str
    batch_mode: BatchMode
    batch_size: int | None
    overrides: RunOverrides
    proposals: str | None = None
    proposals_from: str | None = None
    others: tuple[str, ...] = ()
    max_pixels: int = MAX_PIXELS
    truncated: Literal["skip", "accept"] = "skip"

    @property
    def identity(self) -> str:
        """Is the SHA-256 of these settings."""
        text = json.dumps(plain_from_record(self), sort_keys=True, allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class ResultClass:
    """Is one foreground class of the results: the dataset's category id and name."""

    category_id: int
    name: str


@dataclass(frozen=True, slots=True)
class DatasetRecord:
    """Is the dataset of a run: how it was named, and how many images the whole of it has."""

    name: str
    kind: str
    source: str
    total: int
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Manifest:
    """Is the content of run.json.

    `classes` are in the order of the results' classes, 1 first; `class_order[k]` is the result's class for the model's class k
    (class_order[0] is 0). `parts` are what detections have beside boxes, `keypoint_confidence` is the score that keypoints are written with
    (None: there are none). `shard_sizes` are the images of each shard. `named_range` is the range that result files are named after.
    `request` is what was asked for as JSON, `environment` what did it. `files` are the SHA-256, by name, of the result files and of
    failed.json as a finished run left them.
    """

    format_version: int
    identity: str
    settings: RunSettings
    dataset: DatasetRecord
    classes: tuple[ResultClass, ...]
    class_order: tuple[int, ...]
    plus_one: bool
    config_yaml: str
    shard_sizes: tuple[int, ...]
    named_range: tuple[int, int] | None
    started_at: float
    finished: bool
    request: Mapping[str, str | int | bool | None] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    workers: tuple[Mapping[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    parts: tuple[Part, ...] = ()
    keypoint_confidence: KeypointConfidence | None = None
    files: Mapping[str, str] = field(default_factory=dict)

    @property
    def images(self) -> int:
        """Is how many images the run has."""
        return self.settings.id_range[1] - self.settings.id_range[0]

    @property
    def joined(self) -> bool:
        """Says whether the run was joined from others: it has no shards of its own."""
        return not self.shard_sizes and self.images > 0


def read_manifest(out: Path) -> Manifest | None:
    """Reads `run.json` of an OUT folder; None where there is none.

    Raises:
        DataError: it is damaged or of another format version.
    """
    path = out / RUN_FILE
    if not path.exists():
        return None
    plain = read_json_object(path, format_version=FORMAT_VERSION)
    manifest = record_from_plain(Manifest, plain, where=str(path))
    if manifest.identity != manifest.settings.identity:
        raise DataError(f"{path}: damaged: its identity does not fit its settings; start over with --fresh")
    start, end = manifest.settings.id_range
    if not 0 <= start <= end <= manifest.dataset.total:
        raise DataError(
            f"{path}: damaged: expected a range within the dataset's {manifest.dataset.total} images, got [{start}, {end})"
        )
    if not manifest.joined and (
        min(manifest.shard_sizes, default=1) < 1 or sum(manifest.shard_sizes) != manifest.images
    ):
        raise DataError(
            f"{path}: damaged: expected shards of {manifest.images} images in all, got {sum(manifest.shard_sizes)}"
        )
    return manifest


def write_manifest(out: Path, manifest: Manifest) -> None:
    """Writes `run.json` durably."""
    write_json(out / RUN_FILE, plain_from_record(manifest))


def digest_files(paths: Iterable[Path]) -> dict[str, str]:
    """Returns the SHA-256 of each file by its name, without those that are not there."""
    return {path.name: sha256_of_file(path) for path in paths if path.is_file()}


def check_same_run(out: Path, before: RunSettings, now: RunSettings) -> None:
    """Compares the settings of the run in `out` with those asked for now.

    Raises:
        UsageError: they differ; the message lists what.
    """
    differences = differing_settings(before, now)
    if differences:
        listed = "\n".join(f"  {name}: {old} there, {new} now" for name, old, new in differences)
        raise UsageError(
            f"{out}: holds another run; what differs:\n{listed}\nchoose another folder, or start over there with --fresh"
        )


def differing_settings(before: RunSettings, now: RunSettings) -> list[tuple[str, Any, Any]]:
    """Returns (name, before, now) of each setting that differs, overrides one by one."""
    old, new = plain_from_record(before), plain_from_record(now)
    for plain in (old, new):
        plain.update({f"overrides.{name}": value for name, value in plain.pop("overrides").items()})
    return [(name, old[name], new[name]) for name in old if old[name] != new[name]]


def describe_environment() -> dict[str, str]:
    """Returns the versions that matter for answers and speed."""
    versions = {"python": sys.version.split()[0], "platform": platform.platform()}
    for package in ("roiline", "numpy", "opencv-python-headless", "opencv-python", "onnx"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue  # an installation has one of the two OpenCV packages
    return versions
