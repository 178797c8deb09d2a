"""The pool: worker processes, their pipes and the signals, around the scheduler.

Workers are fresh interpreters (never forks), started with the environment of their slot, so that a device mask stands before anything
could load CUDA. The parent never touches a device. The first SIGINT or SIGTERM finishes what is under way; the second leaves at once.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from types import FrameType
from typing import Literal, Protocol

import roiline.core.errors
from roiline.core.errors import EngineError, RoilineError, WorkerError
from roiline.core.timing import Samples, StageLedger
from roiline.engines.protocol import Device
from roiline.infer.messages import (
    Done,
    Failing,
    Finished,
    Left,
    Order,
    Ready,
    Refused,
    Report,
    Setup,
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
    Scheduler,
    SetAside,
    ShardDone,
    ShardsPlanned,
    StartWorker,
    StopRequested,
    StopWorker,
    WorkerDied,
    WorkerLeft,
    WorkerReady,
)

LOG = logging.getLogger("roiline.pool")

_WORKER_CODE = "from roiline.infer.worker import main; main()"
_POLL_S = 0.5
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
class _Process:
    """Is a worker's process as the parent sees it."""

    popen: subprocess.Popen[bytes]
    connection: Connection
    ready: bool = False
    leaving: bool = False
    left: bool = False
    last_word: str = ""


class Pool:
    """Owns the worker processes of a run; close it (it is a context manager), and none is left.

    `descriptions` say by worker what its engine is, `ledger` holds all timings, `notes` what went wrong, `set_aside` the shards with
    images that were given up because workers died on them.
    """

    def __init__(self, slots: Sequence[Slot], setup: Setup) -> None:
        self._slots = slots
        self._setup = setup
        self._scheduler = Scheduler(len(slots))
        self._processes: dict[int, _Process] = {}
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
        while not all(process.ready for process in self._processes.values()):
            self._wait_and_handle()
        self._opening = False

    def run(
        self, works: Mapping[int, ShardWork], listener: PoolListener, *, depth: int = 2
    ) -> Literal["done", "stopped"]:
        """Works all shards off, each worker holding up to `depth` at a time; `stopped`: a signal asked for an early end.

        Raises:
            WorkerError: no worker could go on, or results cannot be written; what is on the disk stays.
            KeyboardInterrupt: a second signal came.
        """
        self._works, self._listener = works, listener
        planned = {key: [image.position for image in work.images] for key, work in works.items()}
        with self._signals():
            self._handle(ShardsPlanned(planned, depth))
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
        """Ends every process that is still there: at once where it has not been told to leave, else after a grace."""
        for process in self._processes.values():
            if not process.left:
                process.popen.kill()
            process.connection.close()
        for process in self._processes.values():
            try:
                process.popen.wait(_LEAVE_S)
            except subprocess.TimeoutExpired:
                process.popen.kill()
                process.popen.wait()
        self._processes.clear()

    # -- the loop ----------------------------------------------------------------------------------------------------------------

    def _wait_and_handle(self) -> None:
        """Waits for anything to happen, half a second at most, and handles it."""
        connections = {process.connection: worker for worker, process in self._processes.items() if not process.left}
        wakeup = [] if self._wakeup is None else [self._wakeup]
        for source in wait([*connections, *wakeup], _POLL_S):
            if source == self._wakeup:
                self._take_signal()
            elif isinstance(source, Connection):
                self._receive(connections[source])

    def _receive(self, worker: int) -> None:
        """Takes one report of a worker in; the end of its pipe is its end."""
        process = self._processes[worker]
        self._last_heard = time.monotonic()
        try:
            report: Report = process.connection.recv()
        except (EOFError, OSError):
            self._bury(worker, process)
            return
        match report:
            case Ready(description, warm_up):
                process.ready = True
                self.descriptions[worker] = description
                self.ledger.add_warm_up(worker, warm_up)
                self._handle(WorkerReady(worker))
            case Refused(kind, text):
                self._refuse(process, kind, text)
            case Started(key, position):
                self._handle(ImageStarted(worker, key, position))
            case Finished(key, position, failure):
                self._handle(ImageFinished(worker, key, position, failure is not None))
                self._tell(lambda listener: listener.image_finished(report))
            case Done(key, lanes):
                self._add_samples(worker, lanes)
                self._handle(ShardDone(worker, key))
                self._tell(lambda listener: listener.shard_done(key))
            case Failing(reason, trace):
                LOG.debug("worker %d (%s): %s", worker, self._slots[worker].label, trace.rstrip())
                process.last_word = reason
            case Unwritable(reason):
                raise WorkerError(f"{reason}; finished shards are kept, the same command goes on from them")
            case Left(lanes):
                self._add_samples(worker, lanes)
                process.left = True
                self._handle(WorkerLeft(worker))

    def _bury(self, worker: int, process: _Process) -> None:
        """Reaps a process that is gone and tells the scheduler."""
        process.connection.close()
        code = process.popen.wait()
        process.left = True
        reason = process.last_word or _describe_exit(code)
        if not process.leaving or process.last_word:
            self._note(f"worker {worker} ({self._slots[worker].label}): {reason}", level=logging.ERROR)
        self._handle(WorkerDied(worker, reason))

    def _refuse(self, process: _Process, kind: str, text: str) -> None:
        """Raises while the pool opens what a worker met; later it is a death with a reason, for the model did open before."""
        if self._opening:
            error: type[RoilineError] = getattr(roiline.core.errors, kind, EngineError)
            raise error(text)
        process.last_word = text

    def _handle(self, event: Event) -> None:
        self._carry_out(self._scheduler.handle(event))

    def _carry_out(self, instructions: Sequence[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case StartWorker(worker):
                    self._start(worker)
                case AssignShard(worker, shard, careful, skip):
                    self._order(worker, replace(self._works[shard], careful=careful, skip=skip))
                case StopWorker(worker):
                    self._stop(worker)
                case SetAside(shard, image, reason):
                    self.set_aside.add(shard)
                    self._note(f"shard {shard}, image {image}: {reason}")
                case GiveUpWorker(worker, reason):
                    self._give_up(worker, reason)
                case Finish():
                    self._finish = instruction

    # -- processes ---------------------------------------------------------------------------------------------------------------

    def _start(self, worker: int) -> None:
        slot = self._slots[worker]
        try:
            here, there = Pipe()
            with there, _blocked_signals():
                popen = subprocess.Popen(
                    [sys.executable, "-P", "-c", _WORKER_CODE, str(there.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=sys.__stderr__.fileno() if sys.__stderr__ is not None else subprocess.DEVNULL,
                    env={**os.environ, **_thread_environment(slot.device), **slot.environment},
                    pass_fds=[there.fileno()],
                )
        except OSError as error:
            raise WorkerError(
                f"worker {worker} ({slot.label}): its process cannot be started ({error.strerror}); use fewer workers"
            ) from error
        self._processes[worker] = _Process(popen, here)
        self._order(worker, replace(self._setup, device=slot.device))

    def _order(self, worker: int, order: Order) -> None:
        """Sends an order; that a worker is gone is noticed when its pipe is read."""
        with contextlib.suppress(OSError):
            self._processes[worker].connection.send(order)

    def _stop(self, worker: int) -> None:
        """Asks a worker to leave; one that is still opening its model has nothing to finish and is ended."""
        process = self._processes[worker]
        process.leaving = True
        if process.ready:
            self._order(worker, Stop())
        else:
            process.popen.kill()

    def _give_up(self, worker: int, reason: str) -> None:
        if self._opening:
            raise WorkerError(f"{reason} (while opening {self._setup.model} on {self._slots[worker].label})")
        self._note(f"worker {worker} ({self._slots[worker].label}) is not started again: {reason}")

    def _add_samples(self, worker: int, lanes: Mapping[str, Samples]) -> None:
        for lane, samples in lanes.items():
            self.ledger.add(worker, lane, samples)

    def _tell(self, call: Callable[[PoolListener], None]) -> None:
        if self._listener is not None:
            call(self._listener)

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
        before = {number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            self._wakeup = None
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
            f"worker {worker} ({self._slots[worker].label}, process {process.popen.pid})"
            for worker, process in self._processes.items()
            if not process.left
        ]
        LOG.warning("still waiting for %s; a second Ctrl-C leaves at once", ", ".join(missing))


@contextlib.contextmanager
def _blocked_signals() -> Iterator[None]:
    """Blocks SIGINT and SIGTERM while a process is started: it inherits the block and is never hit before it can ignore them."""
    numbers = {signal.SIGINT, signal.SIGTERM}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _thread_environment(device: Device) -> dict[str, str]:
    """Holds the libraries that take their number of threads from the environment to the worker's share of the cores."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS") if device.threads > 0 else ()
    return {name: str(device.threads) for name in names}


def _describe_exit(code: int) -> str:
    if code == -signal.SIGKILL:
        return "killed by SIGKILL (by hand, or by the system for want of memory)"
    if code < 0:
        known = {number.value: number.name for number in signal.Signals}
        return f"killed by {known.get(-code, f'signal {-code}')}"
    return f"its process ended with exit code {code}"
