"""The scheduler: a state machine without I/O, clocks or threads. Events go in, instructions come out.

A worker is started, says that it is ready, and is handed shards, up to `depth` at a time so that it can read ahead. When a worker dies,
the shards it held go back to the head of the queue; those of which images were in flight are `careful` from then on: a worker runs such
a shard alone, batch after batch with nothing read ahead. An image is blamed for a death where it was certain to be the culprit: in
flight alone, or in a careful shard; an image that was blamed twice is set aside, so that a worker killed by hand costs nobody's result.

Deaths are bounded: a worker that dies `MAX_IDLE_DEATHS` times with nothing in flight, or `MAX_DEATHS` times without an image that
succeeds in between, is given up, and so is one that dies `MAX_DEATHS` times for no image's fault without a shard that reaches the disk in
between: images that succeed are no progress where nothing can be written. When no worker is left the run fails.

Shards are numbers to it, images are numbers within their shard; workers are numbered from 0.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

MAX_IDLE_DEATHS = 3
MAX_DEATHS = 8
MAX_STRIKES = 2


@dataclass(frozen=True, slots=True)
class WorkerReady:
    """Says that a worker has opened its engine and warmed it up."""

    worker: int


@dataclass(frozen=True, slots=True)
class WorkerDied:
    """Says that a worker is gone without having been told to go, and what is known about it."""

    worker: int
    reason: str


@dataclass(frozen=True, slots=True)
class WorkerLeft:
    """Says that a worker has gone as it was told to."""

    worker: int


@dataclass(frozen=True, slots=True)
class ShardsPlanned:
    """Says what there is to do: shard -> its images, and how many shards a worker may hold. Comes once."""

    shards: Mapping[int, Sequence[int]]
    depth: int = 2


@dataclass(frozen=True, slots=True)
class ImageStarted:
    """Says that a worker now touches an image of a shard."""

    worker: int
    shard: int
    image: int


@dataclass(frozen=True, slots=True)
class ImageFinished:
    """Says that an image has its result, or has failed in an orderly way (or was not touched, because it was set aside)."""

    worker: int
    shard: int
    image: int
    failed: bool = False


@dataclass(frozen=True, slots=True)
class ShardDone:
    """Says that a shard is on the disk."""

    worker: int
    shard: int


@dataclass(frozen=True, slots=True)
class StopRequested:
    """Asks to finish what is under way, and no more."""


Event: TypeAlias = (
    WorkerReady | WorkerDied | WorkerLeft | ShardsPlanned | ImageStarted | ImageFinished | ShardDone | StopRequested
)


@dataclass(frozen=True, slots=True)
class StartWorker:
    """Asks for the process of a worker."""

    worker: int


@dataclass(frozen=True, slots=True)
class AssignShard:
    """Hands a shard to a worker; the images in `skip` (image -> reason) are not to be touched, they fail with the reason."""

    worker: int
    shard: int
    careful: bool
    skip: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class StopWorker:
    """Tells a worker to go: it finishes the shards that it has begun and drops the others."""

    worker: int


@dataclass(frozen=True, slots=True)
class SetAside:
    """Reports that an image will not be tried again."""

    shard: int
    image: int
    reason: str


@dataclass(frozen=True, slots=True)
class GiveUpWorker:
    """Reports that a worker will not be started again."""

    worker: int
    reason: str


@dataclass(frozen=True, slots=True)
class Finish:
    """Says that there is nothing left to wait for, and how it ended."""

    outcome: Literal["done", "stopped", "failed"]
    reason: str = ""


Instruction: TypeAlias = StartWorker | AssignShard | StopWorker | SetAside | GiveUpWorker | Finish


@dataclass(slots=True)
class _Worker:
    state: Literal["starting", "ready", "leaving", "gone"] = "starting"
    held: dict[int, set[int]] = field(default_factory=dict)  # shard -> its images in flight
    idle_deaths: int = 0
    deaths: int = 0
    fruitless_deaths: int = 0  # since the last shard, with no image to blame


class Scheduler:
    """Decides who does what. Feed it every event once, in order, and carry out what it answers."""

    def __init__(self, workers: int) -> None:
        self._workers = [_Worker() for _ in range(workers)]
        self._depth = 1
        self._queue: deque[int] = deque()
        self._images: dict[int, tuple[int, ...]] = {}
        self._left: set[int] = set()
        self._careful: set[int] = set()
        self._strikes: Counter[tuple[int, int]] = Counter()  # (shard, image)
        self._aside: dict[tuple[int, int], str] = {}
        self._planned = self._stopping = self._finished = False
        self._last_reason = ""

    @property
    def left(self) -> int:
        """Is the number of shards that are not on the disk yet."""
        return len(self._left)

    def begin(self) -> list[Instruction]:
        """Returns the first instructions: start every worker."""
        return [StartWorker(worker) for worker in range(len(self._workers))]

    def handle(self, event: Event) -> list[Instruction]:
        """Takes one event in and returns what follows from it; nothing follows after `Finish`."""
        if self._finished:
            return []
        instructions: list[Instruction] = []
        match event:
            case WorkerReady(worker):
                self._workers[worker].state = "ready"
                if self._stopping:
                    instructions += self._stop_workers()
            case WorkerDied(worker, reason):
                instructions += self._bury(worker, reason)
            case WorkerLeft(worker):
                self._release(worker)
                self._workers[worker].state = "gone"
            case ShardsPlanned(shards, depth):
                self._planned = True
                self._depth = depth
                self._images = {shard: tuple(images) for shard, images in shards.items()}
                self._left = set(shards)
                self._queue.extend(shards)
            case ImageStarted(worker, shard, image):
                self._workers[worker].held[shard].add(image)
            case ImageFinished(worker, shard, image, failed):
                self._workers[worker].held[shard].discard(image)
                if not failed:
                    self._workers[worker].deaths = self._workers[worker].idle_deaths = 0
            case ShardDone(worker, shard):
                del self._workers[worker].held[shard]
                self._left.discard(shard)
                self._workers[worker].fruitless_deaths = 0
            case StopRequested():
                self._stopping = True
                instructions += self._stop_workers()
        return instructions + self._assign() + self._conclude()

    def _bury(self, worker: int, reason: str) -> list[Instruction]:
        """Takes a dead worker's shards back and decides whether it comes again."""
        state = self._workers[worker]
        was_leaving = state.state == "leaving"
        in_flight = sorted((shard, image) for shard, images in state.held.items() for image in images)
        self._last_reason = reason
        instructions: list[Instruction] = []
        blamed = False
        for place in in_flight:
            if len(in_flight) > 1 and place[0] not in self._careful:
                continue
            blamed = True
            self._strikes[place] += 1
            if self._strikes[place] >= MAX_STRIKES and place not in self._aside:
                self._aside[place] = f"set aside: its worker died {MAX_STRIKES} times over it ({reason})"
                instructions.append(SetAside(*place, self._aside[place]))
        self._careful |= {shard for shard, images in state.held.items() if images}
        self._release(worker)
        state.deaths += 1
        state.idle_deaths = 0 if in_flight else state.idle_deaths + 1
        state.fruitless_deaths += not blamed
        if self._stopping or was_leaving:
            state.state = "gone"
        elif state.idle_deaths >= MAX_IDLE_DEATHS or state.deaths >= MAX_DEATHS:
            state.state = "gone"
            instructions.append(GiveUpWorker(worker, f"worker {worker} died {state.deaths} times in a row: {reason}"))
        elif state.fruitless_deaths >= MAX_DEATHS:
            state.state = "gone"
            times = f"{state.fruitless_deaths} times without finishing a shard"
            instructions.append(GiveUpWorker(worker, f"worker {worker} died {times}: {reason}"))
        else:
            state.state = "starting"
            instructions.append(StartWorker(worker))
        return instructions

    def _release(self, worker: int) -> None:
        held = self._workers[worker].held
        self._queue.extendleft(reversed([shard for shard in held if shard in self._left]))
        held.clear()

    def _stop_workers(self) -> list[Instruction]:
        instructions: list[Instruction] = []
        for number, worker in enumerate(self._workers):
            if worker.state in ("starting", "ready"):
                worker.state = "leaving"
                instructions.append(StopWorker(number))
        return instructions

    def _assign(self) -> list[Instruction]:
        """Hands out shards, one a worker in turn, so that a short queue is shared evenly."""
        instructions: list[Instruction] = []
        if self._stopping:
            return instructions
        open_workers = {number for number, worker in enumerate(self._workers) if worker.state == "ready"}
        while self._queue:
            open_workers = {number for number in open_workers if len(self._workers[number].held) < self._depth}
            if not open_workers:
                break
            number = min(open_workers, key=lambda one: (len(self._workers[one].held), one))
            handed = self._hand_next(number)
            if not handed:
                open_workers.discard(number)
            instructions += handed
        return instructions

    def _hand_next(self, worker: int) -> list[Instruction]:
        held = self._workers[worker].held
        if any(shard in self._careful for shard in held):
            return []
        fits = (shard for shard in self._queue if not held or shard not in self._careful)
        shard = next(fits, None)
        if shard is None:
            return []
        self._queue.remove(shard)
        held[shard] = set()
        skip = {image: self._aside[shard, image] for image in self._images[shard] if (shard, image) in self._aside}
        return [AssignShard(worker, shard, shard in self._careful, skip)]

    def _conclude(self) -> list[Instruction]:
        """Ends the run when the work is done, when it was stopped and all are gone, or when nobody is left to do it."""
        all_gone = all(worker.state == "gone" for worker in self._workers)
        if self._planned and not self._left:
            instructions = self._stop_workers()
            if all(worker.state == "gone" for worker in self._workers):
                self._finished = True
                instructions.append(Finish("done"))
            return instructions
        if not all_gone:
            return []
        self._finished = True
        return [Finish("stopped")] if self._stopping else [Finish("failed", self._last_reason)]
