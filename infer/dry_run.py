"""What a run would do, without doing it: `--dry-run`."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from roiline.core.files import read_json_object
from roiline.core.spec import ModelSpec
from roiline.core.timing import FORMAT_VERSION
from roiline.engines.registry import resolve_engine
from roiline.infer.dataset_run import DatasetRun, digest_models, load_datasets, prepare_dataset_run
from roiline.infer.manifest import TIMING_FILE
from roiline.infer.outputs import result_paths
from roiline.infer.progress import format_duration
from roiline.infer.request import RunRequest, spec_with_overrides
from roiline.infer.run import complete_request, read_fitting_spec

_PROPOSAL_BYTES = 20
_DETECTION_BYTES = 28
_SCORE_BYTES = 4
_MOST_PROPOSALS = 2000  # the largest RPN_POST_NMS_TOP_N of the published configurations


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """Is what a run would do with one dataset.

    `missing` counts picture files that are not there, `shapes` the images of each padded network shape (as `HxW`, most frequent first;
    `unknown` where the file cannot be read). `disk_bytes` is an upper estimate of the shards, None where the model sets no limit or has
    taps, which depend on the pictures.
    `seconds` is by the rate of an earlier start in the same folder, None without one.
    """

    out: Path
    dataset: str
    images: int
    missing: int
    shapes: Mapping[str, int]
    shards: int
    shards_left: int
    images_left: int
    files: tuple[Path, ...]
    disk_bytes: int | None
    seconds: float | None


def plan_run(request: RunRequest) -> tuple[PlannedRun, ...]:
    """Returns what `run_dataset` would do, one entry a dataset; nothing is written and no engine is opened.

    Raises:
        UsageError: options do not fit together, or OUT holds another run.
        InputError: the model or a dataset cannot be used.
    """
    request = complete_request(request)
    spec = read_fitting_spec(request)
    engine, digests = resolve_engine(request.engine, request.model), digest_models(request)
    rate = _earlier_rate(request.out)
    planned = []
    for data, (out, dataset) in zip(request.data, load_datasets(request, spec), strict=True):
        run = prepare_dataset_run(request, spec, out, dataset, data=data, engine=engine, digests=digests)
        planned.append(_describe_run(run, request, spec, rate))
    return tuple(planned)


def _describe_run(run: DatasetRun, request: RunRequest, spec: ModelSpec, rate: float | None) -> PlannedRun:
    shapes = Counter("unknown" if shape == (0, 0) else f"{shape[0]}x{shape[1]}" for shape in run.shapes)
    left = len(run.entries) - run.images_done
    return PlannedRun(
        out=run.out,
        dataset=run.dataset.name,
        images=len(run.entries),
        missing=sum(not os.path.isfile(entry.path) for entry in run.entries),
        shapes=dict(shapes.most_common()),
        shards=len(run.shards),
        shards_left=len(run.shards_left),
        images_left=left,
        files=result_paths(run.out, run.manifest, request.formats),
        disk_bytes=_disk_bytes(len(run.entries), request, spec),
        seconds=left / rate if rate else None,
    )


def _disk_bytes(images: int, request: RunRequest, spec: ModelSpec) -> int | None:
    if spec.taps:
        return None
    if request.task == "proposals":
        return images * _MOST_PROPOSALS * _PROPOSAL_BYTES
    if request.task == "classification":
        return images * spec.num_classes * _SCORE_BYTES
    rules = spec_with_overrides(spec, request.overrides).detection
    if rules is None or rules.max_dets <= 0 or spec.masks is not None:
        return None
    keypoints = 0 if spec.keypoints is None else 12 + 16 * spec.keypoints.count
    return images * rules.max_dets * (_DETECTION_BYTES + keypoints)


def _earlier_rate(out: Path) -> float | None:
    path = out / TIMING_FILE
    if not path.exists():
        return None
    rate = read_json_object(path, format_version=FORMAT_VERSION).get("images_per_s")
    return float(rate) if isinstance(rate, (int, float)) and rate > 0 else None


def describe_run(request: RunRequest) -> str:
    """Returns what `plan_run` found as text for people.

    Raises:
        UsageError: options do not fit together, or OUT holds another run.
        InputError: the model or a dataset cannot be used.
    """
    request = complete_request(request)
    workers = ", ".join(slot.label for slot in request.slots)
    lines = [f"{request.task} with {request.model} on {len(request.slots)} worker(s): {workers}"]
    for planned in plan_run(request):
        shapes = ", ".join(f"{shape}: {count}" for shape, count in planned.shapes.items())
        disk = (
            "not limited by the model" if planned.disk_bytes is None else f"at most {planned.disk_bytes / 1e6:.1f} MB"
        )
        time = "unknown until a first start" if planned.seconds is None else format_duration(planned.seconds)
        lines += [
            f"{planned.dataset} -> {planned.out}",
            f"  images: {planned.images} ({planned.missing} files missing), left to do: {planned.images_left}",
            f"  shards: {planned.shards}, left: {planned.shards_left}",
            f"  network shapes (height x width: images): {shapes}",
            f"  disk for shards: {disk}; time: {time}",
            f"  files: {', '.join(path.name for path in planned.files)}",
        ]
    return "\n".join(lines)
