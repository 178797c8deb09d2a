"""trace.json: when every lane of a run was busy or waiting, as Chrome trace events, which Perfetto and chrome://tracing open.

A worker is a process of the trace and a lane is a thread of it. Times are microseconds since the run's work began. What a worker did
before that (it waits for its first order while the dataset is read) is cut off, so that the lanes and the run's wall time agree.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from roiline.core.errors import DataError
from roiline.core.files import read_json_object, write_durable
from roiline.core.timing import Span, Work

FORMAT_VERSION = 1
TRACE_FILE = "trace.json"
_MAIN = "main"


class TraceWindow(NamedTuple):
    """Is when a run's work began and ended, in seconds of the clock that its spans have."""

    start_s: float
    end_s: float

    @property
    def seconds(self) -> float:
        """Is how long the work took."""
        return self.end_s - self.start_s


class Lane(NamedTuple):
    """Is one thread of one worker with its spans by start, in seconds since the work began."""

    worker: int
    device: str
    name: str
    spans: tuple[Span, ...]


class Trace(NamedTuple):
    """Is a run as its lanes saw it; `wall_s` is how long its work took."""

    wall_s: float
    lanes: tuple[Lane, ...]

    @property
    def main_lanes(self) -> tuple[Lane, ...]:
        """Are the lanes that run the model, one a worker."""
        return tuple(lane for lane in self.lanes if lane.name == _MAIN)


def write_trace(
    path: Path, spans: Mapping[tuple[int, str], Iterable[Span]], *, devices: Mapping[int, str], window: TraceWindow
) -> None:
    """Writes the spans of every worker and lane that lie in the window."""
    events: list[dict[str, Any]] = []
    for worker, device in sorted(devices.items()):
        events.append(_name_event("process_name", f"worker {worker} ({device})", worker))
    for number, ((worker, lane), taken) in enumerate(sorted(spans.items(), key=_main_first)):
        events.append(_name_event("thread_name", lane, worker, number))
        events += _span_events(_clip(taken, window), worker, number)
    other = {
        "wall_s": window.seconds,
        "devices": {str(worker): device for worker, device in devices.items()},
    }
    head = json.dumps({"format_version": FORMAT_VERSION, "displayTimeUnit": "ms", "otherData": other})[:-1]
    lines = ",\n".join(json.dumps(event, ensure_ascii=False) for event in events)  # one a line: there may be a million
    write_durable(path, f'{head}, "traceEvents": [\n{lines}\n]}}\n'.encode())


def _main_first(entry: tuple[tuple[int, str], object]) -> tuple[int, bool, str]:
    (worker, lane), _ = entry
    return worker, lane != _MAIN, lane


def _name_event(kind: str, name: str, worker: int, lane: int = 0) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": worker, "tid": lane, "args": {"name": name}}


def _span_events(spans: Iterable[Span], worker: int, lane: int) -> Iterator[dict[str, Any]]:
    for span in spans:
        event: dict[str, Any] = {
            "ph": "X",
            "name": span.stage,
            "cat": "wait" if span.stage.startswith("wait") else "work",
            "pid": worker,
            "tid": lane,
            "ts": round(span.start_s * 1e6, 3),
            "dur": round(span.seconds * 1e6, 3),
        }
        if span.work is not None:
            event["args"] = {"shard": span.work.shard, "images": list(span.work.images)}
        yield event


def _clip(spans: Iterable[Span], window: TraceWindow) -> list[Span]:
    """Returns the parts of spans that lie in the window, by start, in seconds since it began."""
    clipped = []
    for span in spans:
        start = max(span.start_s, window.start_s)
        end = min(span.start_s + span.seconds, window.end_s)
        if end > start:
            clipped.append(span._replace(start_s=start - window.start_s, seconds=end - start))
    return sorted(clipped, key=lambda span: span.start_s)


def read_trace(path: Path) -> Trace:
    """Reads a trace back.

    Raises:
        DataError: the file is absent, damaged, or of another format version.
    """
    plain = read_json_object(path, format_version=FORMAT_VERSION)
    try:
        other, events = plain["otherData"], plain["traceEvents"]
        names = {
            (event["pid"], event["tid"]): event["args"]["name"] for event in events if event["name"] == "thread_name"
        }
        spans: dict[tuple[int, int], list[Span]] = {key: [] for key in names}
        for event in events:
            if event["ph"] == "X":
                spans[event["pid"], event["tid"]].append(_span_from_event(event))
        lanes = tuple(
            Lane(worker, other["devices"][str(worker)], name, tuple(spans[worker, number]))
            for (worker, number), name in names.items()
        )
        return Trace(float(other["wall_s"]), lanes)
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path}: damaged: not a trace as a run writes it ({error!r})") from error


def _span_from_event(event: Mapping[str, Any]) -> Span:
    args = event.get("args")
    work = None if args is None else Work(args["shard"], tuple(args["images"]))
    return Span(event["name"], event["ts"] / 1e6, event["dur"] / 1e6, work)
