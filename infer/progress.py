"""Progress for people: a bar on a terminal, plain lines elsewhere, and Detectron's two familiar lines in the log.

The familiar lines come with every tenth image. Their numbers mean what they mean there: average seconds an image for detection
(preparing, inferring) and for the rest (post-processing), over the images of this start.
"""

from __future__ import annotations

import logging
import sys
import time
from dataclasses import dataclass
from typing import TextIO

from roiline.core.spec import Task

LOG = logging.getLogger("roiline.run")

_LINE_EVERY_S = 10.0
_BAR_EVERY_S = 0.1
_BAR_WIDTH = 30
_LOG_EVERY = 10


@dataclass(slots=True)
class DatasetProgress:
    """Counts one dataset's images: `start` and `end` are its range, `total` the whole dataset, `done` what has a result or failed."""

    task: Task
    start: int
    end: int
    total: int
    done: int = 0
    timed: int = 0
    detect_s: float = 0.0
    misc_s: float = 0.0

    def finish_image(self, detect_s: float, misc_s: float, *, images_per_s: float) -> None:
        """Counts one image, and logs a familiar line if it is due."""
        place = self.done
        self.done += 1
        if detect_s > 0:
            self.timed += 1
            self.detect_s += detect_s
            self.misc_s += misc_s
        if place % _LOG_EVERY == 0:
            LOG.info("%s", self.familiar_line(place, images_per_s=images_per_s))

    def familiar_line(self, place: int, *, images_per_s: float) -> str:
        """Returns the line of image number `place` (from 0) of the range; the ETA is by the rate of the whole pool."""
        images = self.end - self.start
        detect, misc = (total / max(1, self.timed) for total in (self.detect_s, self.misc_s))
        left = images - place - 1
        eta = format_duration(left / images_per_s if images_per_s > 0 else left * (detect + misc))
        where = f"range [{self.start + 1}, {self.end}] of {self.total}: {self.start + place + 1}/{self.start + images}"
        if self.task == "proposals":
            return f"rpn_generate: {where} {detect + misc:.3f}s (eta: {eta})"
        timer = "classify_im" if self.task == "classification" else "im_detect"
        return f"{timer}: {where} {detect:.3f}s + {misc:.3f}s (eta: {eta})"


class RunProgress:
    """Shows how far a run is, on stderr unless told otherwise."""

    def __init__(self, images: int, done: int, *, stream: TextIO | None = None, shown: bool = True) -> None:
        self._stream: TextIO | None = stream if stream is not None else sys.stderr
        self._shown = shown and self._stream is not None  # a process may be started with its stderr closed
        self._terminal = self._stream is not None and not self._stream.closed and self._stream.isatty()
        self._images = images
        self._done_before = self._done = done
        self._failed = 0
        self._started = self._last_shown = time.monotonic()

    @property
    def images_per_s(self) -> float:
        """Is the rate since this start."""
        elapsed = time.monotonic() - self._started
        return (self._done - self._done_before) / elapsed if elapsed > 0 else 0.0

    def count(self, *, failed: bool) -> None:
        """Counts one finished image."""
        self._done += 1
        self._failed += failed

    def show(self, *, last: bool = False) -> None:
        """Shows the state if it is time to (or if it is the last time)."""
        now = time.monotonic()
        due = last or now - self._last_shown >= (_BAR_EVERY_S if self._terminal else _LINE_EVERY_S)
        if self._stream is None or not self._shown or not due:
            return
        self._last_shown = now
        text = self.describe()
        if self._terminal:
            filled = _BAR_WIDTH * self._done // max(1, self._images)
            text = f"\r[{'#' * filled}{'-' * (_BAR_WIDTH - filled)}] {text}\x1b[K"
        try:
            self._stream.write(text + ("\n" if last or not self._terminal else ""))
            self._stream.flush()
        except OSError as error:  # whoever read it has gone, or its disk is full: no reason to end the work
            self._shown = False
            LOG.debug("progress is not shown any more: %s", error)

    def describe(self) -> str:
        """Returns the state as one line."""
        rate = self.images_per_s
        eta = format_duration((self._images - self._done) / rate) if rate > 0 else "unknown"
        failed = f", {self._failed} failed" if self._failed else ""
        return f"{self._done}/{self._images} images, {rate:.2f} images/s, ETA {eta}{failed}"


def format_duration(seconds: float) -> str:
    """Returns whole seconds as h:mm:ss, with days before them where there are any (as Python's timedelta prints them)."""
    days, rest = divmod(int(seconds), 86400)
    text = f"{rest // 3600}:{rest % 3600 // 60:02d}:{rest % 60:02d}"
    return text if not days else f"{days} day{'s' if days > 1 else ''}, {text}"
