"""A worker: one process, one device, one model; shards come in over a pipe, shard files and reports go out.

Four kinds of threads share the work. The receiver takes orders. The main lane takes pictures in the order of the shards, joins them to
batches and runs the model. The readers (`reading.py`) make network input of the images that come next, so many at most as may be on
their way. The writer writes finished shards. What waits is bounded everywhere.

A worker never outlives its parent: when the pipe closes, it leaves at once. SIGINT and SIGTERM are for the parent alone.
"""

from __future__ import annotations

import ctypes
import gc
import os
import queue
import shutil
import signal
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from roiline.core.errors import InputError, RoilineError, UsageError
from roiline.core.structures import ImageBatch, Result, Taps
from roiline.core.timing import Samples, Span, StageClock, Work
from roiline.infer.cores import take_cores
from roiline.infer.messages import (
    Done,
    Finished,
    Left,
    Ready,
    Refused,
    Setup,
    ShardWork,
    Stop,
    Unwritable,
)
from roiline.infer.opening import open_predictor, warm_up
from roiline.infer.predictor import Predictor
from roiline.infer.preparation import PreparedPicture, stack_batch
from roiline.infer.reading import Item, OpenShard, Picture, Reading
from roiline.infer.report_line import EXIT_ORPHANED, PipeLine
from roiline.infer.request import spec_with_overrides
from roiline.infer.shards import Failure, name_file, tap_path, write_shard
from roiline.infer.taps import write_taps

WRITE_AHEAD = 4

_PR_SET_PDEATHSIG = 1


class _Begun(NamedTuple):
    """Is a batch that the model works on; `start` and `begin_s` are when and how long it was begun."""

    batch: tuple[tuple[Item, Picture], ...]
    stacked: ImageBatch
    pending: Any
    subject: Work
    start: float
    begin_s: float


@dataclass(frozen=True, slots=True)
class _Tapped:
    """Is the tapped blobs of one image, which the writer writes at once: those of a whole shard may be too large to hold."""

    shard: OpenShard
    position: int
    taps: Taps


class Worker:
    """Works shards off until it is told to stop."""

    def __init__(self, connection: Connection, line: PipeLine, setup: Setup) -> None:
        self._connection = connection
        self._line = line
        self._setup = setup
        self._in_flight: deque[_Begun] = deque()
        self._finished: queue.Queue[OpenShard | _Tapped | None] = queue.Queue(WRITE_AHEAD)
        self._clocks: dict[str, StageClock] = {}
        self._main = self._open_clock("main")
        self._reading = Reading(setup, line, self._open_clock)

    def listen(self) -> None:
        """Starts to take orders, and from then on leaves when the parent is gone, also while a model is still being opened."""
        self._line.guard("receiver", self._receive)

    def serve(self, predictor: Predictor) -> None:
        """Works until a `Stop` comes and the shards that were begun are written."""
        self._predictor = predictor
        self._reading.start(predictor, spec_with_overrides(predictor.spec, self._setup.overrides).image_rules)
        writer = self._line.guard("writer", self._write)
        self._run_batches()
        with self._main.measure("wait_write"):
            self._finished.put(None)
            writer.join()
        self._reading.close()

    def take_samples(self) -> dict[str, Samples]:
        """Returns what each lane has measured since the last call."""
        taken = {lane: clock.take() for lane, clock in list(self._clocks.items())}
        return {lane: samples for lane, samples in taken.items() if samples}

    def take_spans(self) -> dict[str, list[Span]]:
        """Returns when each lane was busy or waiting, where the run is traced."""
        taken = {lane: clock.take_spans() for lane, clock in list(self._clocks.items())}
        return {lane: spans for lane, spans in taken.items() if spans}

    def _open_clock(self, lane: str) -> StageClock:
        return self._clocks.setdefault(lane, StageClock(traced=self._setup.traced))

    # -- receiver ----------------------------------------------------------------------------------------------------------------

    def _receive(self) -> None:
        while True:
            order = _next_order(self._connection)
            if isinstance(order, ShardWork):
                self._reading.add(order)
            elif isinstance(order, Stop):
                self._reading.stop()

    # -- main lane ---------------------------------------------------------------------------------------------------------------

    def _run_batches(self) -> None:
        batch: list[tuple[Item, Picture]] = []
        while True:
            start = time.perf_counter()
            item = self._reading.take_next()
            if item is None:
                self._main.add("wait_end", time.perf_counter() - start, start_s=start)
                self._begin_batch(batch)
                self._finish_batches()
                return
            self._take(item, batch, start)

    def _take(self, item: Item, batch: list[tuple[Item, Picture]], start: float) -> None:
        """Takes the next picture into `batch`, and runs what is full or will not get any fuller; waited for it since `start`.

        Nothing here holds a picture longer than it is needed: the memory of one that is done with is that of the next, still warm.
        """
        shard = item.shard
        picture = self._reading.take_picture(item)
        taken = Work(shard.work.key, (item.image.image_id,))
        self._main.add("wait_picture", time.perf_counter() - start, start_s=start, work=taken)
        none_to_come = self._reading.none_to_come
        shard.begun |= not self._reading.stopping
        if isinstance(picture, Failure) and shard.begun:
            self._keep(item, picture)
        elif isinstance(picture, Picture) and shard.begun:
            if batch and not self._fit_together(batch[-1][1].prepared, picture.prepared):
                self._begin_batch(batch)
            batch.append((item, picture))
        del picture
        if item.closes or none_to_come or len(batch) >= self._setup.batch_size:
            self._begin_batch(batch)
        if none_to_come or shard.work.careful:
            self._finish_batches()
            self._line.flush()

    def _fit_together(self, first: PreparedPicture, second: PreparedPicture) -> bool:
        return self._setup.batch_mode == "padded" or first.pixels.shape == second.pixels.shape

    def _begin_batch(self, batch: list[tuple[Item, Picture]]) -> None:
        """Starts the model over `batch` and empties it; finishes what was begun before, so far as the model wants no more in flight."""
        if not batch:
            return
        subject = Work(batch[0][0].shard.work.key, tuple(item.image.image_id for item, _ in batch))
        with self._main.measure("stack", subject):
            stacked = self._stack(batch)
        start = time.perf_counter()
        pending = self._predictor.begin(stacked)
        begin_s = time.perf_counter() - start
        if self._predictor.depth > 1:
            self._main.add("submit", begin_s, start_s=start, work=subject)
        self._in_flight.append(_Begun(tuple(batch), stacked, pending, subject, start, begin_s))
        batch.clear()
        self._finish_batches(but=self._predictor.depth - 1)

    def _finish_batches(self, *, but: int = 0) -> None:
        """Waits for batches in flight, first come first served, until only `but` are left."""
        while len(self._in_flight) > but:
            self._finish_batch(self._in_flight.popleft())

    def _finish_batch(self, begun: _Begun) -> None:
        overlapped = self._predictor.depth > 1
        start = time.perf_counter() if overlapped else begun.start
        raw = self._predictor.wait(begun.pending)
        inferred = time.perf_counter()
        results = self._predictor.finish(raw, begun.stacked)
        infer_s, post_s = inferred - start, time.perf_counter() - inferred
        self._main.add("infer", infer_s, start_s=start, work=begun.subject)
        self._main.add("post", post_s, start_s=inferred, work=begun.subject)
        images = len(begun.batch)
        detect_s = (infer_s + begun.begin_s if overlapped else infer_s) / images
        for (item, picture), result in zip(begun.batch, results, strict=True):
            self._keep(item, result, picture.prepare_s + detect_s, post_s / images)

    def _stack(self, batch: Sequence[tuple[Item, Picture]]) -> ImageBatch:
        stacked = stack_batch(
            [picture.prepared for _, picture in batch],
            [item.image.image_id for item, _ in batch],
            padded=self._setup.batch_mode == "padded",
        )
        if not (self._predictor.needs_pictures or self._predictor.needs_proposals):
            return stacked
        pictures = tuple(picture.pixels for _, picture in batch if picture.pixels is not None)
        proposals = tuple(item.image.proposals for item, _ in batch if item.image.proposals is not None)
        return replace(stacked, pictures=pictures, proposals=proposals)

    def _keep(self, item: Item, result: Result | Failure, detect_s: float = 0.0, misc_s: float = 0.0) -> None:
        """Keeps one result, and hands the shard to the writer when it was the last."""
        shard = item.shard
        if not isinstance(result, Failure) and result.taps:
            with self._main.measure("wait_write"):
                self._finished.put(_Tapped(shard, item.image.position, result.taps))
            result = replace(result, taps={})
        shard.results[item.image.position] = result
        failure = result.reason if isinstance(result, Failure) else None
        with self._main.measure("report"):
            self._line.hold(Finished(shard.work.key, item.image.position, failure, detect_s, misc_s))
        if len(shard.results) == len(shard.work.images):
            if self._finished.full():
                self._line.flush()  # a disk may take long
            with self._main.measure("wait_write"):
                self._finished.put(shard)

    # -- writer ------------------------------------------------------------------------------------------------------------------

    def _write(self) -> None:
        clock = self._open_clock("writer")
        while (finished := self._finished.get()) is not None:
            shard = finished.shard if isinstance(finished, _Tapped) else finished
            try:
                with clock.measure("write", Work(shard.work.key, ())):
                    self._write_one(finished)
            except OSError as error:
                self._line.send(Unwritable(_describe_full(shard.work.path, error)))
                return
            if isinstance(finished, OpenShard):
                self._line.send(Done(shard.work.key, self.take_samples()))

    def _write_one(self, finished: OpenShard | _Tapped) -> None:
        if isinstance(finished, OpenShard):
            self._write_shard(finished)
        else:
            shard, position = finished.shard, finished.position
            shard.taps[position] = write_taps(tap_path(shard.work.path, position), finished.taps)

    def _write_shard(self, shard: OpenShard) -> None:
        work = shard.work
        write_shard(
            work.path,
            identity=work.identity,
            index=work.index,
            task=self._setup.task,
            results=[(image.position, shard.results[image.position]) for image in work.images],
            taps=shard.taps,
            files={image.position: name_file(image.path) for image in work.images},
            degraded={position: shard.degraded[position] for position in sorted(shard.degraded)},
        )


def _describe_full(path: Path, error: OSError) -> str:
    """Returns why a shard cannot be written, with the room that its disk has left."""
    reason = str(error) if isinstance(error, RoilineError) else f"{path}: cannot be written ({error.strerror})"
    try:
        return f"{reason}; {shutil.disk_usage(path.parent).free / 1e6:.1f} MB are free there"
    except OSError:
        return reason  # the folder itself may be what is gone


def _next_order(connection: Connection) -> object:
    """Waits for an order; when the parent is gone, the process leaves."""
    try:
        return connection.recv()
    except (EOFError, OSError):
        os._exit(EXIT_ORPHANED)


def _open(setup: Setup, line: PipeLine) -> Predictor | None:
    """Opens and warms up the model, and reports how that went."""
    clock = StageClock()
    try:
        with clock.measure("open"):
            predictor = open_predictor(setup)
        warm_up(predictor, setup, clock)
    except RoilineError as error:
        kind = next(base.__name__ for base in type(error).__mro__ if base.__module__ == InputError.__module__)
        line.send(Refused(kind, str(error)))
        return None
    gc.collect()
    gc.freeze()  # what is there now stays: looking through it again and again is for nothing
    line.send(Ready(dict(predictor.description), clock.take()))
    return predictor


def _die_with_parent() -> None:
    """Asks the kernel to end this process when its parent does: one that hangs in a library would not notice the end of its pipe."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> None:
    """Is the whole life of a worker process; the pipe's file descriptor is the only argument."""
    _die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
    connection = Connection(int(sys.argv[1]))
    line = PipeLine(connection)
    try:
        setup = _next_order(connection)
        if not isinstance(setup, Setup):
            raise UsageError(f"a worker expects its setup first, got {type(setup).__name__}")
        take_cores()
        sys.path[:] = [*setup.python_path]
        worker = Worker(connection, line, setup)
        worker.listen()
        predictor = _open(setup, line)
        if predictor is None:
            return
        sys.setswitchinterval(float(os.environ.get("SWI", "0.005")))
        worker.serve(predictor)
        predictor.close()
        line.send(Left(worker.take_samples(), worker.take_spans()))
    except BaseException as error:  # the boundary of the process: the parent must hear why
        line.fail(error)
