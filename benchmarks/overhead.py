"""What the pool costs: a whole run with an engine that costs nothing, against bare processes that only read, decode and prepare.

Both do the same pictures with the same number of processes, in turn, several times; the medians and their ratio are printed, of images a
second and of images a second of processor time (all threads of all workers and the parent; what the wall clock would give on a machine
that does nothing else). The rate of the run is by the time in which shards are worked on: processes are up before in both.

Pictures are what is ordinary in this field: JPEGs of about 100 KB in the sizes of COCO's, brought to a shorter side of 800 pixels (at
most 1333) as Detectron's models want them; `--scale 600 --max-size 1000` is the older setting. A bare process does what a reader of the
run does, by the same functions, and nothing else: no reports, no results, no shards.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import cv2
import numpy as np
import onnx
from onnx import TensorProto, helper

from roiline.core.spec import METADATA_KEY, Conventions, DetectionRules, ImageRules, ModelSpec, Source
from roiline.infer.devices import cpu_slots
from roiline.infer.model import open_predictor
from roiline.infer.pictures import decode_picture, read_bytes
from roiline.infer.pool import Pool
from roiline.infer.preparation import prepare_picture
from roiline.infer.request import DataSource, RunRequest
from roiline.infer.run import run_dataset


class Rates(NamedTuple):
    """Is images a second, by the clock on the wall and by processor time."""

    wall: float
    processor: float


SIZES_HW = ((480, 640), (427, 640), (640, 480), (612, 612))
DIFFERENT = 250
"""How many different pictures there are; the others are further names of these."""


def make_rules(scale: int, max_size: int) -> ImageRules:
    """Returns Detectron's rules for a size of the network's input."""
    return ImageRules("BGR", (102.9801, 115.9465, 122.7717), (1.0, 1.0, 1.0), scale, max_size, "detectron", 32, "apply")


def make_spec(rules: ImageRules) -> ModelSpec:
    """Returns the specification of a model without a network."""
    return ModelSpec(
        architecture="benchmark",
        tasks=("proposals", "detections"),
        class_names=tuple(f"class_{i}" for i in range(1, 81)),
        class_names_known=False,
        conventions=Conventions("detectron", True, True, False, 4.135),
        images=rules,
        detection=DetectionRules(0.05, 0.5, 100, False, (10.0, 10.0, 5.0, 5.0)),
        seams={
            "images": ("data", "im_info", "im_size"),
            "proposals": ("rpn_boxes", "rpn_scores", "rpn_count"),
            "detections": ("boxes", "scores", "classes", "count"),
        },
        source=Source("benchmark", "0" * 64, "MODEL:\n  NUM_CLASSES: 81\n"),
    )


def write_model(path: Path, rules: ImageRules) -> Path:
    """Writes an ONNX file that carries a specification and a network that does nothing."""
    inputs, outputs = ([helper.make_tensor_value_info(name, TensorProto.FLOAT, [1])] for name in ("x", "y"))
    model = helper.make_model(helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", inputs, outputs))
    helper.set_model_props(model, {METADATA_KEY: make_spec(rules).to_json()})
    onnx.save(model, path)
    return path


def write_pictures(folder: Path, count: int) -> list[Path]:
    """Writes JPEGs whose decoding costs what photographs' does: smoothed noise, about 100 KB each."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(7)
    paths = [folder / f"{number:06d}.jpg" for number in range(count)]
    for number, path in enumerate(paths):
        if number >= DIFFERENT:
            path.hardlink_to(paths[number % DIFFERENT])
            continue
        noise = random.integers(0, 256, (*SIZES_HW[number % len(SIZES_HW)], 3), np.uint8)
        cv2.imwrite(str(path), cv2.GaussianBlur(noise, (0, 0), 1.0), [cv2.IMWRITE_JPEG_QUALITY, 90])
    return paths


def open_timed(model: Path, *args: Any, **options: Any) -> Any:
    """Is the predictor of the run's workers, which leaves behind how much processor time its process took after the warm-up.

    Its methods are its own but for two: `infer`, which only the warm-up calls, and `close`. So the counting costs nothing.
    """
    predictor: Any = open_predictor(model, *args, **options)
    infer, close = predictor.infer, predictor.close
    begun = 0.0

    def infer_and_begin(batch: Any) -> Any:
        nonlocal begun
        answer = infer(batch)
        begun = time.process_time()
        return answer

    def close_and_tell() -> None:
        (model.parent / f"{os.getpid()}.cpu").write_text(str(time.process_time() - begun))
        close()

    predictor.infer, predictor.close = infer_and_begin, close_and_tell
    return predictor


def prepare_all(paths: list[Path], rules: ImageRules, ready: Any, go: Any, done: Any, spent: Any) -> None:
    """Is the whole of a bare process: reads, decodes and prepares its pictures one by one."""
    cv2.setNumThreads(1)
    prepare_one(paths[0], rules)  # tables and buffers, as a warm-up of a run does
    ready.release()
    go.wait()
    began = time.process_time()
    for path in paths:
        prepare_one(path, rules)
    done.release()
    with spent.get_lock():
        spent.value += time.process_time() - began


def prepare_one(path: Path, rules: ImageRules) -> None:
    """Does with a picture what a reader of a run does."""
    prepare_picture(decode_picture(read_bytes(path), where=path), rules)


def time_bare(paths: list[Path], rules: ImageRules, workers: int) -> Rates:
    """Returns the rates of `workers` bare processes that share the pictures out evenly, by sizes too."""
    spawn = multiprocessing.get_context("spawn")
    ready, done, go = spawn.Semaphore(0), spawn.Semaphore(0), spawn.Event()
    spent = spawn.Value("d", 0.0)
    mixed = sorted(paths, key=lambda path: hashlib.sha256(path.name.encode()).digest())
    processes = [
        spawn.Process(target=prepare_all, args=(mixed[n::workers], rules, ready, go, done, spent))
        for n in range(workers)
    ]
    for process in processes:
        process.start()
    for _ in processes:
        ready.acquire()
    began = time.perf_counter()
    go.set()
    for _ in processes:
        done.acquire()
    wall_s = time.perf_counter() - began
    for process in processes:
        process.join()
    return Rates(len(paths) / wall_s, len(paths) / spent.value)


def time_run(model: Path, folder: Path, out: Path, workers: int) -> Rates:
    """Returns the rates of a run with the fake engine."""
    request = RunRequest(
        model=model,
        task="detections",
        data=(DataSource(str(folder)),),
        out=out,
        slots=cpu_slots(workers),
        engine="fake",
        formats=("coco",),
        predictor="overhead:open_timed",
    )
    spent = 0.0

    def run_timed(pool: Pool, *args: Any, **options: Any) -> Any:
        nonlocal spent
        began = time.process_time()
        try:
            return Pool.run(pool, *args, **options)
        finally:
            spent = time.process_time() - began

    with mock.patch("roiline.infer.run.Pool", type("TimedPool", (Pool,), {"run": run_timed})):
        summary = run_dataset(request, progress=False)
    assert summary.exit_code == 0
    for path in model.parent.glob("*.cpu"):
        spent += float(path.read_text())
        path.unlink()
    timing = json.loads((out / "timing.json").read_text())
    return Rates(timing["images_per_s"], timing["images"] / spent)


def main() -> None:
    """Measures both in turn and prints medians and the median of the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=4000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--scale", type=int, default=800)
    parser.add_argument("--max-size", type=int, default=1333)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        rules = make_rules(options.scale, options.max_size)
        model = write_model(root / "model.onnx", rules)
        paths = write_pictures(root / "pictures", options.images)
        pairs = []
        for round_ in range(options.rounds):
            bare = time_bare(paths, rules, options.workers)
            run = time_run(model, root / "pictures", root / f"out{round_}", options.workers)
            pairs.append((bare, run))
            print(f"round {round_ + 1}: {describe(bare, run)}", flush=True)
    medians = [Rates(*map(statistics.median, zip(*rates, strict=True))) for rates in zip(*pairs, strict=True)]
    print(f"medians: {describe(*medians)} ({options.workers} workers, {options.images} images)")
    ratios = [(run.wall / bare.wall, run.processor / bare.processor) for bare, run in pairs]
    wall, processor = (statistics.median(column) for column in zip(*ratios, strict=True))
    print(f"medians of the ratios: wall {wall:.3f}, processor {processor:.3f}")


def describe(bare: Rates, run: Rates) -> str:
    """Returns both rates of both as a line."""
    return (
        f"bare {bare.wall:.1f} images/s ({bare.processor:.1f} a processor second), "
        f"run {run.wall:.1f} images/s ({run.processor:.1f} a processor second)"
    )


if __name__ == "__main__":
    main()
