"""Shard files: the durable results of a few images, and the ledger of what a run has done.

A file is: 8 magic bytes, the length of the header (8 bytes, little endian), the header (JSON), the arrays one after another (C order,
little endian), and the SHA-256 of all that. Nothing in it is executable, and a file that was cut short, changed, or made by another run
does not read.

The header names the run's identity, the shard's index, the task, and by columns, image after image: its position, its id, why it failed
(null where it did not), how much it has in each array, and the SHA-256 of the file of its tapped blobs (null where it has none), which
lies beside the shard as `NNNNNN.taps/POSITION.npz`.

Arrays: `boxes` (rows, 4) float32, except for classification, `scores` (rows,) float32, and for detections `classes` (rows,) int64;
`mask_scores` and `mask_classes` (mask_rows,), `mask_lengths` (mask_rows,) int64, `masks` (mask_bytes,) the run lengths, each as long as
mask_lengths says; `keypoint_scores` and `keypoint_classes` (keypoint_rows,), `keypoints` (keypoint_rows, 4, joints) float32. In every
array what image i has starts where that of image i - 1 ends.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roiline.core.errors import DataError
from roiline.core.files import sha256_of_file, write_durable
from roiline.core.records import record_from_plain
from roiline.core.spec import Task
from roiline.core.structures import ImageId, Int64, Result
from roiline.infer.result_rows import NO_KEYPOINTS, NO_MASKS, NO_ROWS, KeypointRows, MaskRows, Rows, rows_from_result

MAGIC = b"ROILSHRD"
FORMAT_VERSION = 2
SUFFIX = ".shard"
TAPS_SUFFIX = ".taps"
BAD_SUFFIX = ".bad"
_LENGTH = struct.Struct("<Q")
_DIGEST_BYTES = hashlib.sha256().digest_size
_KEYPOINT_VALUES = 4
_MOST = 1 << 40  # of rows or bytes that a header can mean

_TYPES: dict[str, np.dtype[Any]] = {
    "boxes": np.dtype("<f4"),
    "scores": np.dtype("<f4"),
    "classes": np.dtype("<i8"),
    "mask_scores": np.dtype("<f4"),
    "mask_classes": np.dtype("<i8"),
    "mask_lengths": np.dtype("<i8"),
    "masks": np.dtype("u1"),
    "keypoint_scores": np.dtype("<f4"),
    "keypoint_classes": np.dtype("<i8"),
    "keypoints": np.dtype("<f4"),
}
"""The arrays in the order of the file."""

_VALUES: dict[str, Callable[[Rows], NDArray[Any]]] = {
    "boxes": lambda row: row.boxes,
    "scores": lambda row: row.scores,
    "classes": lambda row: row.classes,
    "mask_scores": lambda row: row.masks.scores,
    "mask_classes": lambda row: row.masks.classes,
    "mask_lengths": lambda row: np.array([len(counts) for counts in row.masks.counts], np.int64),
    "masks": lambda row: np.frombuffer(b"".join(row.masks.counts), np.uint8),
    "keypoint_scores": lambda row: row.keypoints.scores,
    "keypoint_classes": lambda row: row.keypoints.classes,
    "keypoints": lambda row: row.keypoints.points,
}
"""What each array holds of one image."""

_ARRAYS: dict[Task, tuple[str, ...]] = {
    "proposals": ("boxes", "scores"),
    "detections": tuple(_TYPES),
    "classification": ("scores",),
}


@dataclass(frozen=True, slots=True)
class ShardImage:
    """Is one image of a shard: its place in the run, its id, its rows, and why it failed (None: it did not).

    `file` is the picture's folder and name, `degraded` what is wrong with a picture that has a result all the same (None: nothing).
    """

    position: int
    image_id: ImageId
    rows: int
    failure: str | None = None
    file: str = ""
    degraded: str | None = None


@dataclass(frozen=True, slots=True)
class ShardHeader:
    """Is what a shard says about itself; the columns are as long as it has images.

    `heights` and `widths` are the size of the masks, 0 without masks.
    """

    format_version: int
    identity: str
    index: int
    task: Task
    positions: tuple[int, ...]
    image_ids: tuple[ImageId, ...]
    rows: tuple[int, ...]
    failures: tuple[str | None, ...]
    heights: tuple[int, ...]
    widths: tuple[int, ...]
    mask_rows: tuple[int, ...]
    mask_bytes: tuple[int, ...]
    keypoint_rows: tuple[int, ...]
    joints: tuple[int, ...]
    taps: tuple[str | None, ...]
    files: tuple[str, ...]
    degraded: tuple[str | None, ...]

    @property
    def images(self) -> tuple[ShardImage, ...]:
        """Are the images one by one."""
        return tuple(map(self.image, range(len(self.positions))))

    def image(self, place: int) -> ShardImage:
        """Returns the shard's image number `place`."""
        return ShardImage(
            self.positions[place],
            self.image_ids[place],
            self.rows[place],
            self.failures[place],
            self.files[place],
            self.degraded[place],
        )

    def lengths(self) -> dict[str, Int64]:
        """Returns how many values each image has in each array."""
        rows, masks, keypoints = (np.array(n, np.int64) for n in (self.rows, self.mask_rows, self.keypoint_rows))
        lengths = {
            "boxes": 4 * rows,
            "scores": rows,
            "classes": rows,
            "mask_scores": masks,
            "mask_classes": masks,
            "mask_lengths": masks,
            "masks": np.array(self.mask_bytes, np.int64),
            "keypoint_scores": keypoints,
            "keypoint_classes": keypoints,
            "keypoints": _KEYPOINT_VALUES * keypoints * np.array(self.joints, np.int64),
        }
        return {name: lengths[name] for name in _ARRAYS[self.task]}


@dataclass(frozen=True, slots=True)
class Failure:
    """Is an image that gave no result, and why."""

    image_id: ImageId
    reason: str


def shard_path(folder: Path, index: int) -> Path:
    """Returns the place of a shard in a run's `shards` folder."""
    return folder / f"{index:06d}{SUFFIX}"


def name_file(path: str | Path) -> str:
    """Returns what results call a picture file: the folder that it lies in, and its name."""
    folder, name = os.path.split(os.path.abspath(path))
    return os.fsencode(os.path.join(os.path.basename(folder), name)).decode("utf-8", "replace")


def tap_path(shard: Path, position: int) -> Path:
    """Returns the place of an image's tapped blobs, beside the file of its shard."""
    return shard.with_suffix(TAPS_SUFFIX) / f"{position:06d}.npz"


def write_shard(
    path: Path,
    *,
    identity: str,
    index: int,
    task: Task,
    results: Sequence[tuple[int, Result | Failure]],
    taps: Mapping[int, str] = MappingProxyType({}),
    files: Mapping[int, str] = MappingProxyType({}),
    degraded: Mapping[int, str] = MappingProxyType({}),
) -> None:
    """Writes one shard durably; `results` are (position, result) in the shard's order.

    `taps` are, by position, the SHA-256 of the files of tapped blobs, which must be on the disk already. `files` are the pictures'
    folders and names, `degraded` what is wrong with those that have a result all the same.
    """
    rows = [NO_ROWS if isinstance(result, Failure) else rows_from_result(result) for _, result in results]
    header = ShardHeader(
        FORMAT_VERSION,
        identity,
        index,
        task,
        positions=tuple(position for position, _ in results),
        image_ids=tuple(result.image_id for _, result in results),
        rows=tuple(len(row.scores) for row in rows),
        failures=tuple(result.reason if isinstance(result, Failure) else None for _, result in results),
        heights=tuple(row.masks.size_hw[0] for row in rows),
        widths=tuple(row.masks.size_hw[1] for row in rows),
        mask_rows=tuple(len(row.masks.counts) for row in rows),
        mask_bytes=tuple(sum(map(len, row.masks.counts)) for row in rows),
        keypoint_rows=tuple(len(row.keypoints.points) for row in rows),
        joints=tuple(row.keypoints.points.shape[2] for row in rows),
        taps=tuple(taps.get(position) for position, _ in results),
        files=tuple(files.get(position, "") for position, _ in results),
        degraded=tuple(degraded.get(position) for position, _ in results),
    )
    text = json.dumps(
        {field.name: getattr(header, field.name) for field in fields(header)}, ensure_ascii=False
    ).encode()
    chunks = [MAGIC, _LENGTH.pack(len(text)), text, *_list_chunks(rows, header.lengths())]
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
    write_durable(path, *chunks, digest.digest())


def _list_chunks(rows: Sequence[Rows], lengths: Mapping[str, Int64]) -> Iterator[bytes]:
    """Returns the content of the arrays that have any, one after another."""
    for name, counts in lengths.items():
        if counts.any():
            values, kind = _VALUES[name], _TYPES[name]
            yield b"".join(np.ascontiguousarray(values(row), kind).tobytes() for row in rows)


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
        self._bounds: dict[str, Int64] = {}
        end = len(start) + length
        for name, lengths in self.header.lengths().items():
            ends = end + _TYPES[name].itemsize * np.cumsum(lengths, dtype=np.int64)
            self._bounds[name] = np.concatenate([[end], ends]).astype(np.int64)
            end = int(self._bounds[name][-1])
        if size != end + _DIGEST_BYTES:
            raise DataError(f"{path}: damaged: expected {end + _DIGEST_BYTES} bytes, got {size}")

    def check(self) -> None:
        """Compares the content with its checksum.

        Raises:
            DataError: they differ.
        """
        content = self.path.read_bytes()
        if hashlib.sha256(content[:-_DIGEST_BYTES]).digest() != content[-_DIGEST_BYTES:]:
            raise DataError(f"{self.path}: damaged: its content does not fit its checksum")

    def check_taps(self) -> None:
        """Compares the files of tapped blobs with their checksums.

        Raises:
            DataError: one is not there, or differs.
        """
        for place, digest in enumerate(self.header.taps):
            path = self.taps(place)
            if path is None:
                continue
            try:
                found = sha256_of_file(path)
            except OSError as error:
                raise DataError(f"{path}: cannot be read ({error.strerror})") from error
            if found != digest:
                raise DataError(f"{path}: damaged: its content does not fit its checksum in {self.path.name}")

    def taps(self, place: int) -> Path | None:
        """Returns the file of the tapped blobs of the shard's image number `place`, None where it has none."""
        if self.header.taps[place] is None:
            return None
        return tap_path(self.path, self.header.positions[place])

    def rows(self, place: int) -> Rows:
        """Returns the rows of the shard's image number `place`."""
        header = self.header
        if not (header.rows[place] or header.mask_rows[place] or header.keypoint_rows[place]):
            return NO_ROWS
        with self.path.open("rb") as stream:
            values = {name: self._read(stream.fileno(), name, place) for name in self._bounds}
        if header.task == "classification":
            return Rows(NO_ROWS.boxes, values["scores"], NO_ROWS.classes)
        boxes = values["boxes"].reshape(-1, 4)
        if header.task == "proposals":
            return Rows(boxes, values["scores"], NO_ROWS.classes)
        return Rows(
            boxes,
            values["scores"],
            values["classes"],
            self._masks(values, place) if header.mask_rows[place] else NO_MASKS,
            self._keypoints(values, place) if header.keypoint_rows[place] else NO_KEYPOINTS,
        )

    def classes(self, place: int) -> tuple[Int64, Int64, Int64]:
        """Returns the classes of the boxes, of the masks and of the keypoints of the shard's image number `place`."""
        names = ("classes", "mask_classes", "keypoint_classes")
        with self.path.open("rb") as stream:
            boxes, masks, keypoints = (self._read(stream.fileno(), name, place) for name in names)
        return boxes, masks, keypoints

    def _read(self, descriptor: int, name: str, place: int) -> NDArray[Any]:
        first, last = int(self._bounds[name][place]), int(self._bounds[name][place + 1])
        values: NDArray[Any] = np.frombuffer(os.pread(descriptor, last - first, first), _TYPES[name])
        return values

    def _masks(self, values: dict[str, NDArray[Any]], place: int) -> MaskRows:
        content = values["masks"].tobytes()
        ends = np.cumsum(values["mask_lengths"]).tolist()
        counts = tuple(content[start:end] for start, end in zip([0, *ends], ends, strict=False))
        size_hw = (self.header.heights[place], self.header.widths[place])
        return MaskRows(values["mask_scores"], values["mask_classes"], counts, size_hw)

    def _keypoints(self, values: dict[str, NDArray[Any]], place: int) -> KeypointRows:
        points = values["keypoints"].reshape(-1, _KEYPOINT_VALUES, self.header.joints[place])
        return KeypointRows(values["keypoint_scores"], values["keypoint_classes"], points)


def _decode_header(text: bytes, path: Path) -> ShardHeader:
    try:
        plain: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: damaged: its header is not JSON ({error})") from error
    header = record_from_plain(ShardHeader, plain, where=f"{path}: header")
    if header.format_version != FORMAT_VERSION:
        raise DataError(f"{path}: has format version {header.format_version}, this roiline reads {FORMAT_VERSION}")
    masks = (header.heights, header.widths, header.mask_rows, header.mask_bytes)
    sizes = (header.rows, *masks, header.keypoint_rows, header.joints)
    texts = (header.taps, header.files, header.degraded)
    lengths = {len(column) for column in (header.positions, header.image_ids, header.failures, *texts, *sizes)}
    if len(lengths) != 1 or any(not 0 <= number <= _MOST for column in sizes for number in column):
        raise DataError(f"{path}: damaged: the columns of its header do not fit together")
    return header


def open_shard(folder: Path, index: int, *, identity: str, positions: Sequence[int]) -> ShardFile:
    """Opens a shard, checks its content and its taps, and that it is the one that the plan means.

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
    shard.check_taps()
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
