"""Shard files: the durable results of a few images, and the ledger of what a run has done.

A file is: 8 magic bytes, the length of the header (8 bytes, little endian), the header (JSON), the arrays one after another (C order,
little endian), and the SHA-256 of all that. Nothing in it is executable, and a file that was cut short, changed, or made by another run
does not read.

The header names the run's identity, the shard's index, the task, and by columns, image after image: its position, its id, how many rows
it has, and why it failed (null where it did not). Arrays: `boxes` (rows, 4) float32, `scores` (rows,) float32, and for detections
`classes` (rows,) int64; the rows of image i start where those of image i - 1 end.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from roiline.core.errors import DataError
from roiline.core.files import write_durable
from roiline.core.records import plain_from_record, record_from_plain
from roiline.core.spec import Task
from roiline.core.structures import Detections, Float32, ImageId, Int64, Result

MAGIC = b"ROILSHRD"
FORMAT_VERSION = 1
SUFFIX = ".shard"
BAD_SUFFIX = ".bad"
_LENGTH = struct.Struct("<Q")
_ROW_BYTES = {"boxes": 16, "scores": 4, "classes": 8}


@dataclass(frozen=True, slots=True)
class ShardImage:
    """Is one image of a shard: its place in the run, its id, its rows, and why it failed (None: it did not)."""

    position: int
    image_id: ImageId
    rows: int
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class ShardHeader:
    """Is what a shard says about itself; the columns are as long as it has images."""

    format_version: int
    identity: str
    index: int
    task: Task
    positions: tuple[int, ...]
    image_ids: tuple[ImageId, ...]
    rows: tuple[int, ...]
    failures: tuple[str | None, ...]

    @property
    def images(self) -> tuple[ShardImage, ...]:
        """Are the images one by one."""
        return tuple(map(ShardImage, self.positions, self.image_ids, self.rows, self.failures))


@dataclass(frozen=True, slots=True)
class Failure:
    """Is an image that gave no result, and why."""

    image_id: ImageId
    reason: str


@dataclass(frozen=True, slots=True)
class Rows:
    """Are the rows of one image: `boxes` (R, 4), `scores` (R,), `classes` (R,), the latter without rows for proposals."""

    boxes: Float32
    scores: Float32
    classes: Int64


NO_ROWS = Rows(np.zeros((0, 4), np.float32), np.zeros(0, np.float32), np.zeros(0, np.int64))


def shard_path(folder: Path, index: int) -> Path:
    """Returns the place of a shard in a run's `shards` folder."""
    return folder / f"{index:06d}{SUFFIX}"


def write_shard(
    path: Path, *, identity: str, index: int, task: Task, results: Sequence[tuple[int, Result | Failure]]
) -> None:
    """Writes one shard durably; `results` are (position, result) in the shard's order."""
    rows = [_rows_of(result) for _, result in results]
    header = ShardHeader(
        FORMAT_VERSION,
        identity,
        index,
        task,
        positions=tuple(position for position, _ in results),
        image_ids=tuple(result.image_id for _, result in results),
        rows=tuple(len(row.scores) for row in rows),
        failures=tuple(result.reason if isinstance(result, Failure) else None for _, result in results),
    )
    text = json.dumps(plain_from_record(header), ensure_ascii=False).encode()
    chunks = [MAGIC, _LENGTH.pack(len(text)), text]
    chunks += [np.ascontiguousarray(row.boxes, "<f4").tobytes() for row in rows]
    chunks += [np.ascontiguousarray(row.scores, "<f4").tobytes() for row in rows]
    if task == "detections":
        chunks += [np.ascontiguousarray(row.classes, "<i8").tobytes() for row in rows]
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
    write_durable(path, *chunks, digest.digest())


def _rows_of(result: Result | Failure) -> Rows:
    if isinstance(result, Failure):
        return NO_ROWS
    classes = result.classes if isinstance(result, Detections) else NO_ROWS.classes
    return Rows(result.boxes, result.scores, classes)


class ShardFile:
    """Reads one shard: its header at once, the rows of an image when they are asked for, with no file kept open."""

    def __init__(self, path: Path) -> None:
        """Reads the header.

        Raises:
            DataError: the file is not a shard, is damaged in its header, or has another format version.
        """
        self.path = path
        try:
            stream = path.open("rb")
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror})") from error
        with stream:
            start = stream.read(len(MAGIC) + _LENGTH.size)
            if len(start) != len(MAGIC) + _LENGTH.size or not start.startswith(MAGIC):
                raise DataError(f"{path}: not a shard of ours")
            (length,) = _LENGTH.unpack(start[len(MAGIC) :])
            size = os.fstat(stream.fileno()).st_size
            if length > size:
                raise DataError(f"{path}: damaged: its header claims {length} bytes, the file has {size}")
            text = stream.read(length)
        self.header = _decode_header(text, path)
        self._starts = np.concatenate([[0], np.cumsum(self.header.rows, dtype=np.int64)]).astype(np.int64)
        self._data = len(start) + length
        names = ("boxes", "scores", "classes") if self.header.task == "detections" else ("boxes", "scores")
        self._offsets: dict[str, int] = {}
        end = self._data
        for name in names:
            self._offsets[name] = end
            end += _ROW_BYTES[name] * int(self._starts[-1])
        if size != end + hashlib.sha256().digest_size:
            raise DataError(f"{path}: damaged: expected {end + hashlib.sha256().digest_size} bytes, got {size}")

    def check(self) -> None:
        """Compares the content with its checksum.

        Raises:
            DataError: they differ.
        """
        content = self.path.read_bytes()
        size = hashlib.sha256().digest_size
        if hashlib.sha256(content[:-size]).digest() != content[-size:]:
            raise DataError(f"{self.path}: damaged: its content does not fit its checksum")

    def rows(self, place: int) -> Rows:
        """Returns the rows of the shard's image number `place`."""
        first, last = int(self._starts[place]), int(self._starts[place + 1])
        if first == last:
            return NO_ROWS
        with self.path.open("rb") as stream:
            raw = {
                name: os.pread(stream.fileno(), _ROW_BYTES[name] * (last - first), offset + _ROW_BYTES[name] * first)
                for name, offset in self._offsets.items()
            }
        boxes = np.frombuffer(raw["boxes"], "<f4").reshape(-1, 4)
        classes = np.frombuffer(raw["classes"], "<i8") if "classes" in raw else NO_ROWS.classes
        return Rows(boxes, np.frombuffer(raw["scores"], "<f4"), classes)


def _decode_header(text: bytes, path: Path) -> ShardHeader:
    try:
        plain: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: damaged: its header is not JSON ({error})") from error
    header = record_from_plain(ShardHeader, plain, where=f"{path}: header")
    if header.format_version != FORMAT_VERSION:
        raise DataError(f"{path}: has format version {header.format_version}, this roiline reads {FORMAT_VERSION}")
    lengths = {len(column) for column in (header.positions, header.image_ids, header.rows, header.failures)}
    if len(lengths) != 1 or any(rows < 0 for rows in header.rows):
        raise DataError(f"{path}: damaged: the columns of its header do not fit together")
    return header


def open_shard(folder: Path, index: int, *, identity: str, positions: Sequence[int]) -> ShardFile:
    """Opens a shard, checks its content, and that it is the one that the plan means.

    Raises:
        DataError: it is damaged, of another run, or has other images.
    """
    shard = ShardFile(shard_path(folder, index))
    shard.check()
    header = shard.header
    if header.identity != identity:
        raise DataError(f"{shard.path}: belongs to another run ({header.identity[:12]}, expected {identity[:12]})")
    if header.index != index or list(header.positions) != list(positions):
        raise DataError(f"{shard.path}: holds other images than the plan wants")
    return shard


def find_done_shards(
    folder: Path, plan: Sequence[Sequence[int]], *, identity: str
) -> tuple[dict[int, ShardFile], dict[int, str]]:
    """Returns the shards of `plan` (positions by index) that are done, and those that are there but cannot be used, and why."""
    done: dict[int, ShardFile] = {}
    bad: dict[int, str] = {}
    for index, positions in enumerate(plan):
        if not shard_path(folder, index).exists():
            continue
        try:
            done[index] = open_shard(folder, index, identity=identity, positions=positions)
        except DataError as error:
            bad[index] = str(error)
    return done, bad


def set_aside_shard(folder: Path, index: int) -> None:
    """Renames a shard file that cannot be used to `NNNNNN.shard.bad`, so that it can be looked at and its images are computed again."""
    path = shard_path(folder, index)
    path.replace(path.with_name(path.name + BAD_SUFFIX))
