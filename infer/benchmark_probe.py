"""A probe: one process on one device that measures what a worker's parts do alone, without a pipeline around them.

It prepares a few of the run's own pictures, keeps them in memory, and then takes orders from its parent over a pipe: run the engine over
all batches once (so that the probes of several workers run at the same time, as the workers do), each stage alone, the network's parts by
the engine's profiler, the machine's ceilings.
"""

from __future__ import annotations

import logging
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Literal, TypeAlias

from roiline.core.errors import DataError, RoilineError
from roiline.core.structures import ImageBatch, Result, UInt8
from roiline.core.timing import StageClock
from roiline.engines.model_file import load_model
from roiline.engines.profiling import profile_model
from roiline.infer.benchmark_machine import Ceilings, measure_ceilings
from roiline.infer.benchmark_operations import PARTS, NodeParts, Part, count_layers, join_costs
from roiline.infer.feeds import make_feeds
from roiline.infer.messages import ImageWork, Setup
from roiline.infer.model import choose_stage
from roiline.infer.opening import open_predictor, warm_up
from roiline.infer.pictures import decode_picture, read_bytes
from roiline.infer.predictor import Predictor
from roiline.infer.preparation import PreparedPicture, prepare_picture, stack_batch
from roiline.infer.request import spec_with_overrides
from roiline.infer.shards import write_shard

LOG = logging.getLogger("roiline.benchmark")

PROFILED_BATCHES = 3

Order: TypeAlias = Literal["engine", "stages", "network", "ceilings", "stop"]


@dataclass(frozen=True, slots=True)
class ProbeSetup:
    """Is the first message to a probe: the worker that it stands for, pictures to measure with, and a folder for what it writes."""

    worker: Setup
    images: tuple[ImageWork, ...]
    rounds: int
    folder: Path


@dataclass(frozen=True, slots=True)
class Opened:
    """Says that the model is open and warm: what was got, and the batches that were made (images, height, width)."""

    description: Mapping[str, str]
    batches: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class EngineRound:
    """Is one round of the engine alone over all batches: seconds of the whole, and of each call."""

    images: int
    seconds: float
    calls_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class StageAlone:
    """Is one stage alone on one thread: milliseconds a picture, median, least and most over the rounds."""

    median_ms: float
    least_ms: float
    most_ms: float


@dataclass(frozen=True, slots=True)
class PartCost:
    """Is one part of the network: its time by the engine's profiler, the operations and bytes of its matrix layers; all for a picture."""

    seconds: float
    operations: float
    bytes: float


@dataclass(frozen=True, slots=True)
class NetworkCost:
    """Is the network's parts; None instead of one where the engine has no profiler on this device or the graph is not an ONNX file."""

    parts: Mapping[Part, PartCost]
    images: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """Says why the probe could not do what it was told: an error's class name and text."""

    kind: str
    text: str


Answer: TypeAlias = Opened | EngineRound | dict[str, StageAlone] | NetworkCost | Ceilings | Refusal | None


class Probe:
    """Holds an opened model and prepared batches."""

    def __init__(self, setup: ProbeSetup) -> None:
        self._setup = setup
        worker = setup.worker
        self._predictor: Predictor = open_predictor(worker)
        warm_up(self._predictor, worker, StageClock())
        self._rules = spec_with_overrides(self._predictor.spec, worker.overrides).image_rules
        prepared = list(self._prepare_readable(setup.images))
        if not prepared:
            raise DataError("none of the pictures to measure with could be read; the run's failed.json says why")
        self._images = tuple(entry[0] for entry in prepared)
        self._batches = self._make_batches(prepared)
        for batch in self._batches[:1]:
            self._predictor.run(batch)

    def describe(self) -> Opened:
        """Returns what was opened."""
        shapes = tuple((len(batch.ids), *batch.pixels.shape[2:]) for batch in self._batches)
        return Opened(dict(self._predictor.description), shapes)

    def run_engine(self) -> EngineRound:
        """Runs the engine over all batches once."""
        calls = []
        begun = time.perf_counter()
        for batch in self._batches:
            start = time.perf_counter()
            self._predictor.infer(batch)
            calls.append(time.perf_counter() - start)
        seconds = time.perf_counter() - begun
        return EngineRound(sum(len(batch.ids) for batch in self._batches), seconds, tuple(calls))

    def run_stages(self) -> dict[str, StageAlone]:
        """Runs every stage alone, on this thread, over all pictures."""
        images, rules, worker = self._images, self._rules, self._setup.worker
        data = [read_bytes(image.path) for image in images]
        pictures = [self._decode(image, content) for image, content in zip(images, data, strict=True)]
        raw = [self._predictor.infer(batch) for batch in self._batches]
        results = [
            (place, result)
            for place, result in enumerate(
                result
                for outputs, batch in zip(raw, self._batches, strict=True)
                for result in self._predictor.finish(outputs, batch)
            )
        ]
        groups = [[batch.pixels[row] for row in range(len(batch.ids))] for batch in self._batches]
        return {
            "read": self._time(lambda: [read_bytes(image.path) for image in images]),
            "decode": self._time(lambda: [self._decode(*pair) for pair in zip(images, data, strict=True)]),
            "prepare": self._time(lambda: [prepare_picture(picture, rules) for picture in pictures]),
            "stack": self._time(lambda: [_stack_again(pixels) for pixels in groups]),
            "infer": self._time(lambda: [self._predictor.infer(batch) for batch in self._batches]),
            "post": self._time(
                lambda: [self._predictor.finish(*pair) for pair in zip(raw, self._batches, strict=True)]
            ),
            "write": self._time(lambda: _write(self._setup.folder / "alone.shard", results, worker)),
        }

    def run_network(self) -> NetworkCost | None:
        """Returns the parts of the network by the engine's profiler and by the graph.

        None where the engine has no profiler on this device, the model is no ONNX file, or its proposals are another model's.
        """
        worker, spec = self._setup.worker, self._predictor.spec
        fed = spec.given_proposals is None or all(batch.proposals for batch in self._batches)
        if worker.model.suffix != ".onnx" or worker.device.kind != "cpu" or not fed:
            return None
        batches = self._batches[:PROFILED_BATCHES]
        stage = choose_stage(spec, worker.task)
        feeds = [make_feeds(batch, spec, self._rules) for batch in batches]
        calls = profile_model(worker.model, engine=worker.engine, device=worker.device, stage=stage, feeds=feeds)
        if calls is None:
            return None
        images = sum(len(batch.ids) for batch in batches)
        costs = [join_costs(count_layers(worker.model, spec, feed, stage=stage)) for feed in feeds]
        parts = NodeParts(load_model(worker.model, weights_beside=False), spec)
        times = [parts.sum_times(call) for call in calls]
        return NetworkCost(
            {
                part: PartCost(
                    sum(time_s[part] for time_s in times) / images,
                    sum(cost[part][0] for cost in costs) / images,
                    sum(cost[part][1] for cost in costs) / images,
                )
                for part in PARTS
            },
            images,
        )

    def measure_machine(self) -> Ceilings | None:
        """Returns what this process can reach on the CPU; None where the model runs elsewhere."""
        device = self._setup.worker.device
        return measure_ceilings(max(1, device.threads)) if device.kind == "cpu" else None

    def close(self) -> None:
        """Gives the model back."""
        self._predictor.close()

    def _prepare_readable(self, images: Sequence[ImageWork]) -> Iterator[tuple[ImageWork, PreparedPicture, ImageBatch]]:
        """Prepares pictures; those that cannot be read fail in the run, where they are counted, and are left out here."""
        for image in images:
            try:
                yield image, *self._prepare(image)
            except DataError as error:
                LOG.debug("not measured with: %s", error)

    def _prepare(self, image: ImageWork) -> tuple[PreparedPicture, ImageBatch]:
        pixels = self._decode(image, read_bytes(image.path))
        prepared = prepare_picture(pixels, self._rules)
        batch = stack_batch([prepared], [image.image_id])
        pictures = (pixels,) if self._predictor.needs_pictures else ()
        proposals = () if image.proposals is None else (image.proposals,)
        return prepared, replace(batch, pictures=pictures, proposals=proposals)

    def _make_batches(self, prepared: Sequence[tuple[ImageWork, PreparedPicture, ImageBatch]]) -> list[ImageBatch]:
        """Joins pictures as a worker does: neighbours of one padded shape, or any with padding."""
        size, padded = self._setup.worker.batch_size, self._setup.worker.batch_mode == "padded"
        groups: list[list[tuple[ImageWork, PreparedPicture, ImageBatch]]] = []
        for entry in prepared:
            last = groups[-1] if groups else []
            fits = padded or not last or last[-1][1].pixels.shape == entry[1].pixels.shape
            if not last or len(last) >= size or not fits:
                groups.append([])
            groups[-1].append(entry)
        return [_join(group, padded=padded) for group in groups]

    def _decode(self, image: ImageWork, data: bytes) -> UInt8:
        setup = self._setup.worker
        return decode_picture(
            data, where=image.path, exif=setup.exif, size_hw=image.size_hw, max_pixels=setup.max_pixels
        )

    def _time(self, call: Callable[[], object]) -> StageAlone:
        """Times one pass over all pictures, several times."""
        times = []
        for _ in range(self._setup.rounds):
            start = time.perf_counter()
            call()
            times.append(1000 * (time.perf_counter() - start) / len(self._images))
        return StageAlone(statistics.median(times), min(times), max(times))


def _join(group: Sequence[tuple[ImageWork, PreparedPicture, ImageBatch]], *, padded: bool) -> ImageBatch:
    stacked = stack_batch([entry[1] for entry in group], [entry[0].image_id for entry in group], padded=padded)
    pictures = tuple(picture for _, _, batch in group for picture in batch.pictures)
    proposals = tuple(boxes for _, _, batch in group for boxes in batch.proposals)
    return replace(stacked, pictures=pictures, proposals=proposals)


def _stack_again(pixels: Sequence[object]) -> object:
    import numpy as np

    return np.stack(pixels) if len(pixels) > 1 else pixels[0]  # type: ignore[arg-type]


def _write(path: Path, results: Sequence[tuple[int, Result]], worker: Setup) -> None:
    plain = [(place, replace(result, taps={})) for place, result in results]
    write_shard(path, identity="benchmark", index=0, task=worker.task, results=plain)
    path.unlink()


def answer_orders(connection: Connection, probe: Probe) -> None:
    """Does what the parent says until it says stop."""
    actions: dict[Order, Callable[[], Answer]] = {
        "engine": probe.run_engine,
        "stages": probe.run_stages,
        "network": probe.run_network,
        "ceilings": probe.measure_machine,
    }
    while (order := connection.recv()) != "stop":
        try:
            connection.send(actions[order]())
        except RoilineError as error:
            connection.send(Refusal(type(error).__name__, str(error)))


def main() -> None:
    """Is the whole life of a probe; the pipe's file descriptor is the only argument."""
    connection = Connection(int(sys.argv[1]))
    try:
        setup: ProbeSetup = connection.recv()
        sys.path[:] = [*setup.worker.python_path]
        probe = Probe(setup)
    except RoilineError as error:
        connection.send(Refusal(type(error).__name__, str(error)))
        return
    except EOFError:
        return
    connection.send(probe.describe())
    try:
        answer_orders(connection, probe)
    except (EOFError, BrokenPipeError):
        return  # the parent is gone, and with it whoever wanted to know
    finally:
        probe.close()
