"""The detections of a run sorted as result files list them: class by class, image by image, in scratch files on the disk.

What is held in memory is a few numbers an image, however many detections there are.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roiline.core.errors import DataError
from roiline.core.structures import Float32, Int64
from roiline.infer.class_spill import ClassSpill, open_scratch, write_at
from roiline.infer.merge import MergedResults
from roiline.infer.result_rows import NO_KEYPOINTS, NO_MASKS, KeypointRows, MaskRows, Rows

_BOX = np.dtype([("image", "<i4"), ("row", "<f4", (5,))])
_PAYLOAD = np.dtype([("image", "<i4"), ("score", "<f4"), ("start", "<i8"), ("length", "<i8")])
_KEYPOINT_VALUES = 4


class PayloadSorted:
    """Holds rows of a score and some bytes, by class and then by image, in scratch files."""

    def __init__(self, num_classes: int, folder: Path) -> None:
        """Opens the scratch files; classes are 0 to num_classes - 1.

        Raises:
            OutputError: the folder takes no files.
        """
        self._index = ClassSpill(_PAYLOAD, num_classes, folder)
        self._folder = folder
        with ExitStack() as undone:
            undone.callback(self._index.close)
            self._content = open_scratch(folder)
            undone.pop_all()
        self._end = 0

    def add(self, image: int, scores: Float32, payloads: Sequence[bytes], classes: Int64) -> None:
        """Takes the rows of the next image.

        Raises:
            OutputError: they do not go onto the disk.
        """
        rows = np.zeros(len(scores), _PAYLOAD)
        rows["image"], rows["score"] = image, scores
        rows["length"] = [len(payload) for payload in payloads]
        rows["start"] = self._end + np.cumsum(rows["length"]) - rows["length"]
        self._end = write_at(self._content, memoryview(b"".join(payloads)), self._end, self._folder)
        self._index.add(rows, classes)

    def has(self, class_index: int) -> bool:
        """Says whether there are rows of a class."""
        return self._index.has(class_index)

    def cells(self, class_index: int, images: int) -> Iterator[tuple[Float32, list[bytes]] | None]:
        """Returns for each of `images` images, in order, scores and bytes of one class; None where it has none."""
        for rows in self._index.cells(class_index, images):
            yield (rows["score"].copy(), self._read(rows)) if len(rows) else None

    def _read(self, rows: NDArray[Any]) -> list[bytes]:
        places = zip(rows["start"].tolist(), rows["length"].tolist(), strict=True)
        return [os.pread(self._content.fileno(), length, start) for start, length in places]

    def close(self) -> None:
        """Removes the scratch files."""
        self._index.close()
        self._content.close()


class DetectionTable:
    """Holds detections class by class and image by image, as result files list them.

    `classes` of the shards are the model's; `order[k]` is the result's class for the model's class k (both from 1, order[0] is unused).
    Close it (it is a context manager): the scratch files go with it.
    """

    def __init__(self, results: MergedResults, *, num_classes: int, order: Sequence[int], folder: Path) -> None:
        """Sorts all rows; `num_classes` is K, background included.

        Raises:
            DataError: a row has a class that the model does not have.
            OutputError: the scratch files do not go into `folder`.
        """
        self.num_classes = num_classes
        self.image_ids = results.image_ids
        self._sizes_hw = np.zeros((len(results), 2), np.int64)
        lookup = np.asarray(order, np.int64)
        with ExitStack() as opened:
            self._boxes = ClassSpill(_BOX, num_classes, folder)
            opened.callback(self._boxes.close)
            self._masks = PayloadSorted(num_classes, folder)
            opened.callback(self._masks.close)
            self._keypoints = PayloadSorted(num_classes, folder)
            opened.callback(self._keypoints.close)
            for image, rows in enumerate(results):
                self._place(image, rows, lookup)
            self._opened = opened.pop_all()

    def _place(self, image: int, rows: Rows, lookup: Int64) -> None:
        for classes in (rows.classes, rows.masks.classes, rows.keypoints.classes):
            self._check_classes(image, classes)
        boxes = np.zeros(len(rows.scores), _BOX)
        boxes["image"], boxes["row"][:, :4], boxes["row"][:, 4] = image, rows.boxes, rows.scores
        self._boxes.add(boxes, lookup[rows.classes])
        if rows.masks.counts:
            self._masks.add(image, rows.masks.scores, rows.masks.counts, lookup[rows.masks.classes])
            self._sizes_hw[image] = rows.masks.size_hw
        if len(rows.keypoints.points):
            points = [one.astype("<f4").tobytes() for one in rows.keypoints.points]
            self._keypoints.add(image, rows.keypoints.scores, points, lookup[rows.keypoints.classes])

    def _check_classes(self, image: int, classes: Int64) -> None:
        if len(classes) and not (classes.min() >= 1 and classes.max() < self.num_classes):
            raise DataError(
                f"image {self.image_ids[image]!r}: a class outside 1..{self.num_classes - 1} in its results"
            )

    def box_cells(self, class_index: int) -> Iterator[Float32]:
        """Returns for each image, in order, its (n, 5) rows x1, y1, x2, y2, score of one class."""
        return self._boxes.cells(class_index, len(self.image_ids), "row")

    def has_masks(self, class_index: int) -> bool:
        """Says whether there are masks of a class."""
        return self._masks.has(class_index)

    def has_keypoints(self, class_index: int) -> bool:
        """Says whether there are keypoints of a class."""
        return self._keypoints.has(class_index)

    def mask_cells(self, class_index: int) -> Iterator[MaskRows]:
        """Returns for each image, in order, its masks of one class."""
        for image, cell in enumerate(self._masks.cells(class_index, len(self.image_ids))):
            if cell is None:
                yield NO_MASKS
            else:
                height, width = self._sizes_hw[image].tolist()
                yield MaskRows(cell[0], _repeat(class_index, len(cell[0])), tuple(cell[1]), (height, width))

    def keypoint_cells(self, class_index: int) -> Iterator[KeypointRows]:
        """Returns for each image, in order, its keypoints of one class."""
        for cell in self._keypoints.cells(class_index, len(self.image_ids)):
            if cell is None:
                yield NO_KEYPOINTS
            else:
                points = np.frombuffer(b"".join(cell[1]), "<f4").reshape(len(cell[0]), _KEYPOINT_VALUES, -1)
                yield KeypointRows(cell[0], _repeat(class_index, len(cell[0])), points)

    def close(self) -> None:
        """Removes the scratch files."""
        self._opened.close()

    def __enter__(self) -> DetectionTable:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _repeat(class_index: int, count: int) -> Int64:
    return np.full(count, class_index, np.int64)
