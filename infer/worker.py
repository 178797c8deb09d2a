"""A worker: one process, one device, one model; shards come in over a pipe, shard files and reports go out.

Four kinds of threads share the work. The receiver takes orders. The feeder lists the images of the shards in order and hands each to
one of the readers (read, decode, prepare); at most `read_ahead` images are on their way. The main lane takes the pictures in the same
order, joins them to batches and runs the model. The writer writes finished shards. Every queue is bounded, and the order of images is
that of the shards, so that what is batched with what does not depend on the speed of a disk.

A worker never outlives its parent: when the pipe closes, it leaves at once. SIGINT and SIGTERM are for the parent alone.
"""

from __future__ import annotations

import ctypes
import logging
import os
import queue
import shutil
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from roiline.core.errors import DataError, InputError, RoilineError, UsageError
from roiline.core.structures import ImageBatch, Result, Taps, UInt8
from roiline.core.timing import Samples, Span, StageClock, Work
from roiline.infer.cores import take_cores
from roiline.infer.decoder_words import DecoderWords
from roiline.infer.messages import (
    CutShort,
    Done,
    Finished,
    ImageWork,
    Left,
    Ready,
    Refused,
    Setup,
    ShardWork,
    Started,
    Stop,
    Unwritable,
)
from roiline.infer.opening import open_predictor, warm_up
from roiline.infer.pictures import JPEG_START, CutShortError, decode_picture, read_bytes
from roiline.infer.predictor import Predictor
from roiline.infer.preparation import PreparedPicture, stack_batch
from roiline.infer.report_line import EXIT_ORPHANED, HOLD_S, PipeLine
from roiline.infer.request import spec_with_overrides
from roiline.infer.shards import Failure, name_file, tap_path, write_shard
from roiline.infer.taps import write_taps

LOG = logging.getLogger("roiline.worker")

WRITE_AHEAD = 4
ANNOUNCED = 4
"""How many images of a shard are said to be touched at a time, where it is not known that one of them is dangerous."""

_PR_SET_PDEATHSIG = 1


@dataclass(slots=True)
class _OpenShard:
    """Is a shard in hand: results gather by position until none is missing.

    `taps` are the checksums of the blobs that the writer has written already, `degraded` says what is wrong with pictures that have a
    result all the same. `begun`: the main lane has taken an image of it. `turns`
    holds a careful shard to one batch at a time.
    """

    work: ShardWork
    results: dict[int, Result | Failure] = field(default_factory=dict)
    taps: dict[int, str] = field(default_factory=dict)
    degraded: dict[int, str] = field(default_factory=dict)
    begun: bool = False
    turns: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(1))


def _closed_lock() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock


@dataclass(slots=True)
class _Item:
    """Is one image on its way; `closes`: the batch that it joins takes no more after it. `picture` is there once `read` is open."""

    shard: _OpenShard
    image: ImageWork
    closes: bool
    picture: _Picture | Failure | None = None
    read: threading.Lock = field(default_factory=_closed_lock)


@dataclass(frozen=True, slots=True)
class _Picture:
    """Is network input, the seconds that preparing it took, and the picture itself where the predictor needs it."""

    prepared: PreparedPicture
    prepare_s: float
    pixels: UInt8 | None


@dataclass(frozen=True, slots=True)
class _Begun:
    """Is a batch that the model works on; `start` and `begin_s` are when and how long it was begun."""

    batch: tuple[tuple[_Item, _Picture], ...]
    stacked: ImageBatch
    pending: Any
    subject: Work
    start: float
    begin_s: float


@dataclass(frozen=True, slots=True)
class _Tapped:
    """Is the tapped blobs of one image, which the writer writes at once: those of a whole shard may be too large to hold."""

    shard: _OpenShard
    position: int
    taps: Taps


class Worker:
    """Works shards off until it is told to stop."""

    def __init__(self, connection: Connection, line: PipeLine, setup: Setup) -> None:
        self._connection = connection
        self._line = line
        self._setup = setup
        self._inbox: queue.SimpleQueue[ShardWork | None] = queue.SimpleQueue()
        self._items: queue.Queue[_Item | None] = queue.Queue(setup.read_ahead)
        self._in_flight: deque[_Begun] = deque()
        self._finished: queue.Queue[_OpenShard | _Tapped | None] = queue.Queue(WRITE_AHEAD)
        self._stopping = threading.Event()
        self._pending = 0  # images of shards in hand that the main lane has not taken yet
        self._pending_lock = threading.Lock()
        self._clocks: dict[str, StageClock] = {}
        self._words = DecoderWords()
        self._unread: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()

    def listen(self) -> None:
        """Starts to take orders, and from then on leaves when the parent is gone, also while a model is still being opened."""
        self._line.guard("receiver", self._receive)

    def serve(self, predictor: Predictor) -> None:
        """Works until a `Stop` comes and the shards that were begun are written."""
        self._predictor = predictor
        self._rules = spec_with_overrides(predictor.spec, self._setup.overrides).image_rules
        self._line.guard("feeder", self._feed)
        readers = [self._line.guard(f"reader-{n}", partial(self._read_items, n)) for n in range(self._setup.readers)]
        writer = self._line.guard("writer", self._write)
        self._run_batches()
        with self._clock("main").measure("wait_write"):
            self._finished.put(None)
            writer.join()
        for _ in readers:
            self._unread.put(None)
        for reader in readers:
            reader.join()

    def take_samples(self) -> dict[str, Samples]:
        """Returns what each lane has measured since the last call."""
        taken = {lane: clock.take() for lane, clock in list(self._clocks.items())}
        return {lane: samples for lane, samples in taken.items() if samples}

    def take_spans(self) -> dict[str, list[Span]]:
        """Returns when each lane was busy or waiting, where the run is traced."""
        taken = {lane: clock.take_spans() for lane, clock in list(self._clocks.items())}
        return {lane: spans for lane, spans in taken.items() if spans}

    def _clock(self, lane: str) -> StageClock:
        clock = self._clocks.get(lane)
        return clock if clock is not None else self._clocks.setdefault(lane, StageClock(traced=self._setup.traced))

    # -- receiver ----------------------------------------------------------------------------------------------------------------

    def _receive(self) -> None:
        while True:
            order = _next_order(self._connection)
            if isinstance(order, ShardWork):
                self._count_pending(len(order.images))
                self._inbox.put(order)
            elif isinstance(order, Stop):
                self._stopping.set()
                self._inbox.put(None)

    def _count_pending(self, change: int) -> int:
        with self._pending_lock:
            self._pending += change
            return self._pending

    # -- feeder and readers ------------------------------------------------------------------------------------------------------

    def _feed(self) -> None:
        clock = self._clock("feeder")
        while (work := self._inbox.get()) is not None:
            if self._stopping.is_set():
                self._count_pending(-len(work.images))
                continue
            shard = _OpenShard(work)
            announced = 1 if work.careful else ANNOUNCED
            for place, (image, closes, opens) in enumerate(self._list_images(work)):
                if work.careful and opens:
                    shard.turns.acquire()
                if place % announced == 0:
                    touched = (image.position for image in work.images[place : place + announced])
                    self._line.announce([Started(work.key, one) for one in touched if one not in work.skip])
                item = _Item(shard, image, closes)
                self._unread.put(item)
                with clock.measure("wait_room"):
                    self._items.put(item)
        self._items.put(None)

    def _list_images(self, work: ShardWork) -> list[tuple[ImageWork, bool, bool]]:
        """Returns (image, closes its batch, opens its batch); only careful and padded batches are fixed beforehand."""
        padded = self._setup.batch_mode == "padded"
        size = self._setup.batch_size if padded else 1
        last = len(work.images) - 1
        fixed = padded or work.careful
        return [
            (image, fixed and ((place + 1) % size == 0 or place == last), place % size == 0)
            for place, image in enumerate(work.images)
        ]

    def _read_items(self, reader: int) -> None:
        clock = self._clock(f"reader-{reader}")
        while (item := self._unread.get()) is not None:
            item.picture = self._read(item.shard, item.image, clock)
            item.read.release()

    def _read(self, shard: _OpenShard, image: ImageWork, clock: StageClock) -> _Picture | Failure:
        """Makes network input of one image; what is wrong with the picture becomes a failure, anything else ends the worker."""
        if image.position in shard.work.skip:
            return Failure(image.image_id, shard.work.skip[image.position])
        subject = Work(shard.work.key, (image.image_id,))
        try:
            with clock.measure("read", subject):
                data = read_bytes(image.path)
            with clock.measure("decode", subject):
                pixels = self._decode(data, shard, image)
            start = time.perf_counter()
            prepared = self._predictor.prepare(pixels, self._rules)
            seconds = time.perf_counter() - start
            clock.add("prepare", seconds, start_s=start, work=subject)
            return _Picture(prepared, seconds, pixels if self._predictor.needs_pictures else None)
        except DataError as error:
            return Failure(image.image_id, str(error))

    def _decode(self, data: bytes, shard: _OpenShard, image: ImageWork) -> UInt8:
        """Decodes a picture; what becomes of one that is cut short is the run's choice, one that is damaged inside is marked.

        Raises:
            DataError: it cannot be decoded, or is cut short and fails for that.
        """
        setup = self._setup
        decode = partial(
            decode_picture,
            data,
            where=image.path,
            exif=setup.exif,
            size_hw=image.size_hw,
            max_pixels=setup.max_pixels,
        )
        try:
            pixels, words = self._words.listen(decode) if data.startswith(JPEG_START) else (decode(), None)
            fault = None if words is None else f"{image.path}: damaged inside, the decoder says: {words}"
        except CutShortError as error:
            if setup.truncated == "stop":
                self._line.send(CutShort(str(error)))
            if setup.truncated != "accept":
                raise
            pixels, _ = self._words.listen(partial(decode, tolerant=True))
            fault = str(error)
        if fault is not None:
            shard.degraded[image.position] = fault
            LOG.warning("%s; used as far as it goes", fault)
        return pixels

    # -- main lane ---------------------------------------------------------------------------------------------------------------

    def _run_batches(self) -> None:
        batch: list[tuple[_Item, _Picture]] = []
        clock = self._clock("main")
        while True:
            start = time.perf_counter()
            item = self._items.get()
            if item is None:
                clock.add("wait_end", time.perf_counter() - start, start_s=start)
                self._begin_batch(batch)
                self._finish_batches()
                return
            self._take(item, batch, start)

    def _take(self, item: _Item, batch: list[tuple[_Item, _Picture]], start: float) -> None:
        """Takes the next picture into `batch`, and runs what is full or will not get any fuller; waited for it since `start`.

        Nothing here holds a picture longer than it is needed: the memory of one that is done with is that of the next, still warm.
        """
        shard = item.shard
        picture = self._wait_for_picture(item)
        taken = Work(shard.work.key, (item.image.image_id,))
        self._clock("main").add("wait_picture", time.perf_counter() - start, start_s=start, work=taken)
        none_to_come = self._count_pending(-1) == 0
        shard.begun |= not self._stopping.is_set()
        if isinstance(picture, Failure) and shard.begun:
            self._keep(item, picture)
        elif isinstance(picture, _Picture) and shard.begun:
            if batch and not self._fit_together(batch[-1][1].prepared, picture.prepared):
                self._begin_batch(batch)
            batch.append((item, picture))
        del picture
        if item.closes or none_to_come or len(batch) >= self._setup.batch_size:
            self._begin_batch(batch)
        if none_to_come or shard.work.careful:
            self._finish_batches()
            self._line.flush()
        if item.closes and shard.work.careful:
            shard.turns.release()

    def _wait_for_picture(self, item: _Item) -> _Picture | Failure | None:
        """Waits for a picture and takes it; reports that were held back do not wait with it."""
        if not item.read.acquire(timeout=HOLD_S):
            self._line.flush()
            item.read.acquire()
        picture, item.picture = item.picture, None
        return picture

    def _fit_together(self, first: PreparedPicture, second: PreparedPicture) -> bool:
        return self._setup.batch_mode == "padded" or first.pixels.shape == second.pixels.shape

    def _begin_batch(self, batch: list[tuple[_Item, _Picture]]) -> None:
        """Starts the model over `batch` and empties it; finishes what was begun before, so far as the model wants no more in flight."""
        if not batch:
            return
        clock = self._clock("main")
        subject = Work(batch[0][0].shard.work.key, tuple(item.image.image_id for item, _ in batch))
        with clock.measure("stack", subject):
            stacked = self._stack(batch)
        start = time.perf_counter()
        pending = self._predictor.begin(stacked)
        begin_s = time.perf_counter() - start
        if self._predictor.depth > 1:
            clock.add("submit", begin_s, start_s=start, work=subject)
        self._in_flight.append(_Begun(tuple(batch), stacked, pending, subject, start, begin_s))
        batch.clear()
        self._finish_batches(but=self._predictor.depth - 1)

    def _finish_batches(self, *, but: int = 0) -> None:
        """Waits for batches in flight, first come first served, until only `but` are left."""
        while len(self._in_flight) > but:
            self._finish_batch(self._in_flight.popleft())

    def _finish_batch(self, begun: _Begun) -> None:
        clock = self._clock("main")
        overlapped = self._predictor.depth > 1
        start = time.perf_counter() if overlapped else begun.start
        raw = self._predictor.wait(begun.pending)
        inferred = time.perf_counter()
        results = self._predictor.finish(raw, begun.stacked)
        infer_s, post_s = inferred - start, time.perf_counter() - inferred
        clock.add("infer", infer_s, start_s=start, work=begun.subject)
        clock.add("post", post_s, start_s=inferred, work=begun.subject)
        images = len(begun.batch)
        detect_s = (infer_s + begun.begin_s if overlapped else infer_s) / images
        for (item, picture), result in zip(begun.batch, results, strict=True):
            self._keep(item, result, picture.prepare_s + detect_s, post_s / images)

    def _stack(self, batch: Sequence[tuple[_Item, _Picture]]) -> ImageBatch:
        stacked = stack_batch(
            [picture.prepared for _, picture in batch],
            [item.image.image_id for item, _ in batch],
            padded=self._setup.batch_mode == "padded",
        )
        pictures = tuple(picture.pixels for _, picture in batch if picture.pixels is not None)
        proposals = tuple(item.image.proposals for item, _ in batch if item.image.proposals is not None)
        return replace(stacked, pictures=pictures, proposals=proposals) if pictures or proposals else stacked

    def _keep(self, item: _Item, result: Result | Failure, detect_s: float = 0.0, misc_s: float = 0.0) -> None:
        """Keeps one result, and hands the shard to the writer when it was the last."""
        shard = item.shard
        if not isinstance(result, Failure) and result.taps:
            with self._clock("main").measure("wait_write"):
                self._finished.put(_Tapped(shard, item.image.position, result.taps))
            result = replace(result, taps={})
        shard.results[item.image.position] = result
        failure = result.reason if isinstance(result, Failure) else None
        with self._clock("main").measure("report"):
            self._line.hold(Finished(shard.work.key, item.image.position, failure, detect_s, misc_s))
        if len(shard.results) == len(shard.work.images):
            self._line.flush()
            with self._clock("main").measure("wait_write"):
                self._finished.put(shard)

    # -- writer ------------------------------------------------------------------------------------------------------------------

    def _write(self) -> None:
        clock = self._clock("writer")
        while (finished := self._finished.get()) is not None:
            shard = finished.shard if isinstance(finished, _Tapped) else finished
            try:
                with clock.measure("write", Work(shard.work.key, ())):
                    self._write_one(finished)
            except OSError as error:
                self._line.send(Unwritable(_describe_full(shard.work.path, error)))
                return
            if isinstance(finished, _OpenShard):
                self._line.send(Done(shard.work.key, self.take_samples()))

    def _write_one(self, finished: _OpenShard | _Tapped) -> None:
        if isinstance(finished, _OpenShard):
            self._write_shard(finished)
        else:
            shard, position = finished.shard, finished.position
            shard.taps[position] = write_taps(tap_path(shard.work.path, position), finished.taps)

    def _write_shard(self, shard: _OpenShard) -> None:
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
        worker.serve(predictor)
        predictor.close()
        line.send(Left(worker.take_samples(), worker.take_spans()))
    except BaseException as error:  # the boundary of the process: the parent must hear why
        line.fail(error)
