"""A video measured in a process of its own: how many frames decode, their size, and what the decoder complains of meanwhile.

FFmpeg says what is wrong with a file on the standard error of its process and nowhere else, and it has been known to crash on damaged
ones. In a child process its words can be read, and a crash is an error of that file.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roiline.core.errors import DataError
from roiline.infer.pictures import open_cv2

LOG_LEVEL = "OPENCV_FFMPEG_LOGLEVEL"
"""The environment variable that says how much FFmpeg says; it is read once in a process."""

_COMPLAINT = re.compile(r"^\[[^\]]+ @ 0x[0-9a-f]+\] (.*)$", re.MULTILINE)
_PLACE = re.compile(r"[ :=]*\b\d+\b")
_NOT_A_VIDEO = "cannot be opened as a video; the file is damaged, cut short, or of a kind not supported"


@dataclass(frozen=True, slots=True)
class VideoFacts:
    """Is what a video is: frames that can be decoded, how many its header states (0: nothing), and their (height, width).

    `complaints` are the decoder's, each kind once.
    """

    frames: int
    stated_frames: int
    size_hw: tuple[int, int]
    complaints: tuple[str, ...]


def measure_video(path: Path) -> VideoFacts:
    """Decodes a video from end to end and says what it is.

    Raises:
        DataError: it cannot be opened, has no frame that can be decoded, or the decoder crashes over it.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    environment.pop(LOG_LEVEL, None)  # with it errors go to the standard output
    child = subprocess.run(
        [sys.executable, "-m", "roiline.infer.video_measuring", os.path.abspath(path)],
        env=environment,
        capture_output=True,
        check=False,
    )
    said = child.stderr.decode(errors="replace")
    if child.returncode < 0:
        raise DataError(f"{path}: the decoder crashed over it (signal {-child.returncode}); the file is damaged")
    if child.returncode:
        raise RuntimeError(f"{path}: measuring it failed: {said[-2000:]}")
    plain: dict[str, Any] = json.loads(child.stdout)
    if not plain["opened"]:
        raise DataError(f"{path}: {_NOT_A_VIDEO}")
    if not plain["frames"]:
        raise DataError(f"{path}: the video has no frame that can be decoded")
    complaints = dict.fromkeys(_PLACE.sub("", words).strip() for words in _COMPLAINT.findall(said))
    return VideoFacts(plain["frames"], plain["stated_frames"], (plain["height"], plain["width"]), tuple(complaints))


def _measure(path: str) -> dict[str, int | bool]:
    cv2 = open_cv2()
    capture = cv2.VideoCapture(path, cv2.CAP_FFMPEG)
    try:
        fits, first = capture.read()
        height, width = first.shape[:2] if fits else (0, 0)
        count = int(fits)
        while fits and capture.grab():
            count += 1
        stated = int(capture.get(cv2.CAP_PROP_FRAME_COUNT))
        facts = {"frames": count, "stated_frames": max(0, stated), "height": int(height), "width": int(width)}
        return {"opened": bool(capture.isOpened()), **facts}
    finally:
        capture.release()


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_measure(sys.argv[1])))
