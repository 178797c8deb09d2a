"""A benchmark that was never run: made-up timings with known answers, for pages and comparisons."""

from __future__ import annotations

import datetime

import numpy as np

from roiline.core.timing import Span, Work
from roiline.infer.benchmark import Benchmark, Round, Subject, SweepPoint
from roiline.infer.benchmark_alone import EngineAlone
from roiline.infer.benchmark_machine import Ceilings
from roiline.infer.benchmark_probe import NetworkCost, PartCost, StageAlone
from roiline.infer.benchmark_trace import account_lanes, draw_timeline, measure_latencies, stage_ms_per_image
from roiline.infer.trace import Lane, Trace
from roiline.report.benchmark.document import Report, make_report

IMAGES = 120
WHEN = datetime.datetime(2030, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)


def make_trace(workers: int = 2, *, infer_s: float = 0.05) -> Trace:
    """Returns a run in which every worker's readers are a little ahead of its model."""
    random = np.random.default_rng(4)
    lanes = []
    for worker in range(workers):
        main, reader, clock, ready = [], [], 0.0, 0.0
        for image in range(worker, IMAGES, workers):
            work = Work(image // 8, (image,))
            read, decode, prepare = random.uniform(0.5, 1.5, 3) * (0.002, 0.012, 0.02)
            for stage, seconds in (("read", read), ("decode", decode), ("prepare", prepare)):
                reader.append(Span(stage, ready, seconds, work))
                ready += seconds
            taken = max(clock, ready)
            main.append(Span("wait_picture", clock, taken - clock, work))
            seconds = infer_s * random.uniform(0.8, 1.3)
            main += [Span("stack", taken, 0.001, work), Span("infer", taken + 0.001, seconds, work)]
            main.append(Span("post", taken + 0.001 + seconds, 0.002, work))
            clock = taken + 0.003 + seconds
        main.append(Span("wait_end", clock, 0.01))
        lanes += [
            Lane(worker, f"cpu {worker}", "main", tuple(main)),
            Lane(worker, f"cpu {worker}", "reader-0", tuple(reader)),
            Lane(worker, f"cpu {worker}", "writer", (Span("write", clock - 0.02, 0.02, Work(0, ())),)),
        ]
    ends = [span.start_s + span.seconds for lane in lanes for span in lane.spans]
    return Trace(max(ends) + 0.02, tuple(lanes))


def make_benchmark(*, rounds: int = 3, workers: int = 2, infer_s: float = 0.05, sweep: bool = True) -> Benchmark:
    """Returns a whole benchmark of the made-up run; rounds differ by two percent."""
    trace = make_trace(workers, infer_s=infer_s)
    accounts = account_lanes(trace)
    stages = stage_ms_per_image(accounts, IMAGES)
    typical = (rounds - 1) // 2
    walls = [trace.wall_s * (1 - 0.02 * (index - typical)) for index in range(rounds)]
    points = tuple(
        SweepPoint(count, size, 14.0 * count**0.8 * size**0.1, 16.0 * count**0.85 * size**0.12)
        for count, size in ((1, 1), (2, 1), (4, 1), (2, 2), (2, 4), (2, 8))
    )
    return Benchmark(
        subject=Subject(
            model="mask_rcnn_R-50-FPN_with_a_rather_long_name.onnx",
            model_sha256="0123456789abcdef" * 4,
            architecture="mask_rcnn_R-50-FPN",
            task="detections",
            precision="fp32",
            engine={"engine": "onnxruntime", "version": "1.30.0", "provider": "CPUExecutionProvider", "threads": "4"},
            data=("pets & <friends>",),
            images=IMAGES,
            network_shapes={"800x1088": 90, "1088x800": 30},
            devices=tuple(f"cpu {worker}" for worker in range(workers)),
            batch_size=1,
            batch_mode="exact",
            readers=1,
            read_ahead=3,
            threads=4,
        ),
        machine={
            "processor": "Imaginary 9000",
            "cores": 8,
            "usable_cores": 8,
            "memory_gib": 31.2,
            "system": "Linux 6.0",
            "load_at_start": [0.1, 0.25, 0.2],
            "python": "3.11.7",
            "versions": {"numpy": "2.0.0", "onnxruntime": "1.30.0"},
        },
        rounds=tuple(
            Round(IMAGES, 0, wall, IMAGES / wall, {"open_s": 1.5, "work_s": wall, "merge_s": 0.2}, stages)
            for wall in walls
        ),
        typical=typical,
        lanes=tuple(accounts),
        latencies=measure_latencies(trace),
        timeline=draw_timeline(trace),
        engine_rounds=tuple(EngineAlone(32, 0.9 + 0.01 * index, (0.05,) * 32) for index in range(rounds)),
        engine_batches=((1, 800, 1088),),
        stages_alone={
            stage: StageAlone(value, 0.98 * value, 1.05 * value)
            for stage, value in (
                ("read", 0.8),
                ("decode", 9.1),
                ("prepare", 15.2),
                ("stack", 0.004),
                ("infer", 48.0),
                ("post", 1.9),
                ("write", 0.3),
            )
        },
        network=NetworkCost(
            {
                "trunk": PartCost(0.030, 1.9e9, 1.1e8),
                "proposals": PartCost(0.008, 3.1e8, 9.0e6),
                "heads": PartCost(0.012, 5.5e8, 6.4e7),
            },
            8,
        ),
        ceilings=Ceilings(95.0, 18.5, 4),
        sweep=points if sweep else (),
    )


def make_case_report(*, baseline: bool = True, **options: object) -> Report:
    """Returns report.json's content, against a baseline that was slower."""
    before = make_report(make_benchmark(infer_s=0.09), now=WHEN) if baseline else None
    return make_report(make_benchmark(**options), baseline=before, now=WHEN)
