"""What a run's trace says: how every lane spent its time, how long a picture takes, and how queues and devices filled over time."""

from __future__ import annotations

import math
from array import array
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from roiline.core.structures import Float64, ImageId
from roiline.core.timing import Span, StageStats, stage_stats
from roiline.infer.trace import Lane, Trace

ENGINE_STAGES = ("submit", "infer")
"""What a main lane does inside the engine: handing a batch over, where several may be in flight, and waiting for its answer."""

WAITING = "wait"
TIMELINE_BINS = 60
HISTOGRAM_BINS = 30

ImageKey: TypeAlias = tuple[int, int, ImageId]
"""A picture of a run: worker, the scheduler's number of its shard, its id."""

Interval: TypeAlias = tuple[float, float]


@dataclass(frozen=True, slots=True)
class LaneAccount:
    """Is how one lane spent the run: `busy_s` and `wait_s` are what it measured, `other_s` what is left of `wall_s`.

    `wall_s` is the worker's own: from the run's first order to the worker's last word, after which the parent still looks at the shards.
    Lanes that read and write do not measure their waiting: it is in `other_s`. `stages` are seconds by stage.
    """

    worker: int
    device: str
    lane: str
    wall_s: float
    busy_s: float
    wait_s: float
    other_s: float
    stages: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Distribution:
    """Is how a number of durations are distributed: statistics in milliseconds, and how many lie in each of the equal bins."""

    stats: StageStats
    low_ms: float
    high_ms: float
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Latencies:
    """Is how long pictures take: `in_pipeline` from the start of reading to the result, `service` without the time spent in queues.

    Where pictures share an engine call, the whole call is in each one's time.
    """

    in_pipeline: Distribution
    service: Distribution


@dataclass(frozen=True, slots=True)
class Timeline:
    """Is a run in equal slices of time.

    `device_use` is the share of the main lanes' time inside the engine (0 to 1), `queue` the mean number of pictures that are prepared
    and wait for the model, over all workers.
    """

    bin_s: float
    device_use: tuple[float, ...]
    queue: tuple[float, ...]


def account_lanes(trace: Trace) -> list[LaneAccount]:
    """Returns the account of every lane."""
    walls: dict[int, float] = defaultdict(float)
    for lane in trace.lanes:
        walls[lane.worker] = max([walls[lane.worker], *(span.start_s + span.seconds for span in lane.spans)])
    return [_account_lane(lane, walls[lane.worker]) for lane in trace.lanes]


def _account_lane(lane: Lane, wall_s: float) -> LaneAccount:
    stages: dict[str, float] = defaultdict(float)
    for span in lane.spans:
        stages[span.stage] += span.seconds
    wait_s = math.fsum(seconds for stage, seconds in stages.items() if stage.startswith(WAITING))
    busy_s = math.fsum(stages.values()) - wait_s
    return LaneAccount(
        lane.worker,
        lane.device,
        lane.name,
        wall_s,
        busy_s,
        wait_s,
        wall_s - busy_s - wait_s,
        dict(sorted(stages.items())),
    )


def lane_group(lane: str) -> str:
    """Returns what a lane is one of: `reader-0` and its like are `readers`."""
    return "readers" if lane.startswith("reader") else lane


def stage_ms_per_image(accounts: Iterable[LaneAccount], images: int) -> dict[str, dict[str, float]]:
    """Returns lane group -> stage -> milliseconds of lane time for each picture, over all workers."""
    sums: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for account in accounts:
        for stage, seconds in account.stages.items():
            sums[lane_group(account.lane)][stage] += 1000 * seconds / max(1, images)
    return {group: dict(stages) for group, stages in sums.items()}


def measure_latencies(trace: Trace) -> Latencies | None:
    """Returns how long pictures take; None where no picture has a result."""
    begun: dict[ImageKey, float] = {}
    done: dict[ImageKey, float] = {}
    service: dict[ImageKey, float] = defaultdict(float)
    for lane in trace.lanes:
        for span in lane.spans:
            for key in _image_keys(lane, span):
                if span.stage.startswith(WAITING):
                    continue
                service[key] += span.seconds
                begun[key] = min(span.start_s, begun.get(key, math.inf))
                if span.stage == "post":
                    done[key] = span.start_s + span.seconds
    if not done:
        return None
    return Latencies(distribute([done[key] - begun[key] for key in done]), distribute([service[key] for key in done]))


def _image_keys(lane: Lane, span: Span) -> list[ImageKey]:
    if span.work is None:
        return []
    return [(lane.worker, span.work.shard, image) for image in span.work.images]


def distribute(seconds: Sequence[float]) -> Distribution:
    """Returns the distribution of at least one duration."""
    millis = 1000 * np.array(seconds, np.float64)
    high = float(millis.max())
    low = float(millis.min())
    if high <= low:
        high = low + max(1e-6, 0.01 * low)
    counts, _ = np.histogram(millis, HISTOGRAM_BINS, (low, high))
    return Distribution(stage_stats(array("d", seconds)), low, high, tuple(counts.tolist()))


def draw_timeline(trace: Trace, *, bins: int = TIMELINE_BINS) -> Timeline:
    """Returns device use and queue fill over time."""
    edges = np.linspace(0, max(trace.wall_s, 1e-9), bins + 1)
    bin_s = float(edges[1])
    mains = trace.main_lanes
    inferring = [(s.start_s, s.start_s + s.seconds) for lane in mains for s in lane.spans if s.stage in ENGINE_STAGES]
    use = _overlap(inferring, edges) / (bin_s * max(1, len(mains)))
    queue = _overlap(_queued(trace), edges) / bin_s
    return Timeline(bin_s, tuple(use.tolist()), tuple(queue.tolist()))


def _queued(trace: Trace) -> list[Interval]:
    """Returns when each picture was prepared and had not been taken."""
    prepared: dict[ImageKey, float] = {}
    taken: dict[ImageKey, float] = {}
    for lane in trace.lanes:
        for span in lane.spans:
            for key in _image_keys(lane, span):
                if span.stage == "prepare":
                    prepared[key] = span.start_s + span.seconds
                elif span.stage == "wait_picture":
                    taken[key] = span.start_s + span.seconds
    return [(prepared[key], taken[key]) for key in prepared if taken.get(key, -math.inf) > prepared[key]]


def _overlap(intervals: Sequence[Interval], edges: Float64) -> Float64:
    """Returns how much of each bin the intervals cover together, in seconds."""
    if not intervals:
        return np.zeros(len(edges) - 1)
    starts, ends = np.array(intervals, np.float64).T
    low, high = edges[:-1, None], edges[1:, None]
    covered: Float64 = np.clip(np.minimum(high, ends) - np.maximum(low, starts), 0, None).sum(axis=1)
    return covered
