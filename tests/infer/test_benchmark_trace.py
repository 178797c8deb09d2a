"""What a trace says, on timings that are made up: accounts, latencies, time lines, and the file itself."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roiline.core.errors import DataError
from roiline.core.timing import Span, StageClock, Work
from roiline.infer.benchmark_trace import (
    account_lanes,
    distribute,
    draw_timeline,
    measure_latencies,
    stage_ms_per_image,
)
from roiline.infer.trace import Lane, Trace, TraceWindow, read_trace, write_trace

A, B = Work(0, (1,)), Work(0, (2,))
BATCH = Work(0, (1, 2))

READER = Lane(
    0,
    "cpu 0",
    "reader-0",
    (
        Span("read", 0.0, 0.1, A),
        Span("decode", 0.1, 0.2, A),
        Span("prepare", 0.3, 0.1, A),
        Span("read", 0.4, 0.1, B),
        Span("decode", 0.5, 0.2, B),
        Span("prepare", 0.7, 0.1, B),
    ),
)
MAIN = Lane(
    0,
    "cpu 0",
    "main",
    (
        Span("wait_picture", 0.0, 0.5, A),
        Span("wait_picture", 0.5, 0.3, B),
        Span("stack", 0.8, 0.1, BATCH),
        Span("infer", 0.9, 1.0, BATCH),
        Span("post", 1.9, 0.05, BATCH),
        Span("wait_end", 1.95, 0.05),
    ),
)
TRACE = Trace(2.0, (MAIN, READER))


def test_busy_and_waiting_add_up_to_the_wall_time() -> None:
    main, reader = account_lanes(TRACE._replace(wall_s=2.5))
    assert (main.busy_s, main.wait_s, main.other_s) == pytest.approx((1.15, 0.85, 0.0))
    assert (reader.busy_s, reader.wait_s, reader.other_s) == pytest.approx((0.8, 0.0, 1.2))
    assert (main.wall_s, reader.wall_s) == pytest.approx((2.0, 2.0))
    assert main.stages == pytest.approx(
        {"infer": 1.0, "post": 0.05, "stack": 0.1, "wait_end": 0.05, "wait_picture": 0.8}
    )


def test_stages_are_lane_time_a_picture() -> None:
    table = stage_ms_per_image(account_lanes(TRACE), 2)
    assert table["readers"] == pytest.approx({"read": 100, "decode": 200, "prepare": 100})
    assert table["main"]["infer"] == pytest.approx(500)


def test_latency_is_from_the_first_byte_to_the_result_and_service_leaves_the_queues_out() -> None:
    found = measure_latencies(TRACE)
    assert found is not None
    assert found.in_pipeline.stats.max_ms == pytest.approx(1950)
    assert found.in_pipeline.stats.p50_ms == pytest.approx(1550)
    assert found.service.stats.max_ms == found.service.stats.p50_ms == pytest.approx(400 + 1150)
    assert measure_latencies(Trace(2.0, (READER,))) is None


def test_one_id_in_two_shards_is_two_pictures() -> None:
    spans = tuple(Span("post", place, 0.5, Work(place, (7,))) for place in (0, 1))
    found = measure_latencies(Trace(2.0, (Lane(0, "cpu 0", "main", spans),)))
    assert found is not None
    assert found.in_pipeline.stats.count == 2


@given(st.lists(st.floats(1e-6, 100), min_size=1, max_size=300))
def test_percentiles_are_of_the_nearest_rank_and_no_duration_is_lost(seconds: list[float]) -> None:
    found = distribute(seconds)
    millis = 1000 * np.array(seconds)
    for share, value in ((0.5, found.stats.p50_ms), (0.9, found.stats.p90_ms), (0.99, found.stats.p99_ms)):
        assert np.isclose(millis, value, rtol=1e-12).any()
        assert (millis < value * (1 - 1e-12)).sum() < share * len(seconds) <= (millis <= value * (1 + 1e-12)).sum()
    assert sum(found.counts) == found.stats.count == len(seconds)
    assert found.stats.total_ms == pytest.approx(1000 * sum(seconds))
    assert found.low_ms < found.high_ms


def test_the_time_line_holds_the_engines_time_and_the_queues() -> None:
    line = draw_timeline(TRACE, bins=20)
    assert line.bin_s == pytest.approx(0.1)
    assert sum(line.device_use) * line.bin_s == pytest.approx(1.0)
    assert line.device_use[:9] == pytest.approx([0] * 9)
    assert line.device_use[9] == pytest.approx(1.0)
    # picture 1 is ready at 0.4 and taken at 0.5; picture 2 at 0.8, when it is waited for already
    assert line.queue[4] == pytest.approx(1.0)
    assert sum(line.queue) * line.bin_s == pytest.approx(0.1)


def test_several_workers_share_the_device_use() -> None:
    idle = Lane(1, "cpu 1", "main", (Span("wait_end", 0.0, 2.0),))
    line = draw_timeline(Trace(2.0, (MAIN, READER, idle)), bins=20)
    assert sum(line.device_use) * line.bin_s == pytest.approx(0.5)


def test_a_trace_is_cut_to_the_work_and_read_back(tmp_path: Path) -> None:
    spans = {
        (0, "reader-0"): [Span("read", 11.0, 0.5, A)],
        (0, "main"): [Span("wait_picture", 9.0, 2.5, A), Span("infer", 11.5, 1.0, A), Span("wait_end", 12.5, 5.0)],
    }
    path = tmp_path / "trace.json"
    write_trace(path, spans, devices={0: "gpu 3"}, window=TraceWindow(10.0, 14.0))
    trace = read_trace(path)
    assert trace.wall_s == 4.0
    assert [(lane.name, lane.device) for lane in trace.lanes] == [("main", "gpu 3"), ("reader-0", "gpu 3")]
    (main,) = trace.main_lanes
    assert [(s.stage, s.start_s, s.seconds) for s in main.spans] == [
        ("wait_picture", 0.0, 1.5),
        ("infer", 1.5, 1.0),
        ("wait_end", 2.5, 1.5),
    ]
    assert main.spans[1].work == A
    (account, _) = account_lanes(trace)
    assert account.busy_s + account.wait_s == pytest.approx(account.wall_s)


def test_the_file_is_what_trace_viewers_read(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    write_trace(
        path, {(0, "main"): [Span("infer", 1.0, 0.25, BATCH)]}, devices={0: "cpu 0"}, window=TraceWindow(0.5, 2.0)
    )
    events = json.loads(path.read_text())["traceEvents"]
    assert [event["ph"] for event in events] == ["M", "M", "X"]
    assert events[0] == {"ph": "M", "name": "process_name", "pid": 0, "tid": 0, "args": {"name": "worker 0 (cpu 0)"}}
    assert events[2] == {
        "ph": "X",
        "name": "infer",
        "cat": "work",
        "pid": 0,
        "tid": 0,
        "ts": 500000.0,
        "dur": 250000.0,
        "args": {"shard": 0, "images": [1, 2]},
    }


@pytest.mark.parametrize(
    "events",
    [[{"ph": "X"}], [{"ph": "X", "name": "infer", "pid": 0, "tid": 4, "ts": 0, "dur": 0}], [3], None],
)
def test_a_damaged_trace_is_refused(tmp_path: Path, events: object) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"format_version": 1, "otherData": {"wall_s": 1, "devices": {}}, "traceEvents": events}))
    with pytest.raises(DataError, match=r"trace\.json"):
        read_trace(path)


def test_a_clock_keeps_spans_only_where_it_is_traced() -> None:
    for traced in (False, True):
        clock = StageClock(traced=traced)
        with clock.measure("read", A):
            pass
        clock.add("prepare", 0.5)
        assert set(clock.take()) == {"read", "prepare"}
        spans = clock.take_spans()
        assert [(span.stage, span.work) for span in spans] == ([("read", A), ("prepare", None)] if traced else [])
        assert clock.take_spans() == []


def test_a_time_line_of_nothing_is_flat() -> None:
    line = draw_timeline(Trace(1.0, ()), bins=4)
    assert np.array(line.device_use).tolist() == np.array(line.queue).tolist() == [0.0] * 4
