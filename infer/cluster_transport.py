"""How the pool reaches workers on a Ray cluster: one actor a worker, placed by Ray; orders and reports are calls of its methods.

A worker that dies is started again by the scheduler, as on one machine, in a new actor, which Ray places wherever there is room then.
"""

from __future__ import annotations

import contextlib
import os
import queue
import secrets
import threading
import time
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Any

from roiline.core.errors import OutputError, RoilineError
from roiline.core.files import sha256_of_file, write_durable
from roiline.infer.cluster import connect, needed_resources
from roiline.infer.cluster_actor import Delivered, Ended, Place, RemoteWorker
from roiline.infer.messages import Done, Failing, Left, Order, Refused, Report, ShardWork, Unwritable
from roiline.infer.request import RunRequest, Slot
from roiline.infer.shard_transfer import keep_shard
from roiline.infer.transport import WORKER_CODE, StartWorkerHandle, start_process

PLACING_LIMIT_S = 300.0
"""How long a worker may wait for a free place on the cluster."""

_LEAST_GATHER_S = 0.2
_FETCHES_PER_S = 500.0

_WAIT_S = 30.0
_LEAVE_S = 3.0
_SIGN_PREFIX = ".cluster-"
_GROUPS = {"reports": 1, "control": 1}
"""Threads of an actor beside that for orders: a call for reports waits, and must hold up neither orders nor an end."""


@contextlib.contextmanager
def open_transport(request: RunRequest) -> Iterator[StartWorkerHandle]:
    """Gives the function that starts the workers of a request, whose folder must be there: processes here, or actors on its cluster.

    Raises:
        EngineError: Ray is not installed, or no cluster answers.
    """
    if request.cluster is None:
        yield start_process
        return
    gather_s = gather_seconds(len(request.slots))
    with ActorStarter(connect(request.cluster), request.out, request.models, gather_s=gather_s) as starter:
        yield starter


def gather_seconds(workers: int) -> float:
    """Returns how long a worker gathers reports of images before they are fetched: the more workers, the longer.

    A fetch costs the head about half a millisecond, whatever it brings; so its fetches a second are bounded, whatever their number.
    """
    return max(_LEAST_GATHER_S, workers / _FETCHES_PER_S)


class ActorStarter:
    """Starts workers as actors; a context manager, which keeps a sign in the run's folder that machines look for."""

    def __init__(self, ray: Any, folder: Path, models: Sequence[Path], *, gather_s: float = _LEAST_GATHER_S) -> None:
        """`folder` is the run's, which must be there; `models` are all model files that a worker opens."""
        self._ray = ray
        self._gather_s = gather_s
        self._models = {model.absolute(): sha256_of_file(model) for model in models}
        self._sign_text = secrets.token_hex(16)
        self._sign = folder.absolute() / f"{_SIGN_PREFIX}{self._sign_text}"
        self._version = metadata.version("roiline")

    def __enter__(self) -> ActorStarter:
        for left in self._sign.parent.glob(f"{_SIGN_PREFIX}*"):
            left.unlink(missing_ok=True)
        write_durable(self._sign, self._sign_text.encode("ascii"))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):  # a folder that is gone has no sign either
            self._sign.unlink()

    def __call__(self, worker: int, slot: Slot, *, code: str = WORKER_CODE) -> ActorHandle:
        """Asks Ray for an actor; it may be placed later."""
        place = Place(worker, slot, code, Path.cwd(), self._version, self._models, self._sign, self._sign_text)
        resources = needed_resources(slot)
        kind = self._ray.remote(
            **resources, max_restarts=0, max_task_retries=0, scheduling_strategy="SPREAD", concurrency_groups=_GROUPS
        )(RemoteWorker)
        actor = kind.remote(place)
        return ActorHandle(self._ray, actor, worker, f"{slot.label}, {resources}", gather_s=self._gather_s)


class ActorHandle:
    """Is a worker in an actor of a cluster, for the pool."""

    def __init__(
        self, ray: Any, actor: Any, worker: int, description: str, *, gather_s: float = _LEAST_GATHER_S
    ) -> None:
        self._ray = ray
        self._gather_s = gather_s
        self._actor = actor
        self._worker = worker
        self._description = description
        self._works: dict[int, ShardWork] = {}
        self._reports: queue.SimpleQueue[Report | None] = queue.SimpleQueue()
        self._count = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_SEMAPHORE | os.EFD_CLOEXEC)
        self._count_lock = threading.Lock()
        self._ended = threading.Event()
        self._how = ""
        self._releasing = False
        threading.Thread(target=self._fetch, name=f"reports of worker {worker}", daemon=True).start()

    @property
    def waitable(self) -> int:
        """Is a descriptor that counts the reports that were fetched and not received."""
        return self._count

    @property
    def name(self) -> str:
        """Is the worker's number on the cluster: where it is, its first report says."""
        return f"cluster worker {self._worker}"

    def send(self, order: Order) -> None:
        """Calls the actor and waits for nothing; calls come in the order in which they were made."""
        witness = None
        if isinstance(order, ShardWork):
            self._works[order.key] = order
            witness = order.images[0].path if order.images and os.path.exists(order.images[0].path) else None
        self._actor.send.remote(order, witness)

    def has_report(self) -> bool:
        """Says whether something was fetched."""
        return not self._reports.empty()

    def receive(self) -> Report:
        """Returns what was fetched, first come first served."""
        report = self._reports.get()
        with self._count_lock:
            if self._count >= 0:
                os.eventfd_read(self._count)
        if report is None:
            self._put(None)
            raise EOFError(self._how)
        return report

    def kill(self) -> None:
        """Has the actor end its process; one that does not say that it did is ended itself, and the process with it."""
        self._actor.end.options(concurrency_group="control").remote()
        self._release()

    def join(self, timeout_s: float) -> str | None:
        """Waits for the process's end, or the actor's."""
        return self._how if self._ended.wait(timeout_s) else None

    def close(self) -> None:
        """Gives the actor back to the cluster as soon as its process is gone."""
        with self._count_lock:
            if self._count >= 0:
                os.close(self._count)
                self._count = -1
        self._release()

    def _release(self) -> None:
        if not self._releasing:
            self._releasing = True
            threading.Thread(target=self._end_actor, name=f"end of worker {self._worker}", daemon=True).start()

    def _end_actor(self) -> None:
        self._ended.wait(_LEAVE_S)
        self._ray.kill(self._actor)

    # -- reports -----------------------------------------------------------------------------------------------------------------

    def _fetch(self) -> None:
        """Fetches reports until there are no more: the thread's whole life."""
        ray = self._ray
        try:
            self._how = self._listen()
        except ray.exceptions.GetTimeoutError:
            self._how = (
                f"the cluster had no place for worker {self._worker} ({self._description}) within {PLACING_LIMIT_S:g} s"
            )
            self._put(Refused("WorkerError", self._how))
        except ray.exceptions.RayError as error:
            self._how = f"its actor is gone ({' '.join(str(error).split())[:300]})"
        except OutputError as error:
            self._how = str(error)
            self._put(Unwritable(self._how))
        except RoilineError as error:
            self._how = str(error)
            self._put(Failing(self._how, ""))
        finally:
            self._ended.set()
            self._put(None)

    def _listen(self) -> str:
        """Passes reports on; returns how the process ended."""
        ahead_s = self._compare_clocks()
        while True:
            call = self._actor.collect.options(concurrency_group="reports").remote(_WAIT_S, self._gather_s)
            for message in self._ray.get(call):
                if isinstance(message, Ended):
                    return message.how
                self._put(self._take(message, ahead_s))

    def _compare_clocks(self) -> float:
        """Returns how far this machine's clock is ahead of the worker's; the first call lasts until the actor has its place."""
        ask = self._actor.clock.options(concurrency_group="reports")
        self._ray.get(ask.remote(), timeout=PLACING_LIMIT_S)
        before = time.perf_counter()
        there: float = self._ray.get(ask.remote())
        return (before + time.perf_counter()) / 2 - there

    def _take(self, message: Report | Delivered, ahead_s: float) -> Report:
        """Returns a message as the pool knows it: a shard that was sent lies in its place, times are of this machine's clock."""
        match message:
            case Delivered(done, files):
                keep_shard(files, self._works.pop(done.key).path)
                return done
            case Done(key):
                del self._works[key]
                return message
            case Left(lanes, spans):
                moved = {
                    lane: [span._replace(start_s=span.start_s + ahead_s) for span in taken]
                    for lane, taken in spans.items()
                }
                return Left(lanes, moved)
            case _:
                return message

    def _put(self, report: Report | None) -> None:
        with self._count_lock:
            self._reports.put(report)
            if self._count >= 0:
                os.eventfd_write(self._count, 1)
