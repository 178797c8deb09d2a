"""A shard that travels: read and removed where it was computed, checked and written durably where the run's folder is."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from roiline.core.errors import DataError
from roiline.core.files import make_folder, write_durable
from roiline.infer.shards import MAGIC, TAPS_SUFFIX

_DIGEST_BYTES = hashlib.sha256().digest_size


@dataclass(frozen=True, slots=True)
class ShardFiles:
    """Is the content of a shard file, and that of its files of tapped blobs by name."""

    content: bytes
    taps: Mapping[str, bytes]


def take_shard(path: Path) -> ShardFiles:
    """Reads a finished shard with its taps, and removes both."""
    folder = path.with_suffix(TAPS_SUFFIX)
    taps = {tap.name: tap.read_bytes() for tap in sorted(folder.iterdir())} if folder.is_dir() else {}
    content = path.read_bytes()
    path.unlink()
    if taps:
        shutil.rmtree(folder)
    return ShardFiles(content, taps)


def keep_shard(files: ShardFiles, path: Path) -> None:
    """Writes a shard that was sent to its place in the run's folder; its taps first, so that a shard is never there without them.

    Raises:
        DataError: it was changed on its way.
        OutputError: it cannot be written.
    """
    content, digest = files.content[:-_DIGEST_BYTES], files.content[-_DIGEST_BYTES:]
    if not content.startswith(MAGIC) or hashlib.sha256(content).digest() != digest:
        raise DataError(
            f"{path}: the shard that was sent for it does not fit its checksum; its images are computed again"
        )
    if files.taps:
        folder = path.with_suffix(TAPS_SUFFIX)
        make_folder(folder)
        for name, tap in files.taps.items():
            write_durable(folder / name, tap)
    write_durable(path, files.content)
