"""The results of a run as one sequence of images in ascending id order, whatever shards they lie in, read from the disk as needed.

No rows are held in memory, only where each image is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from roiline.core.errors import DataError
from roiline.core.structures import ImageId, Int64
from roiline.infer.result_rows import Rows
from roiline.infer.shards import ShardFile, ShardImage


@dataclass(frozen=True, slots=True)
class FailedImage:
    """Is an image without a result, or with one of a picture that is not whole: its id, and why."""

    image_id: ImageId
    reason: str


class MergedResults:
    """Gives the rows of every image, by position from 0, over the shards of one run or of several that adjoin."""

    def __init__(
        self,
        parts: Sequence[tuple[int, Sequence[ShardFile]]],
        *,
        images: int,
        image_ids: Sequence[ImageId] | None = None,
    ) -> None:
        """Indexes shards; `parts` are (position of the part's first image, its shards), `image_ids` those that the dataset has, in order.

        Raises:
            DataError: a position is missing or comes twice, or an image has another id than the dataset's.
        """
        self._shards = [shard for _, shards in parts for shard in shards]
        self._shard_of = np.full(images, -1, np.int32)
        self._place_of = np.zeros(images, np.int32)
        self.image_ids: list[ImageId] = [0] * images
        failed: list[tuple[int, FailedImage]] = []
        degraded: list[tuple[int, FailedImage]] = []
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
                    if image.degraded is not None:
                        degraded.append((position, FailedImage(image.image_id, image.degraded)))
                number += 1
        missing = np.flatnonzero(self._shard_of < 0)
        if missing.size:
            raise DataError(
                f"{missing.size} of {images} images have no result yet (the first is at position {missing[0]})"
            )
        if image_ids is not None:
            self._check_ids(image_ids)
        self.failed, self.degraded = (
            tuple(image for _, image in sorted(found, key=lambda pair: pair[0])) for found in (failed, degraded)
        )

    def _check_ids(self, expected: Sequence[ImageId]) -> None:
        for position, (found, wanted) in enumerate(zip(self.image_ids, expected, strict=True)):
            if found != wanted:
                raise DataError(
                    f"position {position}: the shards have image {found!r}, the dataset has {wanted!r}; start over with --fresh"
                )

    def __len__(self) -> int:
        return len(self.image_ids)

    def rows(self, position: int) -> Rows:
        """Returns the rows of one image."""
        shard: ShardFile = self._shards[self._shard_of[position]]
        return shard.rows(int(self._place_of[position]))

    def image(self, position: int) -> ShardImage:
        """Returns what a shard says of one image."""
        shard: ShardFile = self._shards[self._shard_of[position]]
        return shard.header.image(int(self._place_of[position]))

    def files(self) -> Iterator[str]:
        """Returns each picture's folder and name."""
        return (self.image(position).file for position in range(len(self)))

    def classes(self, position: int) -> tuple[Int64, Int64, Int64]:
        """Returns the classes of the boxes, of the masks and of the keypoints of one image."""
        shard: ShardFile = self._shards[self._shard_of[position]]
        return shard.classes(int(self._place_of[position]))

    def taps(self) -> Iterator[tuple[ImageId, Path]]:
        """Returns the ids of the images that have tapped blobs, and the files of these."""
        for position, image_id in enumerate(self.image_ids):
            shard: ShardFile = self._shards[self._shard_of[position]]
            path = shard.taps(int(self._place_of[position]))
            if path is not None:
                yield image_id, path

    def __iter__(self) -> Iterator[Rows]:
        return (self.rows(position) for position in range(len(self)))
