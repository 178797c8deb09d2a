"""The results of a run as one sequence of images in ascending id order, whatever shards they lie in, read from the disk as needed.

Nothing here holds all rows in memory: `MergedResults` keeps where each image is, `DetectionTable` sorts the rows by class and image
into a scratch file on the disk.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from roiline.core.errors import DataError
from roiline.core.structures import Float32, ImageId, Int64
from roiline.infer.shards import Rows, ShardFile


@dataclass(frozen=True, slots=True)
class FailedImage:
    """Is an image without a result: its id, and why."""

    image_id: ImageId
    reason: str


class MergedResults:
    """Gives the rows of every image, by position from 0, over the shards of one run or of several that adjoin."""

    def __init__(self, parts: Sequence[tuple[int, Sequence[ShardFile]]], *, images: int) -> None:
        """Indexes shards; `parts` are (position of the part's first image, its shards).

        Raises:
            DataError: a position is missing or comes twice.
        """
        self._shards = [shard for _, shards in parts for shard in shards]
        self._shard_of = np.full(images, -1, np.int32)
        self._place_of = np.zeros(images, np.int32)
        self.image_ids: list[ImageId] = [0] * images
        failed: list[tuple[int, FailedImage]] = []
        number = 0
        for start, shards in parts:
            for shard in shards:
                for place, image in enumerate(shard.header.images):
                    position = start + image.position
                    if not 0 <= position < images or self._shard_of[position] >= 0:
                        raise DataError(
                            f"{shard.path}: image {image.image_id!r} (position {position}) is there twice or beyond the end"
                        )
                    self._shard_of[position], self._place_of[position] = number, place
                    self.image_ids[position] = image.image_id
                    if image.failure is not None:
                        failed.append((position, FailedImage(image.image_id, image.failure)))
                number += 1
        missing = np.flatnonzero(self._shard_of < 0)
        if missing.size:
            raise DataError(
                f"{missing.size} of {images} images have no result yet (the first is at position {missing[0]})"
            )
        self.failed = tuple(image for _, image in sorted(failed, key=lambda pair: pair[0]))

    def __len__(self) -> int:
        return len(self.image_ids)

    def rows(self, position: int) -> Rows:
        """Returns the rows of one image."""
        shard: ShardFile = self._shards[self._shard_of[position]]
        return shard.rows(int(self._place_of[position]))

    def __iter__(self) -> Iterator[Rows]:
        return (self.rows(position) for position in range(len(self)))

    @property
    def row_count(self) -> int:
        """Is the number of rows of all images together."""
        return sum(sum(shard.header.rows) for shard in self._shards)


class DetectionTable:
    """Holds detections class by class and image by image, as result files list them.

    `classes` of the shards are the model's; `order[k]` is the result's class for the model's class k (both from 1, order[0] is unused).
    Close it (it is a context manager): the scratch file goes with it.
    """

    def __init__(self, results: MergedResults, *, num_classes: int, order: Sequence[int], folder: Path) -> None:
        """Sorts all rows; `num_classes` is K, background included.

        Raises:
            DataError: a row has a class that the model does not have.
        """
        self.num_classes = num_classes
        self.image_ids = results.image_ids
        lookup = np.asarray(order, np.int64)
        self._counts = np.zeros((num_classes, len(results)), np.int32)
        for position, rows in enumerate(results):
            if len(rows.classes) and not (rows.classes.min() >= 1 and rows.classes.max() < num_classes):
                raise DataError(
                    f"image {results.image_ids[position]!r}: a class outside 1..{num_classes - 1} in its results"
                )
            self._counts[:, position] = np.bincount(lookup[rows.classes], minlength=num_classes)
        total = int(self._counts.sum(dtype=np.int64))
        self._scratch = tempfile.TemporaryFile(dir=folder, prefix=".rows.")  # noqa: SIM115 - closed by `close`
        self._rows = np.memmap(self._scratch, np.float32, "w+", shape=(max(1, total), 5))
        class_starts = np.concatenate([[0], np.cumsum(self._counts.sum(axis=1, dtype=np.int64))]).astype(np.int64)
        self._class_starts = class_starts
        cursors = class_starts[:-1].copy()
        for rows in results:
            self._place(rows, lookup, cursors)

    def _place(self, rows: Rows, lookup: Int64, cursors: Int64) -> None:
        classes = lookup[rows.classes]
        by_class = np.argsort(classes, kind="stable")
        counts = np.bincount(classes, minlength=len(cursors))
        firsts = np.concatenate([[0], np.cumsum(counts)[:-1]])
        ordered = classes[by_class]
        targets = cursors[ordered] + np.arange(len(ordered)) - firsts[ordered]
        self._rows[targets, :4] = rows.boxes[by_class]
        self._rows[targets, 4] = rows.scores[by_class]
        cursors += counts

    def cells(self, class_index: int) -> Iterator[Float32]:
        """Returns for each image, in order, its (n, 5) rows x1, y1, x2, y2, score of one class."""
        start = int(self._class_starts[class_index])
        for count in self._counts[class_index]:
            yield np.asarray(self._rows[start : start + count])
            start += int(count)

    def close(self) -> None:
        """Removes the scratch file."""
        del self._rows
        self._scratch.close()

    def __enter__(self) -> DetectionTable:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
