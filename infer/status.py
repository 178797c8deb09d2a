"""How far a run is, by what lies on the disk: read without a lock and without a device, also while the run goes on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from roiline.core.errors import DataError
from roiline.core.files import lock_holder, read_json_object
from roiline.infer.manifest import FAILED_FILE, FORMAT_VERSION, RUN_FILE, SHARDS_FOLDER, Manifest, read_manifest
from roiline.infer.progress import format_duration
from roiline.infer.shards import ShardFile, shard_path


@dataclass(frozen=True, slots=True)
class RunStatus:
    """Is how far one dataset's run is, by what lies on the disk.

    `images_per_s` and `eta_s` are by the shards written since the run was last started; None where none was. `holder` is the process
    that works on it now, None where none does.
    """

    out: Path
    dataset: str
    images: int
    done: int
    left: int
    failed: int
    finished: bool
    images_per_s: float | None
    eta_s: float | None
    holder: str | None = None


def read_status(out: Path) -> tuple[RunStatus, ...]:
    """Returns the status of the run in an OUT folder, one entry a dataset.

    Raises:
        DataError: there is no run, run.json is damaged, or the shards cannot be looked at.
    """
    folders = [out] if (out / RUN_FILE).exists() else sorted(path.parent for path in out.glob(f"*/{RUN_FILE}"))
    statuses = [
        _folder_status(folder, manifest) for folder in folders if (manifest := read_manifest(folder)) is not None
    ]
    if not statuses:
        raise DataError(
            f"{out}: no run here (there is no {RUN_FILE}); a run writes it once its model is open and its dataset read"
        )
    return tuple(statuses)


def _folder_status(out: Path, manifest: Manifest) -> RunStatus:
    if manifest.joined:
        return _joined_status(out, manifest)
    done = failed = recent = 0
    latest = manifest.started_at
    for index, size in enumerate(manifest.shard_sizes):
        path = shard_path(out / SHARDS_FOLDER, index)
        try:
            written = path.stat().st_mtime
            header = ShardFile(path).header
        except (FileNotFoundError, DataError):
            continue  # not there yet; a damaged one is done again by the run itself
        except OSError as error:
            raise DataError(f"{path}: cannot be looked at ({error.strerror})") from error
        if header.identity != manifest.identity:
            continue
        done += size
        failed += sum(failure is not None for failure in header.failures)
        if written >= manifest.started_at:
            recent += size
            latest = max(latest, written)
    left = manifest.images - done
    rate = recent / (latest - manifest.started_at) if recent and latest > manifest.started_at else None
    eta = left / rate if rate else None
    finished = manifest.finished and not left
    holder = lock_holder(out) or lock_holder(out.parent)  # a run over several datasets holds the folder above theirs
    return RunStatus(out, manifest.dataset.name, manifest.images, done, left, failed, finished, rate, eta, holder)


def _joined_status(out: Path, manifest: Manifest) -> RunStatus:
    """Returns the status of a folder that `merge_outputs` made: it has no shards, and nothing is ever left to do."""
    failed = len(read_json_object(out / FAILED_FILE, format_version=FORMAT_VERSION)["failed"])
    return RunStatus(out, manifest.dataset.name, manifest.images, manifest.images, 0, failed, True, None, None)


def describe_status(statuses: Sequence[RunStatus]) -> str:
    """Returns statuses as text for people, a line a dataset."""
    return "\n".join(_describe_one(status) for status in statuses)


def _describe_one(status: RunStatus) -> str:
    counts = f"{status.done} of {status.images} images done, {status.left} left, {status.failed} failed"
    if status.finished:
        return f"{status.dataset}: finished; {counts}"
    if status.holder is None:
        return f"{status.dataset}: {counts}; no process works on it, the same command again goes on from here"
    if status.images_per_s is None or status.eta_s is None:
        return f"{status.dataset}: {counts}; {status.holder} works on it, nothing written yet since it started"
    rate = f"{status.images_per_s:.2f} images/s, ETA {format_duration(status.eta_s)}"
    return f"{status.dataset}: {counts}; {status.holder} works on it, {rate}"
