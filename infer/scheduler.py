"""The scheduler: a state machine without I/O, clocks or threads. Events go in, instructions come out.

A worker is started, says that it is ready, and is handed shards, up to `depth` at a time so that it can read ahead. When a worker dies,
the shards it held go back to the head of the queue; those of which images were in flight are `careful` from then on: a worker runs such
a shard alone, batch after batch with nothing read ahead. An image is blamed for a death where it was certain to be the culprit: in
flight alone, or in a careful shard; an image that was blamed twice is set aside, so that a worker killed by hand costs nobody's result.

Deaths are bounded: a worker that dies `MAX_IDLE_DEATHS` times with nothing in flight, or `MAX_DEATHS` times without an image that
succeeds in between, is given up, and so is one that dies `MAX_DEATHS` times for no image's fault without a shard that reaches the disk in
between: images that succeed are no progress where nothing can be written. When no worker is left the run fails.

Time comes in as an event too. A worker that says nothing for longer than its images may take is ended, which is a death over the images
in flight; an image that was in flight at such an end and is alone at the next one has been tried alone once, and is set aside. Rates are
measured from the same events: near the end of the queue a slow worker is not handed what faster ones finish sooner, so that it does not
decide when the run ends.

Shards are numbers to it, images are numbers within their shard; workers are numbered from 0.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, nsmallest
from typing import Literal, TypeAlias

MAX_IDLE_DEATHS = 3
MAX_DEATHS = 8
MAX_STRIKES = 2
RATE_IMAGES = 8
RATE_MEMORY = 256


@dataclass(frozen=True, slots=True)
class Limits:
    """Is how long a worker may say nothing, in seconds; 0 is no limit.

    `image_s` is for each image in flight, of which `together` at most finish at once (a batch). `other_s` is for what is no image's fault:
    opening the model, writing a shard, leaving.
    """

    image_s: float = 0.0
    other_s: float = 0.0
    together: int = 1


NO_LIMITS = Limits()


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
    """Says what there is to do: shard -> its images. A worker may hold `depth` shards, or any number below `ahead` images. Comes once."""

    shards: Mapping[int, Sequence[int]]
    depth: int = 2
    ahead: int = 0


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
class TimePassed:
    """Says that the workers were watched for so many seconds since the last time, with nothing of theirs left unread."""

    seconds: float


@dataclass(frozen=True, slots=True)
class StopRequested:
    """Asks to finish what is under way, and no more."""


Event: TypeAlias = (
    WorkerReady
    | WorkerDied
    | WorkerLeft
    | ShardsPlanned
    | ImageStarted
    | ImageFinished
    | ShardDone
    | TimePassed
    | StopRequested
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
class KillWorker:
    """Asks to end a worker that does not answer; that it died is to be said as of any other."""

    worker: int
    reason: str


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


Instruction: TypeAlias = StartWorker | AssignShard | StopWorker | KillWorker | SetAside | GiveUpWorker | Finish


@dataclass(slots=True)
class _Held:
    """Is a shard in a worker's hands: its images in flight, and how many have no result yet."""

    left: int
    in_flight: set[int] = field(default_factory=set)


@dataclass(slots=True)
class _Worker:
    state: Literal["starting", "ready", "leaving", "gone"] = "starting"
    held: dict[int, _Held] = field(default_factory=dict)
    idle_deaths: int = 0
    deaths: int = 0
    fruitless_deaths: int = 0  # since the last shard, with no image to blame
    silent_s: float = 0.0
    timed_out: bool = False
    busy_s: float = 0.0
    finished: int = 0
    images_left: int = 0  # of all shards that it holds
    counted: tuple[float, int] = (0.0, 0)  # its rate and images as they stand in the scheduler's sums

    @property
    def in_flight(self) -> list[tuple[int, int]]:
        return sorted((shard, image) for shard, held in self.held.items() for image in held.in_flight)

    @property
    def rate(self) -> float | None:
        """Is images a second of late, None where too few were finished to tell."""
        return self.finished / self.busy_s if self.finished >= RATE_IMAGES and self.busy_s > 0 else None

    def take(self, shard: int, images: int) -> None:
        self.held[shard] = _Held(images)
        self.images_left += images

    def drop(self, shard: int) -> None:
        self.images_left -= self.held.pop(shard).left

    def pass_time(self, seconds: float) -> None:
        self.silent_s += seconds
        if self.held:
            self.busy_s += seconds

    def finish_image(self, *, failed: bool) -> None:
        if not failed:
            self.deaths = self.idle_deaths = 0
        self.finished += 1
        if self.finished >= RATE_MEMORY:
            self.finished //= 2
            self.busy_s /= 2


class Scheduler:
    """Decides who does what. Feed it every event once, in order, and carry out what it answers."""

    def __init__(self, workers: int, limits: Limits = NO_LIMITS) -> None:
        self._workers = [_Worker() for _ in range(workers)]
        self._limits = limits
        self._depth, self._ahead = 1, 0
        self._queue: deque[int] = deque()
        self._queued_images = 0
        self._images: dict[int, tuple[int, ...]] = {}
        self._left: set[int] = set()
        self._careful: set[int] = set()
        self._strikes: Counter[tuple[int, int]] = Counter()  # (shard, image)
        self._suspects: set[tuple[int, int]] = set()  # in flight when a worker was ended because it did not answer
        self._aside: dict[tuple[int, int], str] = {}
        self._rates, self._images_held = 0.0, 0  # of the workers that are ready and whose rates are known
        self._fastest: dict[
            int, list[tuple[float, int]]
        ] = {}  # images of a shard -> the two soonest; while nothing changes
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
        if isinstance(event, (ImageStarted, ImageFinished)):
            return self._follow_image(event)
        instructions: list[Instruction] = []
        match event:
            case WorkerReady(worker):
                self._workers[worker].state = "ready"
                self._workers[worker].silent_s = 0.0
                self._count(self._workers[worker])
                if self._stopping:
                    instructions += self._stop_workers()
            case WorkerDied(worker, reason):
                instructions += self._bury(worker, reason)
            case WorkerLeft(worker):
                self._release(worker)
                self._workers[worker].state = "gone"
                self._count(self._workers[worker])
            case ShardsPlanned(shards, depth, ahead):
                self._planned = True
                self._depth, self._ahead = depth, ahead
                self._images = {shard: tuple(images) for shard, images in shards.items()}
                self._left = set(shards)
                self._enqueue(shards)
            case ShardDone(worker, shard):
                self._workers[worker].drop(shard)
                self._count(self._workers[worker])
                self._left.discard(shard)
                self._workers[worker].fruitless_deaths = 0
                self._workers[worker].silent_s = 0.0
                return self._assign_to(worker) + self._conclude()
            case TimePassed(seconds):
                instructions += self._pass_time(seconds)
            case StopRequested():
                self._stopping = True
                instructions += self._stop_workers()
        return instructions + self._assign() + self._conclude()

    # -- images and time ---------------------------------------------------------------------------------------------------------

    def _follow_image(self, event: ImageStarted | ImageFinished) -> list[Instruction]:
        """Notes where an image is. This happens twice an image, so nothing here looks at all workers unless it has to."""
        state = self._workers[event.worker]
        held = state.held[event.shard]
        state.silent_s = 0.0
        if isinstance(event, ImageStarted):
            held.in_flight.add(event.image)
            return []
        held.in_flight.discard(event.image)
        held.left -= 1
        state.images_left -= 1
        state.finish_image(failed=event.failed)
        self._count(state)
        return self._assign_to(event.worker) if state.images_left < self._ahead else []

    def _pass_time(self, seconds: float) -> list[Instruction]:
        """Ends the workers that have not answered for too long."""
        instructions: list[Instruction] = []
        for number, worker in enumerate(self._workers):
            worker.pass_time(seconds)
            limit = self._limit(worker)
            if worker.state == "gone" or worker.timed_out or not 0 < limit < worker.silent_s:
                continue
            worker.timed_out = True
            instructions.append(KillWorker(number, f"no answer for more than {limit:g} s"))
        self._recount()
        return instructions

    def _limit(self, worker: _Worker) -> float:
        """Returns how long a worker may say nothing, 0 for as long as it likes."""
        if worker.state == "ready" and not worker.held:
            return 0.0
        in_flight = sum(len(held.in_flight) for held in worker.held.values())
        return self._limits.image_s * min(in_flight, self._limits.together) if in_flight else self._limits.other_s

    # -- deaths ------------------------------------------------------------------------------------------------------------------

    def _bury(self, worker: int, reason: str) -> list[Instruction]:
        """Takes a dead worker's shards back and decides whether it comes again."""
        state = self._workers[worker]
        was_leaving = state.state == "leaving"
        in_flight = state.in_flight
        self._last_reason = reason
        blamed, instructions = self._blame(in_flight, reason, timed_out=state.timed_out)
        self._careful |= {shard for shard, _ in in_flight}
        self._release(worker)
        state.silent_s, state.timed_out = 0.0, False
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
        self._count(state)
        return instructions

    def _blame(
        self, in_flight: Sequence[tuple[int, int]], reason: str, *, timed_out: bool
    ) -> tuple[bool, list[Instruction]]:
        """Strikes the images that must be the culprits of a death; returns whether there are any, and which are set aside for it."""
        suspects = self._suspects.copy() if timed_out else set()
        self._suspects |= set(in_flight) if timed_out else set()
        blamed = [place for place in in_flight if len(in_flight) == 1 or place[0] in self._careful]
        instructions: list[Instruction] = []
        for place in blamed:
            self._strikes[place] += 1
            if place in self._aside or not (self._strikes[place] >= MAX_STRIKES or place in suspects):
                continue
            self._aside[place] = f"set aside: its worker died {MAX_STRIKES} times over it ({reason})"
            instructions.append(SetAside(*place, self._aside[place]))
        return bool(blamed), instructions

    def _release(self, worker: int) -> None:
        held = self._workers[worker].held
        back = [shard for shard in held if shard in self._left]
        self._queue.extendleft(reversed(back))
        self._queued_images += sum(len(self._images[shard]) for shard in back)
        held.clear()
        self._workers[worker].images_left = 0

    def _stop_workers(self) -> list[Instruction]:
        instructions: list[Instruction] = []
        for number, worker in enumerate(self._workers):
            if worker.state in ("starting", "ready"):
                worker.state = "leaving"
                self._count(worker)
                instructions.append(StopWorker(number))
        return instructions

    # -- handing out -------------------------------------------------------------------------------------------------------------

    def _enqueue(self, shards: Iterable[int]) -> None:
        for shard in shards:
            self._queue.append(shard)
            self._queued_images += len(self._images[shard])

    def _assign_to(self, worker: int) -> list[Instruction]:
        """Hands out shards after an event of one worker: to it alone where that will do, for there may be a great many others."""
        instructions: list[Instruction] = []
        state = self._workers[worker]
        while self._queue and not self._stopping and state.state == "ready" and self._has_room(state):
            handed = self._hand_next(worker)
            if not handed:
                return instructions + self._assign()
            instructions += handed
        return instructions

    def _assign(self) -> list[Instruction]:
        """Hands out shards, one a worker in turn, so that a short queue is shared evenly."""
        instructions: list[Instruction] = []
        if self._stopping or not self._queue:
            return instructions
        turns = [
            (len(worker.held), number)
            for number, worker in enumerate(self._workers)
            if worker.state == "ready" and self._has_room(worker)
        ]
        heapify(turns)
        while self._queue and turns:
            _, number = heappop(turns)
            handed = self._hand_next(number)
            instructions += handed
            if handed and self._has_room(self._workers[number]):
                heappush(turns, (len(self._workers[number].held), number))
        return instructions

    def _has_room(self, worker: _Worker) -> bool:
        """Says whether a worker may be handed more; one whose speed is not known yet starts with a single shard."""
        depth = self._depth if worker.rate is not None else 1
        return len(worker.held) < depth or worker.images_left < self._ahead

    def _hand_next(self, worker: int) -> list[Instruction]:
        held = self._workers[worker].held
        if any(shard in self._careful for shard in held):
            return []
        fits = (shard for shard in self._queue if not held or shard not in self._careful)
        shard = next(fits, None)
        if shard is None or not self._is_worth_while(worker, shard):
            return []
        self._queue.remove(shard)
        images = self._images[shard]
        self._queued_images -= len(images)
        if not held:
            self._workers[worker].silent_s = 0.0
        self._workers[worker].take(shard, len(images))
        self._count(self._workers[worker])
        skip = {image: self._aside[shard, image] for image in images if (shard, image) in self._aside}
        return [AssignShard(worker, shard, shard in self._careful, skip)]

    def _is_worth_while(self, worker: int, shard: int) -> bool:
        """Says whether a worker would finish a shard before the others, by their rates, have cleared the queue without it.

        The others need at least as long as all of them together need for all images, and as the first of them needs for this shard;
        so the worker that would finish it first is never refused, and somebody always works.
        """
        images = len(self._images[shard])
        state = self._workers[worker]
        mine = self._expected_s(state, images)
        rates, held = self._rates - state.counted[0], self._images_held - state.counted[1]
        if mine is None or rates <= 0:
            return True
        if mine <= (held + self._queued_images) / rates:
            return True
        return mine <= min((time_s for time_s, other in self._soonest(images) if other != worker), default=mine)

    def _soonest(self, images: int) -> list[tuple[float, int]]:
        """Returns when the first two would be through with so many images more, and who they are."""
        if images not in self._fastest:
            times = (
                (time_s, number)
                for number, worker in enumerate(self._workers)
                if worker.state == "ready" and (time_s := self._expected_s(worker, images)) is not None
            )
            self._fastest[images] = nsmallest(2, times)
        return self._fastest[images]

    def _count(self, worker: _Worker) -> None:
        """Brings a worker's part of the sums up to date."""
        self._fastest.clear()
        rate = worker.rate if worker.state == "ready" else None
        counted = (0.0, 0) if rate is None else (rate, worker.images_left)
        self._rates += counted[0] - worker.counted[0]
        self._images_held += counted[1] - worker.counted[1]
        worker.counted = counted

    def _recount(self) -> None:
        """Makes the sums anew, which also ends what rounding has left in them."""
        self._rates, self._images_held = 0.0, 0
        for worker in self._workers:
            worker.counted = (0.0, 0)
            self._count(worker)

    @staticmethod
    def _expected_s(worker: _Worker, images: int) -> float | None:
        """Returns when a worker would be through with what it holds and `images` more; silence is expected to last as long again."""
        rate = worker.rate
        return None if rate is None else worker.silent_s + (worker.images_left + images) / rate

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
