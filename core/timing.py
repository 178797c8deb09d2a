"""Stage timings: who spent how long on what, gathered lane by lane and summed up at the end.

A lane is one thread of one worker. A `StageClock` belongs to one lane; another thread takes its samples, which travel to the parent in
plain form and are merged there. Times are wall clock (`time.perf_counter`), in seconds while gathered and in milliseconds in reports.
"""

from __future__ import annotations

import math
import threading
import time
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np

from roiline.core.structures import ImageId

FORMAT_VERSION = 1

Samples: TypeAlias = "dict[str, array[float]]"
"""Stage name -> durations in seconds, in the order in which they were measured."""


class Work(NamedTuple):
    """Is what a span was spent on: images of one shard, by the scheduler's number of the shard."""

    shard: int
    images: tuple[ImageId, ...]


class Span(NamedTuple):
    """Is one duration with its start, in seconds of the machine's monotonic clock, which all its processes share."""

    stage: str
    start_s: float
    seconds: float
    work: Work | None = None


@dataclass(frozen=True, slots=True)
class StageStats:
    """Is what the durations of one stage come to, in milliseconds; percentiles are of the nearest rank (always a measured value)."""

    count: int
    total_ms: float
    mean_ms: float
    p50_ms: float
    p90_ms: float
    p99_ms: float
    max_ms: float


class StageClock:
    """Gathers the durations of one lane's stages; with `traced` also when each was, and on what."""

    def __init__(self, *, traced: bool = False) -> None:
        self._samples: Samples = {}
        self._spans: list[Span] | None = [] if traced else None
        self._lock = threading.Lock()

    def measure(self, stage: str, work: Work | None = None) -> Measured:
        """Times the block as one sample of `stage`, also when it raises."""
        return Measured(self, stage, work)

    def add(self, stage: str, seconds: float, *, start_s: float | None = None, work: Work | None = None) -> None:
        """Adds one duration, that of a block which ends now unless `start_s` says when it began."""
        with self._lock:
            samples = self._samples.get(stage)
            if samples is None:
                samples = self._samples[stage] = array("d")
            samples.append(seconds)
            if self._spans is not None:
                start = time.perf_counter() - seconds if start_s is None else start_s
                self._spans.append(Span(stage, start, seconds, work))

    def take(self) -> Samples:
        """Returns what was gathered since the last call, and starts anew."""
        with self._lock:
            taken, self._samples = self._samples, {}
        return taken

    def take_spans(self) -> list[Span]:
        """Returns the spans since the last call, none where the clock is not traced, and starts anew."""
        with self._lock:
            taken = self._spans or []
            if self._spans is not None:
                self._spans = []
        return taken


class Measured:
    """Is a block that is timed (a class, for a generator would cost several times as much)."""

    __slots__ = ("_clock", "_stage", "_start", "_work")

    def __init__(self, clock: StageClock, stage: str, work: Work | None) -> None:
        self._clock, self._stage, self._work = clock, stage, work

    def __enter__(self) -> None:
        self._start = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._clock.add(self._stage, time.perf_counter() - self._start, start_s=self._start, work=self._work)


class StageLedger:
    """Holds the samples of every worker and lane of a run, warm-up apart; `spans` are those of traced lanes by worker and lane."""

    def __init__(self) -> None:
        self.spans: dict[tuple[int, str], list[Span]] = {}
        self._lanes: dict[tuple[int, str], Samples] = {}
        self._warm_up: dict[int, Samples] = {}

    def add(self, worker: int, lane: str, samples: Samples) -> None:
        """Adds what one lane measured."""
        merge_samples(self._lanes.setdefault((worker, lane), {}), samples)

    def add_spans(self, worker: int, lane: str, spans: Iterable[Span]) -> None:
        """Adds when one lane was busy or waiting."""
        self.spans.setdefault((worker, lane), []).extend(spans)

    def add_warm_up(self, worker: int, samples: Samples) -> None:
        """Adds what a worker measured before its first picture."""
        merge_samples(self._warm_up.setdefault(worker, {}), samples)

    def report(self, *, wall_s: float, images: int, devices: Mapping[int, str]) -> dict[str, object]:
        """Returns the content of timing.json: totals, then each worker with its lanes."""
        workers = []
        for worker, device in sorted(devices.items()):
            lanes = {lane: samples for (owner, lane), samples in sorted(self._lanes.items()) if owner == worker}
            workers.append(
                {
                    "worker": worker,
                    "device": device,
                    "stages": summarize(lanes.values()),
                    "lanes": {lane: summarize([samples]) for lane, samples in lanes.items()},
                    "warm_up": summarize([self._warm_up.get(worker, {})]),
                }
            )
        return {
            "format_version": FORMAT_VERSION,
            "wall_s": wall_s,
            "images": images,
            "images_per_s": images / wall_s if wall_s > 0 else 0.0,
            "stages": summarize(self._lanes.values()),
            "warm_up": summarize(self._warm_up.values()),
            "workers": workers,
        }


def merge_samples(into: Samples, more: Samples) -> None:
    """Appends the samples of `more` to those of `into`, stage by stage."""
    for stage, seconds in more.items():
        into.setdefault(stage, array("d")).extend(seconds)


def stage_stats(seconds: array[float]) -> StageStats:
    """Returns the statistics of at least one duration."""
    millis = np.sort(np.frombuffer(seconds, np.float64)) * 1000.0
    p50, p90, p99 = (float(millis[max(0, math.ceil(share * millis.size) - 1)]) for share in (0.5, 0.9, 0.99))
    total = float(millis.sum())
    return StageStats(millis.size, total, total / millis.size, p50, p90, p99, float(millis[-1]))


def summarize(lanes: Iterable[Samples]) -> dict[str, dict[str, float]]:
    """Returns stage -> statistics in milliseconds over several lanes' samples, stages in order of name."""
    merged: Samples = {}
    for samples in lanes:
        merge_samples(merged, samples)
    fields = StageStats.__slots__
    stats = {stage: stage_stats(merged[stage]) for stage in sorted(merged)}
    return {stage: {name: getattr(entry, name) for name in fields} for stage, entry in stats.items()}
