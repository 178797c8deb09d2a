"""The pool: workers, what they say, and the signals, around the scheduler.

Workers are fresh interpreters (never forks), started with the environment of their slot, so that a device mask stands before anything
could load CUDA. The parent never touches a device. The first SIGINT or SIGTERM finishes what is under way; the second leaves at once.

Time is counted only while the pool watches: a job that was stopped as a whole and goes on finds its workers as it left them.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import FrameType
from typing import Literal, Protocol

import roiline.core.errors
from roiline.core.errors import DataError, EngineError, RoilineError, WorkerError
from roiline.core.timing import Samples, StageLedger
from roiline.infer.messages import (
    CutShort,
    Done,
    Failing,
    Finished,
    Left,
    Ready,
    Refused,
    Report,
    Setup,
    Several,
    ShardWork,
    Started,
    Stop,
    Unwritable,
)
from roiline.infer.request import Slot
from roiline.infer.scheduler import (
    AssignShard,
    Event,
    Finish,
    GiveUpWorker,
    ImageFinished,
    ImageStarted,
    Instruction,
    KillWorker,
    Limits,
    Scheduler,
    SetAside,
    ShardDone,
    ShardsPlanned,
    StartWorker,
    StopRequested,
    StopWorker,
    TimePassed,
    WorkerDied,
    WorkerLeft,
    WorkerReady,
)
from roiline.infer.transport import StartWorkerHandle, WorkerHandle, start_process

LOG = logging.getLogger("roiline.pool")

OPENING_LIMIT_S = 1800.0
"""How long a model may take to open and warm up, and a shard to reach the disk, while there is a time limit at all."""

_POLL_S = 0.5
_LOOK_EVERY_S = 0.05
_LONGEST_WATCH_S = 2.0
_LEAVE_S = 5.0
_SILENCE_S = 15.0


class PoolListener(Protocol):
    """Is told what happens while shards are worked on."""

    def image_finished(self, report: Finished) -> None:
        """Is called when an image has a result or a failure; again if its shard must be done again."""

    def shard_done(self, key: int) -> None:
        """Is called once a shard is on the disk."""

    def tick(self) -> None:
        """Is called at least twice a second."""


@dataclass(slots=True)
class _Member:
    """Is a worker as the parent sees it."""

    handle: WorkerHandle
    ready: bool = False
    leaving: bool = False
    left: bool = False
    last_word: str = ""


class _Watch:
    """Counts the time in which workers are really watched: what passes between two looks counts up to `_LONGEST_WATCH_S`.

    It is given out in pieces of at least `_LOOK_EVERY_S`.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last = clock()

    def look(self) -> float:
        """Returns the seconds since the last look that count, 0 where it is too early for another."""
        now = self._clock()
        if now - self._last < _LOOK_EVERY_S:
            return 0.0
        passed, self._last = now - self._last, now
        return min(passed, _LONGEST_WATCH_S)


class Pool:
    """Owns the worker processes of a run; close it (it is a context manager), and none is left.

    `descriptions` say by worker what its engine is, `ledger` holds all timings, `notes` what went wrong, `set_aside` the shards with
    images that were given up because workers died on them.
    """

    def __init__(
        self,
        slots: Sequence[Slot],
        setup: Setup,
        *,
        image_timeout_s: float = 0.0,
        start: StartWorkerHandle = start_process,
    ) -> None:
        """Makes a pool without workers yet; a worker that is silent for `image_timeout_s` an image in flight is ended (0: never)."""
        self._slots = slots
        self._setup = setup
        self._start_handle = start
        other_s = max(OPENING_LIMIT_S, image_timeout_s) if image_timeout_s > 0 else 0.0
        self._scheduler = Scheduler(len(slots), Limits(image_timeout_s, other_s, setup.batch_size))
        self._members: dict[int, _Member] = {}
        self._sources = selectors.DefaultSelector()
        self._watch = _Watch()
        self._works: Mapping[int, ShardWork] = {}
        self._listener: PoolListener | None = None
        self._finish: Finish | None = None
        self._opening = True
        self._stops = 0
        self._last_heard = time.monotonic()
        self._wakeup: int | None = None
        self._wakeup_writer = -1
        self.ledger = StageLedger()
        self.descriptions: dict[int, Mapping[str, str]] = {}
        self.notes: list[str] = []
        self.set_aside: set[int] = set()

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self) -> None:
        """Starts every worker and waits until all have opened and warmed up the model.

        Raises:
            RoilineError: a worker could not open the model; of the class that it met.
            WorkerError: a worker died three times while opening it, or its process cannot be started.
        """
        self._carry_out(self._scheduler.begin())
        while not all(member.ready for member in self._members.values()):
            self._wait_and_handle()
        self._opening = False

    def run(
        self, works: Mapping[int, ShardWork], listener: PoolListener, *, depth: int = 2, ahead: int = 0
    ) -> Literal["done", "stopped"]:
        """Works all shards off, each worker holding up to `depth` at a time, or more below `ahead` images.

        `stopped`: a signal asked for an early end.

        Raises:
            WorkerError: no worker could go on, or results cannot be written; what is on the disk stays.
            KeyboardInterrupt: a second signal came.
        """
        self._works, self._listener = works, listener
        planned = {key: [image.position for image in work.images] for key, work in works.items()}
        with self._signals():
            self._handle(ShardsPlanned(planned, depth, ahead))
            while self._finish is None:
                self._wait_and_handle()
                self._hint_at_silence()
                listener.tick()
        if self._finish.outcome == "failed":
            raise WorkerError(
                f"no worker could go on: {self._finish.reason}; finished shards are kept, the same command goes on from them"
            )
        return self._finish.outcome

    def close(self) -> None:
        """Ends every worker that is still there: at once where it has not been told to leave, else after a grace."""
        for member in self._members.values():
            if not member.left:
                member.handle.kill()
            member.handle.close()
        for worker, member in self._members.items():
            if member.handle.join(_LEAVE_S) is None:
                self._end(worker, member)
        self._members.clear()
        self._sources.close()

    def _end(self, worker: int, member: _Member) -> str:
        """Ends a worker and returns how it ended; one that the system cannot end (it waits for a disk) is left to it, and named."""
        member.handle.kill()
        ended = member.handle.join(_LEAVE_S)
        if ended is None:
            ended = f"{member.handle.name} cannot be ended; it waits for a disk or a device"
            self._note(f"worker {worker} ({self._slots[worker].label}): {ended}")
        return ended

    # -- the loop ----------------------------------------------------------------------------------------------------------------

    def _wait_and_handle(self) -> None:
        """Waits for anything to happen, half a second at most, and handles it."""
        for key, _ in self._sources.select(_POLL_S):
            if key.data is None:
                self._take_signal()
            else:
                self._receive(key.data)
        seconds = self._watch.look()
        if seconds:
            self._handle(TimePassed(seconds))

    def _receive(self, worker: int) -> None:
        """Takes one message of a worker in; when there can be no more, that is its end."""
        member = self._members[worker]
        self._last_heard = time.monotonic()
        try:
            report = member.handle.receive()
        except EOFError:
            self._bury(worker, member)
            return
        for one in report.reports if isinstance(report, Several) else (report,):
            self._take_report(worker, member, one)

    def _take_report(self, worker: int, member: _Member, report: Report) -> None:
        match report:
            case Started(key, position):
                self._handle(ImageStarted(worker, key, position))
            case Finished(key, position, failure):
                self._handle(ImageFinished(worker, key, position, failure is not None))
                if self._listener is not None:
                    self._listener.image_finished(report)
            case Ready(description, warm_up):
                member.ready = True
                self.descriptions[worker] = description
                self.ledger.add_warm_up(worker, warm_up)
                self._handle(WorkerReady(worker))
            case Refused(kind, text):
                self._refuse(member, kind, text)
            case Done(key, lanes):
                self._add_samples(worker, lanes)
                self._handle(ShardDone(worker, key))
                if self._listener is not None:
                    self._listener.shard_done(key)
            case Failing(reason, trace):
                LOG.debug("worker %d (%s): %s", worker, self._slots[worker].label, trace.rstrip())
                member.last_word = reason
            case Unwritable(reason):
                raise WorkerError(f"{reason}; finished shards are kept, the same command goes on from them")
            case CutShort(reason):
                raise DataError(
                    f"{reason}; finished shards are kept, the same command with --truncated skip goes on from them"
                )
            case Left(lanes, spans):
                self._add_samples(worker, lanes)
                for lane, taken in spans.items():
                    self.ledger.add_spans(worker, lane, taken)
                self._forget(member)
                self._handle(WorkerLeft(worker))

    def _bury(self, worker: int, member: _Member) -> None:
        """Reaps a worker that is gone and tells the scheduler."""
        self._forget(member)
        member.handle.close()
        ended = member.handle.join(_LEAVE_S) or self._end(worker, member)
        reason = member.last_word or ended
        if not member.leaving or member.last_word:
            self._note(f"worker {worker} ({self._slots[worker].label}): {reason}", level=logging.ERROR)
        self._handle(WorkerDied(worker, reason))

    def _forget(self, member: _Member) -> None:
        """Listens to a worker no more."""
        member.left = True
        self._sources.unregister(member.handle.waitable)

    def _kill(self, worker: int, reason: str) -> None:
        """Ends a worker that does not answer; the end of its pipe is then noticed as of any other, after what it may still have said."""
        member = self._members[worker]
        if self._opening:
            raise WorkerError(
                f"{self._setup.model}: worker {worker} ({self._slots[worker].label}) did not open it: {reason}"
            )
        member.last_word = reason
        self._end(worker, member)
        if not member.handle.has_report():
            self._bury(worker, member)

    def _refuse(self, member: _Member, kind: str, text: str) -> None:
        """Raises while the pool opens what a worker met; later it is a death with a reason, for the model did open before."""
        if self._opening:
            error: type[RoilineError] = getattr(roiline.core.errors, kind, EngineError)
            raise error(text)
        member.last_word = text

    def _handle(self, event: Event) -> None:
        self._carry_out(self._scheduler.handle(event))

    def _carry_out(self, instructions: Sequence[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case StartWorker(worker):
                    self._start(worker)
                case AssignShard(worker, shard, careful, skip):
                    self._members[worker].handle.send(replace(self._works[shard], careful=careful, skip=skip))
                case StopWorker(worker):
                    self._stop(worker)
                case KillWorker(worker, reason):
                    self._kill(worker, reason)
                case SetAside(shard, image, reason):
                    self.set_aside.add(shard)
                    self._note(f"shard {shard}, image {image}: {reason}")
                case GiveUpWorker(worker, reason):
                    self._give_up(worker, reason)
                case Finish():
                    self._finish = instruction

    # -- workers -----------------------------------------------------------------------------------------------------------------

    def _start(self, worker: int) -> None:
        slot = self._slots[worker]
        handle = self._start_handle(worker, slot)
        self._members[worker] = _Member(handle)
        self._sources.register(handle.waitable, selectors.EVENT_READ, worker)
        handle.send(replace(self._setup, device=slot.device))

    def _stop(self, worker: int) -> None:
        """Asks a worker to leave; one that is still opening its model has nothing to finish and is ended."""
        member = self._members[worker]
        member.leaving = True
        if member.ready:
            member.handle.send(Stop())
        else:
            member.handle.kill()

    def _give_up(self, worker: int, reason: str) -> None:
        if self._opening:
            raise WorkerError(f"{reason} (while opening {self._setup.model} on {self._slots[worker].label})")
        self._note(f"worker {worker} ({self._slots[worker].label}) is not started again: {reason}")

    def _add_samples(self, worker: int, lanes: Mapping[str, Samples]) -> None:
        for lane, samples in lanes.items():
            self.ledger.add(worker, lane, samples)

    def _note(self, text: str, *, level: int = logging.WARNING) -> None:
        LOG.log(level, "%s", text)
        self.notes.append(text)

    # -- signals -----------------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Turns SIGINT and SIGTERM into requests to stop; only the main thread may do so, elsewhere they stay as they are."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        reader, writer = os.pipe()
        self._wakeup, self._wakeup_writer = reader, writer
        self._sources.register(reader, selectors.EVENT_READ)
        before = {number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            self._wakeup = None
            self._sources.unregister(reader)
            os.close(reader)
            os.close(writer)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._stops += 1
        if self._stops > 1:
            raise KeyboardInterrupt
        os.write(self._wakeup_writer, b"s")

    def _take_signal(self) -> None:
        os.read(self._wakeup or 0, 1)
        self._last_heard = time.monotonic()
        LOG.warning("stopping: the shards under way are finished first; a second Ctrl-C leaves at once")
        self._handle(StopRequested())

    def _hint_at_silence(self) -> None:
        """Says who is waited for after a request to stop when nothing has been heard for long: a process may be stopped or hang."""
        if not self._stops or time.monotonic() - self._last_heard < _SILENCE_S:
            return
        self._last_heard = time.monotonic()
        missing = [
            f"worker {worker} ({self._slots[worker].label}, {member.handle.name})"
            for worker, member in self._members.items()
            if not member.left
        ]
        LOG.warning("still waiting for %s; a second Ctrl-C leaves at once", ", ".join(missing))
