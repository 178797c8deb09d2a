"""A benchmark: the real pipeline over the data, several times; then the engine alone, each stage alone, and the parts of the network.

A round is an ordinary run, traced, with fresh workers over the whole data; its rate is images / wall, where the wall time is that of the
work alone (opening the model and merging the results are phases of their own). Every picture file is read once before, so that rounds do
not differ by what the system holds in memory.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from roiline.core.errors import EXIT_INTERRUPTED, DataError, UsageError
from roiline.core.files import make_folder, read_json_object, sha256_of_file
from roiline.core.spec import ModelSpec
from roiline.core.timing import FORMAT_VERSION as TIMING_VERSION
from roiline.engines.registry import resolve_engine
from roiline.infer.benchmark_alone import EngineAlone, Probes
from roiline.infer.benchmark_machine import Ceilings, describe_machine
from roiline.infer.benchmark_probe import NetworkCost, Opened, StageAlone
from roiline.infer.benchmark_trace import (
    LaneAccount,
    Latencies,
    Timeline,
    account_lanes,
    draw_timeline,
    measure_latencies,
    stage_ms_per_image,
)
from roiline.infer.cluster_transport import open_transport
from roiline.infer.dataset_run import DatasetRun, digest_models, load_datasets, prepare_dataset_run
from roiline.infer.devices import cpu_slots
from roiline.infer.manifest import TIMING_FILE
from roiline.infer.messages import ImageWork, Setup
from roiline.infer.pictures import read_bytes
from roiline.infer.request import RunRequest, Slot
from roiline.infer.run import complete_request, read_fitting_spec, run_dataset, worker_setup
from roiline.infer.trace import TRACE_FILE, read_trace

LOG = logging.getLogger("roiline.benchmark")

RUN_FOLDER = "run"
MOST_ROUNDS = 100
_SAMPLE = 16
_BATCH_SIZES = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True)
class Round:
    """Is one run of the pipeline: its pictures, its wall time, its phases in seconds, and lane time a picture by lane group and stage.

    `gpus` are the records of GPU use and memory that the run's timing.json has; none of a run on the CPU.
    """

    images: int
    failed: int
    wall_s: float
    images_per_s: float
    phases: Mapping[str, float]
    stages_ms: Mapping[str, Mapping[str, float]]
    gpus: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """Is one measurement of the sweep: one round of the pipeline and of the engines alone with other workers or another batch size."""

    workers: int
    batch_size: int
    images_per_s: float
    engine_images_per_s: float


@dataclass(frozen=True, slots=True)
class Subject:
    """Is what was measured: the model, the data and how it was run."""

    model: str
    model_sha256: str
    architecture: str
    task: str
    precision: str
    engine: Mapping[str, str]
    data: tuple[str, ...]
    images: int
    network_shapes: Mapping[str, int]
    devices: tuple[str, ...]
    batch_size: int
    batch_mode: str
    readers: int
    read_ahead: int
    threads: int


@dataclass(frozen=True, slots=True)
class Benchmark:
    """Is everything that was measured; `typical` is the index of the round of median rate, whose trace the details are from."""

    subject: Subject
    machine: Mapping[str, object]
    rounds: tuple[Round, ...]
    typical: int
    lanes: tuple[LaneAccount, ...]
    latencies: Latencies | None
    timeline: Timeline
    engine_rounds: tuple[EngineAlone, ...]
    engine_batches: tuple[tuple[int, int, int], ...]
    stages_alone: Mapping[str, StageAlone]
    network: NetworkCost | None
    ceilings: Ceilings | None
    sweep: tuple[SweepPoint, ...] = ()


@dataclass(frozen=True, slots=True)
class BenchmarkRequest:
    """Is a run to measure, how many rounds of it, and whether to try other numbers of workers and batch sizes."""

    run: RunRequest
    rounds: int = 3
    sweep: bool = False


def measure_benchmark(asked: BenchmarkRequest) -> tuple[Benchmark, Path]:
    """Measures; the results of the last round stay in `run/` of the OUT folder; the file returned is the typical round's trace there.

    Raises:
        UsageError: the rounds cannot be meant, or options do not fit together.
        InputError: the model or the data cannot be used.
        EngineError: the engine or a worker could not go on.
        KeyboardInterrupt: it was interrupted; a benchmark is not resumed.
    """
    if not 1 <= asked.rounds <= MOST_ROUNDS:
        raise UsageError(f"--repeat: expected 1 to {MOST_ROUNDS} rounds, got {asked.rounds}")
    machine = describe_machine()
    out = asked.run.out
    request = replace(complete_request(asked.run), out=out / RUN_FOLDER, fresh=True, traced=True)
    spec = read_fitting_spec(request)
    make_folder(request.out)
    runs = _plan(request, spec)
    images = [image for run in runs for image in _list_images(run)]
    _read_files(images)
    rounds = _run_rounds(request, asked.rounds)
    typical = middle([one.images_per_s for one in rounds])
    worker = worker_setup(request, spec)
    sample = choose_sample(images)
    with (
        open_transport(request) as start,
        Probes(request.slots, worker, sample, rounds=asked.rounds, folder=request.out, start=start) as probes,
    ):
        LOG.info("the engine alone, each stage alone, the network's parts")
        engine_rounds = tuple(probes.run_engines() for _ in range(asked.rounds))
        opened = probes.opened[0]
        alone, network, ceilings = probes.run_stages(), probes.run_network(), probes.measure_machine()
    trace_file = _keep_trace(request.out, typical, asked.rounds)
    trace = read_trace(trace_file)
    measured = Benchmark(
        subject=_describe_subject(request, spec, runs, worker, opened),
        machine=machine,
        rounds=tuple(rounds),
        typical=typical,
        lanes=tuple(account_lanes(trace)),
        latencies=measure_latencies(trace),
        timeline=draw_timeline(trace),
        engine_rounds=engine_rounds,
        engine_batches=opened.batches,
        stages_alone=alone,
        network=network,
        ceilings=ceilings,
        sweep=tuple(_sweep(request, sample)) if asked.sweep else (),
    )
    return measured, trace_file


def middle(values: Sequence[float]) -> int:
    """Returns the index of the median value: of an even number the lower of the two in the middle, so that it is one that was measured."""
    return sorted(range(len(values)), key=values.__getitem__)[(len(values) - 1) // 2]


def choose_sample(images: Sequence[ImageWork], *, size: int = _SAMPLE) -> list[ImageWork]:
    """Returns at most `size` pictures, evenly spread over the run's order."""
    if len(images) <= size:
        return list(images)
    return [images[index * len(images) // size] for index in range(size)]


def _plan(request: RunRequest, spec: ModelSpec) -> list[DatasetRun]:
    engine, digests = resolve_engine(request.engine, request.model), digest_models(request)
    datasets = load_datasets(request, spec)
    return [
        prepare_dataset_run(request, spec, out, dataset, data=data, engine=engine, digests=digests)
        for data, (out, dataset) in zip(request.data, datasets, strict=True)
    ]


def _list_images(run: DatasetRun) -> list[ImageWork]:
    return [image for key, shard in enumerate(run.shards) for image in run.shard_work(shard, key).images]


def _read_files(images: Sequence[ImageWork]) -> None:
    """Reads every picture file once; what cannot be read fails in the rounds, where it is counted."""
    for image in images:
        with contextlib.suppress(DataError):
            read_bytes(image.path)


def _run_rounds(request: RunRequest, count: int) -> list[Round]:
    """Runs all rounds; each one's trace is kept beside the run under its number."""
    rounds = []
    for number in range(count):
        one = _run_round(request)
        (request.out / TRACE_FILE).replace(_trace_of_round(request.out, number))
        LOG.info("round %d of %d: %.2f images/s", number + 1, count, one.images_per_s)
        rounds.append(one)
    return rounds


def _trace_of_round(out: Path, number: int) -> Path:
    return out / f"trace-{number}.json"


def _keep_trace(out: Path, typical: int, rounds: int) -> Path:
    """Removes the traces of the other rounds and returns the one that is left, under its usual name."""
    kept = _trace_of_round(out, typical).replace(out / TRACE_FILE)
    for number in range(rounds):
        _trace_of_round(out, number).unlink(missing_ok=True)
    return kept


def _run_round(request: RunRequest) -> Round:
    summary = run_dataset(request, progress=False)
    if summary.exit_code == EXIT_INTERRUPTED:
        raise KeyboardInterrupt
    timing = read_json_object(request.out / TIMING_FILE, format_version=TIMING_VERSION)
    images, wall_s = int(timing["images"]), float(timing["wall_s"])
    stages = stage_ms_per_image(account_lanes(read_trace(request.out / TRACE_FILE)), images)
    return Round(
        images, summary.failed, wall_s, images / wall_s, timing["phases"], stages, tuple(timing.get("gpus", ()))
    )


def _sweep(request: RunRequest, sample: Sequence[ImageWork]) -> list[SweepPoint]:
    """Tries other numbers of workers with the batch size that was asked for, and other batch sizes with its workers."""
    points = []
    folder = request.out.with_name("sweep")
    try:
        for slots, batch_size in list_sweep(request):
            tried = replace(request, slots=slots, batch_size=batch_size, out=folder, traced=True)
            one = _run_round(tried)
            worker = worker_setup(tried, read_fitting_spec(tried))
            with (
                open_transport(tried) as start,
                Probes(slots, worker, sample, rounds=1, folder=folder, start=start) as probes,
            ):
                engine = probes.run_engines()
            points.append(SweepPoint(len(slots), batch_size, one.images_per_s, engine.images_per_s))
            LOG.info("sweep, workers %d, batch size %d: %.2f images/s", len(slots), batch_size, one.images_per_s)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return points


def list_sweep(request: RunRequest) -> list[tuple[tuple[Slot, ...], int]]:
    """Returns the (workers, batch size) to try: 1, 2, 4, .. workers up to all cores or GPUs, then the batch sizes with those asked for."""
    on_cpu = request.slots[0].device.kind == "cpu" and request.cluster is None
    most = len(os.sched_getaffinity(0)) if on_cpu else len(request.slots)
    take: Callable[[int], tuple[Slot, ...]] = cpu_slots if on_cpu else lambda count: request.slots[:count]
    counts = sorted({1, most, *(2**power for power in range(1, 8) if 2**power < most)})
    tried = [(take(count), request.batch_size) for count in counts]
    asked = len(request.slots) in counts
    sizes = sorted({*_BATCH_SIZES, request.batch_size})
    return [*tried, *((request.slots, size) for size in sizes if not (asked and size == request.batch_size))]


def _describe_subject(
    request: RunRequest, spec: ModelSpec, runs: Sequence[DatasetRun], worker: Setup, opened: Opened
) -> Subject:
    shapes: dict[str, int] = {}
    for run in runs:
        for height, width in run.shapes:
            key = f"{height}x{width}"
            shapes[key] = shapes.get(key, 0) + 1
    return Subject(
        model=request.model.name,
        model_sha256=sha256_of_file(request.model),
        architecture=spec.architecture,
        task=request.task,
        precision=spec.precision,
        engine=opened.description,
        data=tuple(run.dataset.name for run in runs),
        images=sum(len(run.entries) for run in runs),
        network_shapes=dict(sorted(shapes.items(), key=lambda item: -item[1])),
        devices=tuple(slot.label for slot in request.slots),
        batch_size=request.batch_size,
        batch_mode=request.batch_mode,
        readers=worker.readers,
        read_ahead=worker.read_ahead,
        threads=request.slots[0].device.threads,
    )


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Returns the median of several rounds (of an even number the lower middle, as of `middle`), the least, the most, and all of them."""
    return {"median": statistics.median_low(values), "least": min(values), "most": max(values), "rounds": list(values)}
