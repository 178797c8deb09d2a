"""Video files as datasets: every frame is a picture, its image id is its number from 0.

A frame has the path `VIDEO/NUMBER.frame`, as if the video were a folder, and `roiline.infer.pictures.read_bytes` reads such a path as
the bytes of an uncompressed picture: whatever takes picture files takes frames. Frame n is the n-th that the decoder gives when it
starts at the beginning: jumping to a number or a time is not exact in many files. So a reader goes forward only, keeps the frames that it
has just passed (several threads ask for neighbours in any order), and starts again where an earlier one is asked for.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any

from roiline.core.errors import DataError
from roiline.core.structures import RoidbEntry, UInt8
from roiline.infer.pictures import FRAME_SUFFIX, open_cv2
from roiline.infer.roidb import Listing, shorten
from roiline.infer.video_measuring import LOG_LEVEL, measure_video

VIDEO_SUFFIXES = frozenset(
    {".mp4", ".m4v", ".mov", ".avi", ".mkv", ".webm", ".mpg", ".mpeg", ".wmv", ".flv", ".ogv", ".3gp", ".mts", ".m2ts"}
)
DEFAULT_RATE = 25.0
"""Frames a second of a video that does not say it."""

_MOST_RATE = 1000.0
_SILENT = "-8"
_KEPT_FRAMES = 16
_OPEN_VIDEOS = 4
_LOCK = threading.Lock()


def is_video_file(path: Path) -> bool:
    """Says whether a file is meant as a video: by its suffix, or by its first bytes where the suffix says nothing."""
    if path.suffix.lower() in VIDEO_SUFFIXES:
        return True
    try:
        with path.open("rb") as file:
            head = file.read(16)
    except OSError:
        return False
    return head.startswith(b"\x1aE\xdf\xa3") or (head[:4] == b"RIFF" and head[8:12] == b"AVI ")


def frame_path(video: Path, number: int) -> Path:
    """Returns the path of one frame."""
    return video / f"{number:06d}{FRAME_SUFFIX}"


def read_video(path: Path) -> Listing:
    """Lists the frames of a video; it is decoded once for that, since headers are often wrong about their number.

    Raises:
        DataError: it cannot be opened, or has no frame that can be decoded.
    """
    facts = measure_video(path)
    height, width = facts.size_hw
    entries = tuple(RoidbEntry(number, frame_path(path, number), height, width) for number in range(facts.frames))
    notes = []
    if facts.stated_frames > 0 and facts.stated_frames != facts.frames:
        notes.append(
            f"video whose header states another number of frames: {facts.stated_frames}, {facts.frames} decode"
        )
    if facts.complaints:
        notes.append(f"video that is damaged inside; the decoder says: {shorten(facts.complaints, limit=3)}")
    return Listing(path.stem, "video", path.parent, (), entries, tuple(notes))


def read_rate(path: Path) -> float:
    """Returns the frames a second of a video, 25 where it says nothing that can be meant.

    Raises:
        DataError: it cannot be opened.
    """
    with _opened(path) as capture:
        rate = float(capture.get(open_cv2().CAP_PROP_FPS))
    return rate if 0 < rate <= _MOST_RATE else DEFAULT_RATE


def encode_frame(path: Path) -> bytes:
    """Returns the frame at a path `VIDEO/NUMBER.frame` as the bytes of a BMP file, which loses nothing.

    Raises:
        DataError: the video cannot be opened, or has no such frame.
    """
    frame = read_frame(path)
    fits, content = open_cv2().imencode(".bmp", frame)
    if not fits:
        raise DataError(f"{path}: a frame of {frame.shape[1]} x {frame.shape[0]} pixels cannot be encoded")
    encoded: bytes = content.tobytes()
    return encoded


def read_frame(path: Path) -> UInt8:
    """Returns the frame at a path `VIDEO/NUMBER.frame`, (H, W, 3) uint8 BGR.

    Raises:
        DataError: the video cannot be opened, or has no such frame.
    """
    if not path.stem.isascii() or not path.stem.isdigit():
        raise DataError(f"{path}: expected the number of a frame, got {path.stem!r}")
    with _LOCK:
        reader = _reader_of(path.parent)
    return reader.read(int(path.stem))


class _FrameReader:
    """Gives frames of one video by number, to one thread at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._capture: Any = None
        self._next = 0
        self._passed: OrderedDict[int, UInt8] = OrderedDict()

    def read(self, number: int) -> UInt8:
        with self._lock:
            if number not in self._passed:
                self._advance(number)
            return self._passed[number]

    def _advance(self, number: int) -> None:
        if self._capture is None or number < self._next:
            self.close()
            self._capture = _open_capture(self._path)
        while self._next <= number:
            if not self._capture.grab():
                raise DataError(
                    f"{self._path}: has {self._next} frames that can be decoded; frame {number} is asked for"
                )
            if number - self._next < _KEPT_FRAMES:
                self._keep(*self._capture.retrieve())
            self._next += 1
        if number not in self._passed:
            raise DataError(f"{self._path}: frame {number} cannot be decoded")

    def _keep(self, fits: bool, frame: UInt8) -> None:
        if fits:
            self._passed[self._next] = frame
        while len(self._passed) > _KEPT_FRAMES:
            self._passed.popitem(last=False)

    def close(self) -> None:
        if self._capture is not None:
            self._capture.release()
        self._capture = None
        self._next = 0
        self._passed.clear()


@functools.lru_cache(maxsize=_OPEN_VIDEOS)
def _reader_of(video: Path) -> _FrameReader:
    """Returns the reader that this process has of a video; one that is forgotten gives its file back when its last user is done."""
    return _FrameReader(video)


def _open_capture(path: Path) -> Any:
    os.environ.setdefault(LOG_LEVEL, _SILENT)  # what it complains of was said when the frames were counted
    cv2 = open_cv2()
    if not path.is_file():
        raise DataError(f"{path}: cannot be read (no such file)")
    capture = cv2.VideoCapture(str(path), cv2.CAP_FFMPEG)
    if not capture.isOpened():
        capture.release()
        raise DataError(
            f"{path}: cannot be opened as a video; the file is damaged, cut short, or of a kind not supported"
        )
    return capture


@contextlib.contextmanager
def _opened(path: Path) -> Any:
    capture = _open_capture(path)
    try:
        yield capture
    finally:
        capture.release()
