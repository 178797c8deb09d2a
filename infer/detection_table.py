"""The detections of a run sorted as result files list them: class by class, image by image, in scratch files on the disk.

What is held in memory is a few numbers an image, however many detections there are.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from io import FileIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roiline.core.errors import DataError, OutputError
from roiline.core.structures import Float32, Int64
from roiline.infer.merge import MergedResults
from roiline.infer.result_rows import NO_KEYPOINTS, NO_MASKS, KeypointRows, MaskRows

_BOX = np.dtype([("image", "<i4"), ("row", "<f4", (5,))])
_PAYLOAD = np.dtype([("image", "<i4"), ("score", "<f4"), ("start", "<i8"), ("length", "<i8")])
_KEYPOINT_VALUES = 4


class ClassSorted:
    """Holds rows of a structured type with a field `image`, by class and then by image, in a scratch file."""

    def __init__(self, kind: np.dtype[Any], counts: Int64, folder: Path) -> None:
        """Makes room; `counts` (K,) are the rows of each class."""
        self._starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        self._cursors = self._starts[:-1].copy()
        rows = max(1, int(self._starts[-1]))
        self._scratch = _open_scratch(folder)
        with ExitStack() as undone:
            undone.callback(self._scratch.close)
            with _room_in(folder, rows * kind.itemsize):
                # A page of a sparse file that finds no room on the disk later would end the process with a signal.
                os.posix_fallocate(self._scratch.fileno(), 0, rows * kind.itemsize)
            undone.pop_all()
        self._rows: NDArray[Any] = np.memmap(self._scratch, kind, "r+", shape=(rows,))

    def add(self, rows: NDArray[Any], classes: Int64) -> None:
        """Places the rows (n,) of the next image by their classes (n,); rows of one class keep their order."""
        by_class = np.argsort(classes, kind="stable")
        ordered = classes[by_class]
        counts = np.bincount(classes, minlength=len(self._cursors))
        firsts = np.cumsum(counts) - counts
        self._rows[self._cursors[ordered] + np.arange(len(ordered)) - firsts[ordered]] = rows[by_class]
        self._cursors += counts

    def cells(self, class_index: int, images: int, field: str | None = None) -> Iterator[NDArray[Any]]:
        """Returns for each of `images` images, in order, its rows of one class, or one field of them."""
        rows = np.asarray(self._rows[self._starts[class_index] : self._starts[class_index + 1]])
        bounds = np.searchsorted(rows["image"], np.arange(images + 1)).tolist()
        values = rows if field is None else rows[field]
        none = values[:0]  # nearly all cells are empty: one serves them all
        return (values[start:end] if end > start else none for start, end in pairwise(bounds))

    def close(self) -> None:
        """Removes the scratch file."""
        del self._rows
        self._scratch.close()


class PayloadSorted:
    """Holds rows of a score and some bytes, by class and then by image, in scratch files."""

    def __init__(self, counts: Int64, folder: Path) -> None:
        """Makes room; `counts` (K,) are the rows of each class."""
        self._index = ClassSorted(_PAYLOAD, counts, folder)
        self._folder = folder
        with ExitStack() as undone:
            undone.callback(self._index.close)
            self._content = _open_scratch(folder)
            undone.pop_all()
        self._end = 0

    def add(self, image: int, scores: Float32, payloads: Sequence[bytes], classes: Int64) -> None:
        """Places the rows of the next image."""
        rows = np.zeros(len(scores), _PAYLOAD)
        rows["image"], rows["score"] = image, scores
        rows["length"] = [len(payload) for payload in payloads]
        rows["start"] = self._end + np.cumsum(rows["length"]) - rows["length"]
        content = memoryview(b"".join(payloads))
        with _room_in(self._folder, len(content)):
            while len(content):
                written = os.pwrite(self._content.fileno(), content, self._end)
                self._end += written
                content = content[written:]
        self._index.add(rows, classes)

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


@contextlib.contextmanager
def _room_in(folder: Path, size: int) -> Iterator[None]:
    """Says in words what the system says when a scratch file of `size` more bytes does not go into `folder`.

    Raises:
        OutputError: it does not.
    """
    try:
        yield
    except OSError as error:
        raise OutputError(
            f"{folder}: results cannot be put together there ({error.strerror}); {size / 1e6:.1f} MB are needed for "
            "scratch files, besides the results: make room and run the same command again"
        ) from error


def _open_scratch(folder: Path) -> FileIO:
    """Opens a file without a name, unbuffered, for reading and writing."""
    with _room_in(folder, 0):
        return tempfile.TemporaryFile(dir=folder, prefix=".rows.", buffering=0)


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
        boxes, masks, keypoints = _count_classes(results, lookup, num_classes)
        with ExitStack() as opened:
            self._boxes = ClassSorted(_BOX, boxes, folder)
            opened.callback(self._boxes.close)
            self._masks = PayloadSorted(masks, folder)
            opened.callback(self._masks.close)
            self._keypoints = PayloadSorted(keypoints, folder)
            opened.callback(self._keypoints.close)
            self._place(results, lookup)
            self._opened = opened.pop_all()

    def _place(self, results: MergedResults, lookup: Int64) -> None:
        for image, rows in enumerate(results):
            boxes = np.zeros(len(rows.scores), _BOX)
            boxes["image"], boxes["row"][:, :4], boxes["row"][:, 4] = image, rows.boxes, rows.scores
            self._boxes.add(boxes, lookup[rows.classes])
            if rows.masks.counts:
                self._masks.add(image, rows.masks.scores, rows.masks.counts, lookup[rows.masks.classes])
                self._sizes_hw[image] = rows.masks.size_hw
            if len(rows.keypoints.points):
                points = [one.astype("<f4").tobytes() for one in rows.keypoints.points]
                self._keypoints.add(image, rows.keypoints.scores, points, lookup[rows.keypoints.classes])

    def box_cells(self, class_index: int) -> Iterator[Float32]:
        """Returns for each image, in order, its (n, 5) rows x1, y1, x2, y2, score of one class."""
        return self._boxes.cells(class_index, len(self.image_ids), "row")

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


def _count_classes(results: MergedResults, lookup: Int64, num_classes: int) -> tuple[Int64, Int64, Int64]:
    """Returns the rows (K,) of each of the results' classes: of boxes, of masks, of keypoints."""
    counts = np.zeros((3, num_classes), np.int64)
    for image in range(len(results)):
        for part, classes in enumerate(results.classes(image)):
            if len(classes) and not (classes.min() >= 1 and classes.max() < num_classes):
                raise DataError(
                    f"image {results.image_ids[image]!r}: a class outside 1..{num_classes - 1} in its results"
                )
            counts[part] += np.bincount(lookup[classes], minlength=num_classes)
    boxes, masks, keypoints = counts
    return boxes, masks, keypoints
