"""A whole benchmark: with the fake engine its numbers add up."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from run_support import make_request, write_model, write_pictures

from roiline.core.errors import DataError, UsageError
from roiline.engines.protocol import Device
from roiline.infer.benchmark import (
    RUN_FOLDER,
    Benchmark,
    BenchmarkRequest,
    choose_sample,
    list_sweep,
    measure_benchmark,
    middle,
    spread,
)
from roiline.infer.benchmark_alone import Probes
from roiline.infer.messages import ImageWork
from roiline.infer.request import Slot
from roiline.infer.run import read_fitting_spec, worker_setup
from roiline.infer.trace import read_trace

IMAGES = 48


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("root")
    write_model(folder / "model.onnx")
    write_pictures(folder / "pictures", IMAGES)
    return folder


@pytest.fixture(scope="module")
def measured(root: Path) -> tuple[Benchmark, Path]:
    """Two rounds with two workers and the fake engine."""
    request = make_request(root, root / "out", workers=2, batch_size=2)
    return measure_benchmark(BenchmarkRequest(request, rounds=2))


def test_rates_are_images_by_wall(measured: tuple[Benchmark, Path]) -> None:
    benchmark, _ = measured
    assert len(benchmark.rounds) == len(benchmark.engine_rounds) == 2
    for one in benchmark.rounds:
        assert (one.images, one.failed) == (IMAGES, 0)
        assert one.images_per_s == one.images / one.wall_s
        assert one.wall_s == one.phases["work_s"]
    for engine in benchmark.engine_rounds:
        assert engine.images == 2 * 16  # both workers' engines over the sample
        assert engine.images_per_s == engine.images / engine.seconds
        assert sum(engine.calls_s) <= 2 * engine.seconds
    assert benchmark.rounds[benchmark.typical].images_per_s == min(one.images_per_s for one in benchmark.rounds)


def test_the_main_lanes_busy_and_waiting_add_up_to_the_wall(root: Path, tmp_path: Path) -> None:
    request = make_request(root, tmp_path, workers=2, batch_size=2, predictor="run_support:open_steady")
    benchmark, _ = measure_benchmark(BenchmarkRequest(request, rounds=1))
    mains = [lane for lane in benchmark.lanes if lane.lane == "main"]
    assert [lane.worker for lane in mains] == [0, 1]
    for lane in mains:
        assert lane.wall_s <= benchmark.rounds[benchmark.typical].wall_s + 1e-5  # spans are kept to the nanosecond
        assert lane.busy_s + lane.wait_s == pytest.approx(lane.wall_s, rel=0.05)
    assert {lane.lane for lane in benchmark.lanes} >= {"main", "reader-0", "writer"}


def test_every_picture_has_its_latency(measured: tuple[Benchmark, Path]) -> None:
    benchmark, _ = measured
    assert benchmark.latencies is not None
    assert benchmark.latencies.in_pipeline.stats.count == IMAGES
    assert benchmark.latencies.service.stats.p50_ms <= benchmark.latencies.in_pipeline.stats.p50_ms


def test_the_trace_left_is_that_of_the_typical_round(measured: tuple[Benchmark, Path], root: Path) -> None:
    benchmark, file = measured
    assert file == root / "out" / RUN_FOLDER / "trace.json"
    assert read_trace(file).wall_s == pytest.approx(benchmark.rounds[benchmark.typical].wall_s)
    assert not list(file.parent.glob("trace-*"))
    for lane in read_trace(file).lanes:
        for before, after in pairwise(lane.spans):
            assert after.start_s >= before.start_s + before.seconds - 2e-8  # nothing is counted twice
    assert len(json.loads((file.parent / "bbox_results.json").read_text())) > 0


def test_an_engine_without_a_profiler_has_no_parts(measured: tuple[Benchmark, Path]) -> None:
    benchmark, _ = measured
    assert benchmark.network is None
    assert set(benchmark.stages_alone) == {"read", "decode", "prepare", "stack", "infer", "post", "write"}
    for alone in benchmark.stages_alone.values():
        assert 0 < alone.least_ms <= alone.median_ms <= alone.most_ms
    assert benchmark.ceilings is not None
    assert min(benchmark.ceilings.gflops, benchmark.ceilings.copy_gb_per_s) > 0


def test_the_subject_says_what_was_run(measured: tuple[Benchmark, Path]) -> None:
    subject = measured[0].subject
    assert (subject.model, subject.batch_size, subject.devices) == ("model.onnx", 2, ("cpu 0", "cpu 1"))
    assert sum(subject.network_shapes.values()) == subject.images == IMAGES
    assert subject.engine["backend"] == "fake"


@pytest.mark.golden
def test_a_sweep_measures_every_point_and_leaves_nothing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    request = make_request(root, root / "swept", workers=1, limit=6)
    monkeypatch.setattr("roiline.infer.benchmark.list_sweep", lambda asked: [(asked.slots, 2)])
    benchmark, _ = measure_benchmark(BenchmarkRequest(request, rounds=1, sweep=True))
    assert [(point.workers, point.batch_size) for point in benchmark.sweep] == [(1, 2)]
    assert min(benchmark.sweep[0].images_per_s, benchmark.sweep[0].engine_images_per_s) > 0
    assert not (root / "swept" / "sweep").exists()


def test_a_sweep_tries_workers_and_batch_sizes_each_once(root: Path) -> None:
    request = make_request(root, root / "swept", workers=2, batch_size=2)
    tried = [(len(slots), size) for slots, size in list_sweep(request)]
    assert len(set(tried)) == len(tried)
    assert {(1, 2), (2, 1), (2, 2), (2, 4), (2, 8)} <= set(tried)
    gpus = tuple(Slot(Device("cuda"), {}, f"gpu {index}") for index in range(3))
    tried = [(len(slots), size) for slots, size in list_sweep(replace(request, slots=gpus))]
    assert tried == [(1, 2), (2, 2), (3, 2), (3, 1), (3, 4), (3, 8)]


def test_pictures_that_cannot_be_read_fail_in_the_rounds_and_are_not_measured_with(root: Path, tmp_path: Path) -> None:
    write_model(tmp_path / "model.onnx")
    write_pictures(tmp_path / "pictures", 4)
    (tmp_path / "pictures" / "000010.png").write_bytes(b"no picture")
    benchmark, _ = measure_benchmark(BenchmarkRequest(make_request(tmp_path, tmp_path / "out"), rounds=1))
    assert (benchmark.rounds[0].failed, benchmark.rounds[0].images) == (1, 4)
    assert benchmark.engine_rounds[0].images == 3


def test_a_benchmark_of_no_readable_picture_says_so(root: Path, tmp_path: Path) -> None:
    picture = tmp_path / "a.png"
    picture.write_bytes(b"no picture")
    request = make_request(root, tmp_path)
    worker = worker_setup(request, read_fitting_spec(request))
    with pytest.raises(DataError, match="none of the pictures to measure with"):
        Probes(request.slots, worker, [ImageWork(0, 0, str(picture), None)], rounds=1, folder=tmp_path)


@pytest.mark.parametrize("rounds", [0, -1, 101])
def test_rounds_that_cannot_be_meant_are_refused(root: Path, rounds: int) -> None:
    with pytest.raises(UsageError, match="--repeat"):
        measure_benchmark(BenchmarkRequest(make_request(root, root / "never"), rounds=rounds))


def test_the_middle_is_a_value_that_was_measured() -> None:
    assert middle([5.0]) == 0
    assert middle([5.0, 1.0, 3.0]) == 2
    assert middle([4.0, 1.0, 3.0, 2.0]) == 3
    assert spread([2.0, 1.0]) == {"median": 1.0, "least": 1.0, "most": 2.0, "rounds": [2.0, 1.0]}


def test_the_sample_is_spread_over_the_run() -> None:
    images = [ImageWork(place, place, "x", None) for place in range(100)]
    sample = [image.position for image in choose_sample(images, size=4)]
    assert sample == [0, 25, 50, 75]
    assert choose_sample(images[:3], size=4) == images[:3]
