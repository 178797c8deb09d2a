"""A drawn video: the frames of a video with their results, at the video's own rate."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

from roiline.core.errors import DataError, OutputError
from roiline.core.structures import RoidbEntry, UInt8
from roiline.infer.roidb import Dataset
from roiline.infer.video import read_rate

_CODECS = {".avi": "MJPG", ".mp4": "mp4v"}
_TEMPORARY = ".unfinished"


def name_video(dataset: Dataset, folder: Path) -> Path:
    """Returns the file of the drawn video: `<name>.avi` (Motion JPEG) of an AVI file, else `<name>.mp4` (MPEG-4)."""
    source = dataset.entries[0].path.parent
    suffix = ".avi" if source.suffix.lower() == ".avi" else ".mp4"
    return folder / f"{source.stem}{suffix}"


class VideoFile:
    """Writes frames to a video file, which has its name once it is whole."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._temporary = path.with_name(f"{path.stem}{_TEMPORARY}{path.suffix}")
        self._writer: Any = None
        self._size = (0, 0)

    def add(self, entry: RoidbEntry, picture: UInt8) -> None:
        """Takes the next frame (H, W, 3); an odd side gets its last row or column twice, since the formats hold even ones.

        Raises:
            OutputError: the file cannot be written.
            DataError: the frame is of another size than those before.
        """
        import cv2

        height, width = picture.shape[:2]
        if self._writer is None:
            self._open(entry.path.parent, (height, width))
        if (height, width) != self._size:
            raise DataError(f"{entry.path}: a frame of {width} x {height}, those before are {self._size[::-1]}")
        self._writer.write(cv2.copyMakeBorder(picture, 0, height % 2, 0, width % 2, cv2.BORDER_REPLICATE))

    def close(self) -> tuple[Path, ...]:
        """Finishes the file and returns it, if it has any frame."""
        if self._writer is None:
            return ()
        self._writer.release()
        os.replace(self._temporary, self._path)
        return (self._path,)

    def _open(self, source: Path, size_hw: tuple[int, int]) -> None:
        import cv2

        height, width = size_hw
        rate = read_rate(source)
        codec = cv2.VideoWriter.fourcc(*_CODECS[self._path.suffix])
        size = (width + width % 2, height + height % 2)
        with contextlib.suppress(FileNotFoundError):
            self._temporary.unlink()
        writer = cv2.VideoWriter(str(self._temporary), cv2.CAP_FFMPEG, codec, rate, size)
        if not writer.isOpened():
            raise OutputError(f"{self._path}: a video of {size[0]} x {size[1]} pixels cannot be written here")
        self._writer, self._size = writer, size_hw
