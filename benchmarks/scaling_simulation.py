"""How a run behaves from 1 to 1,000 GPUs: the real scheduler in a simulated cluster, with unit costs measured on this machine.

Simulated are workers (their rates, slow ones, deaths, the time until one is back) and the head, which takes one report after another; what
a worker is told takes effect when the head has come to it. Measured are the scheduler's own time for every event, while it decides in the
simulation; what a report costs the head on its way through pickle, queue and selector; writing a shard; checking one when a run goes on;
and merging. With Ray installed, what fetching reports from an actor costs the head is measured too. No cluster is used.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import pickle
import random
import selectors
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

from merge_memory import _make_manifest as make_manifest
from merge_memory import _write_shards as write_shards

from roiline.infer.cluster_transport import ActorHandle, gather_seconds
from roiline.infer.merge import MergedResults
from roiline.infer.messages import Finished, ImageWork, Report, Several, ShardWork, Started
from roiline.infer.outputs import write_results
from roiline.infer.plan import plan_shards
from roiline.infer.progress import DatasetProgress, RunProgress
from roiline.infer.scheduler import (
    AssignShard,
    Event,
    Finish,
    ImageFinished,
    ImageStarted,
    Instruction,
    Limits,
    Scheduler,
    ShardDone,
    ShardsPlanned,
    StartWorker,
    StopWorker,
    TimePassed,
    WorkerDied,
    WorkerLeft,
    WorkerReady,
)
from roiline.infer.shards import SUFFIX, ShardFile, find_done_shards

GPUS = (1, 8, 64, 256, 512, 1000)
DEPTH = 3
LOOK_EVERY_S = 0.05
TASK = "proposals"


@dataclass(frozen=True, slots=True)
class Assumptions:
    """Is what is assumed of the cluster: nothing here is measured."""

    images: int
    images_per_s: float
    slow_share: float = 0.05
    slow_rate: float = 0.5
    deaths_per_gpu_hour: float = 0.25
    restart_s: float = 60.0
    way_s: float = 0.002
    read_ahead: int = 10


@dataclass(frozen=True, slots=True)
class UnitCosts:
    """Is what was measured here, in seconds: a report's way into the head, a call that fetches reports, one that hands a shard out,
    one shard of 64 images, one image merged.
    """

    report_s: float
    fetch_s: float
    order_s: float
    shard_write_s: float
    shard_bytes: int
    shard_check_s: float
    merge_image_s: float


@dataclass(slots=True)
class SimulatedGpu:
    """Is a worker: what it holds, and whose life an event belongs to."""

    rate: float
    life: int = 0
    queue: deque[int] = field(default_factory=deque)
    busy: bool = False
    leaving: bool = False


@dataclass(slots=True)
class Outcome:
    """Is how a simulated run went."""

    gpus: int
    wall_s: float = 0.0
    ideal_s: float = 0.0
    head_s: float = 0.0
    deaths: int = 0
    images_again: int = 0
    handled: Counter[str] = field(default_factory=Counter)
    decided_s: dict[str, float] = field(default_factory=lambda: defaultdict(float))


class Simulation:
    """Runs one job to its end in simulated time."""

    def __init__(self, gpus: int, shards: dict[int, int], assumed: Assumptions, costs: UnitCosts) -> None:
        self._random = random.Random(gpus)
        self._assumed, self._costs = assumed, costs
        self._shards = shards
        self._scheduler = Scheduler(gpus, Limits(600.0, 1800.0, 1))
        slow = int(gpus * assumed.slow_share)
        rates = [assumed.images_per_s * self._random.uniform(0.95, 1.05) for _ in range(gpus)]
        self._gpus = [SimulatedGpu(r * (assumed.slow_rate if n < slow else 1.0)) for n, r in enumerate(rates)]
        self._heap: list[tuple[float, int, int, int, Event | None]] = []
        self._numbers = itertools.count()
        self._head_free = 0.0
        self._looked = 0.0
        self._finished = False
        self._images_done = 0
        self.outcome = Outcome(gpus, ideal_s=sum(shards.values()) / sum(gpu.rate for gpu in self._gpus))

    def run(self) -> Outcome:
        """Starts all workers at 0 s and returns how the run went."""
        for worker, _ in enumerate(self._scheduler.begin()):
            self._later(0.0, worker, WorkerReady(worker))
        planned = {shard: range(images) for shard, images in self._shards.items()}
        self._decide(0.0, ShardsPlanned(planned, DEPTH, DEPTH))
        for worker in range(len(self._gpus)):
            self._plan_death(worker, 0.0)
        while not self._finished:
            at, _, worker, life, event = heapq.heappop(self._heap)
            if life != self._gpus[worker].life:
                continue
            if event is None:
                self._next_shard(worker, at)
            elif isinstance(event, WorkerDied):
                self._die(worker, at, event)
            elif isinstance(event, WorkerLeft):
                self._gpus[worker].life += 1
                self._decide(at, event)
            else:
                self._decide(at, event)
        self.outcome.wall_s = self._head_free
        again = self.outcome.handled["ImageFinished"] - sum(self._shards.values())
        self.outcome.images_again = again
        return self.outcome

    def _later(self, at: float, worker: int, event: Event | None) -> None:
        heapq.heappush(self._heap, (at, next(self._numbers), worker, self._gpus[worker].life, event))

    # -- the head ----------------------------------------------------------------------------------------------------------------

    def _decide(self, at: float, event: Event) -> None:
        """Lets the head take an event in: it waits for its turn, costs what it costs, and its answers go out after that."""
        begun = max(at, self._head_free)
        cost = self._handle(event, begun) + self._cost_of(event)
        if begun - self._looked >= LOOK_EVERY_S:
            passed, self._looked = begun - self._looked, begun
            cost += self._handle(TimePassed(min(passed, 2.0)), begun + cost)
        self._head_free = begun + cost
        self.outcome.head_s += cost

    def _cost_of(self, event: Event) -> float:
        """Returns what a report costs beside the decision: those of images share a fetch, any other is fetched at once, and answered."""
        costs = self._costs
        if not isinstance(event, (ImageStarted, ImageFinished)):
            return costs.report_s + costs.fetch_s + costs.order_s
        # What is told of an image is its end, and its begin where that was fetched before; a fetch carries what was gathered.
        gather_s, images_per_s = gather_seconds(len(self._gpus)), self._assumed.images_per_s
        begins = min(1.0, self._assumed.read_ahead / images_per_s / gather_s)
        shared = costs.fetch_s / max(1.0, images_per_s * gather_s * (1 + begins))
        return (costs.report_s + shared) * (begins if isinstance(event, ImageStarted) else 1.0)

    def _handle(self, event: Event, at: float) -> float:
        name = type(event).__name__
        start = time.perf_counter()
        instructions = self._scheduler.handle(event)
        self.outcome.decided_s[name] += time.perf_counter() - start
        self.outcome.handled[name] += 1
        # The mean so far, so that a moment in which this machine was busy with something else does not count as the head's.
        mean = self.outcome.decided_s[name] / self.outcome.handled[name]
        for instruction in instructions:
            self._carry_out(instruction, at + mean + self._costs.report_s + self._assumed.way_s)
        return mean

    def _carry_out(self, instruction: Instruction, at: float) -> None:
        match instruction:
            case AssignShard(worker, shard):
                gpu = self._gpus[worker]
                gpu.queue.append(shard)
                if not gpu.busy:
                    gpu.busy = True
                    self._later(at, worker, None)
            case StartWorker(worker):
                self._later(at + self._assumed.restart_s, worker, WorkerReady(worker))
                self._plan_death(worker, at + self._assumed.restart_s)
            case StopWorker(worker):
                self._gpus[worker].leaving = True
                if not self._gpus[worker].busy:
                    self._later(at, worker, WorkerLeft(worker))
            case Finish(outcome, reason):
                if outcome != "done":
                    sys.exit(f"the simulated run ended as {outcome}: {reason}")
                self._finished = True

    # -- the workers -------------------------------------------------------------------------------------------------------------

    def _next_shard(self, worker: int, at: float) -> None:
        """Begins the next shard and says what will be reported of it; a dead worker's reports are dropped by its life."""
        gpu = self._gpus[worker]
        if not gpu.queue:
            gpu.busy = False
            if gpu.leaving:
                self._later(at, worker, WorkerLeft(worker))
            return
        shard = gpu.queue.popleft()
        step = 1.0 / (gpu.rate * self._random.uniform(0.9, 1.1))
        for image in range(self._shards[shard]):
            self._later(at, worker, ImageStarted(worker, shard, image))
            at += step
            self._later(at, worker, ImageFinished(worker, shard, image))
        self._later(at + self._costs.shard_write_s, worker, ShardDone(worker, shard))
        self._later(at, worker, None)

    def _plan_death(self, worker: int, after: float) -> None:
        rate = self._assumed.deaths_per_gpu_hour / 3600
        if rate:
            self._later(after + self._random.expovariate(rate), worker, WorkerDied(worker, "simulated"))

    def _die(self, worker: int, at: float, event: WorkerDied) -> None:
        gpu = self._gpus[worker]
        gpu.life += 1
        gpu.queue.clear()
        gpu.busy = False
        self.outcome.deaths += 1
        self._decide(at, event)


# -- unit costs ------------------------------------------------------------------------------------------------------------------


def best_s(call: Callable[[], object], *, times: int = 5) -> float:
    """Returns the shortest of several processor times of a call, in seconds: the machine may be busy with other things."""
    taken = []
    for _ in range(times):
        start = time.process_time()
        call()
        taken.append(time.process_time() - start)
    return min(taken)


class _Silent:
    """Is a Ray, and an actor, of which nothing is ever heard."""

    exceptions = SimpleNamespace(GetTimeoutError=TimeoutError, RayError=OSError)

    def __getattr__(self, _name: str) -> _Silent:
        return self

    def options(self, **_options: object) -> _Silent:
        return self

    def remote(self, *_arguments: object) -> None:
        return None

    def get(self, _call: None, **_options: object) -> None:
        threading.Event().wait()


def measure_report_s(*, together: int = 16) -> float:
    """Returns the head's time for one report of an image beside the scheduler's: unpickled, queued, waited for, received, shown."""
    handle = ActorHandle(_Silent(), _Silent(), 0, "")
    pairs = [(Started(7, place), Finished(7, place, None, 0.01, 0.001)) for place in range(together // 2)]
    lists = [pickle.dumps([Several(tuple(itertools.chain(*pairs)))]) for _ in range(500)]
    progress = RunProgress(10**6, 0, shown=False)
    dataset = DatasetProgress(TASK, 0, 10**6, 10**6, done=0)

    def show(report: Report) -> None:
        for one in report.reports if isinstance(report, Several) else ():
            if isinstance(one, Finished):
                progress.count(failed=False)
                dataset.finish_image(0.01, 0.001, images_per_s=progress.images_per_s)
                progress.show()

    def pass_all() -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(handle.waitable, selectors.EVENT_READ)
            for fetched in lists:
                for several in pickle.loads(fetched):  # noqa: S301 - made a few lines above
                    handle._put(handle._take(several, 0.0))
                    selector.select(0)
                    show(handle.receive())

    return best_s(pass_all) / (len(lists) * together)


def measure_calls_s(*, calls: int = 1000) -> tuple[float, float]:
    """Returns the head's processor time, of all its threads, to fetch a list of reports from an actor and to hand it a shard.

    Both are 0 without Ray.
    """
    try:
        import ray
    except ImportError:
        return 0.0, 0.0
    ray.init(address="local", include_dashboard=False, log_to_driver=False)

    class Worker:
        def collect(self) -> list[Several]:
            return [Several(tuple(Started(7, place) for place in range(12)))]

        def send(self, order: ShardWork) -> None:
            pass

    actor = ray.remote(Worker).remote()
    images = tuple(ImageWork(place, place, f"/data/pictures/{place:012d}.jpg", (480, 640)) for place in range(64))
    order = ShardWork(0, 0, Path("/data/out/shards/000000.shard"), "0" * 64, images)

    def fetch_all() -> None:
        for _ in range(calls):
            ray.get(actor.collect.remote())

    def send_all() -> None:
        ray.get([actor.send.remote(order) for _ in range(calls)])

    fetch_all()
    seconds = best_s(fetch_all) / calls, best_s(send_all) / calls
    ray.shutdown()
    return seconds


def measure_storage(folder: Path, images: int) -> tuple[float, int, float, float]:
    """Returns seconds to write a shard, its bytes, seconds to check one, and seconds to merge one image, all on the wall clock."""
    shards = folder / "shards"
    shards.mkdir()
    began = time.perf_counter()
    write_shards(shards, TASK, images, 1000)
    files = sorted(shards.glob(f"*{SUFFIX}"))
    write_s = (time.perf_counter() - began) / len(files)
    size = files[0].stat().st_size
    plan = [ShardFile(path).header.positions for path in files]
    began = time.perf_counter()
    done, bad = find_done_shards(shards, plan, identity="0" * 64)
    check_s = (time.perf_counter() - began) / len(files)
    if bad or len(done) != len(files):
        sys.exit(f"expected {len(files)} good shards, got {len(done)}; {bad}")
    began = time.perf_counter()
    out = folder / "out"
    out.mkdir()
    write_results(
        out, make_manifest(TASK, images), MergedResults([(0, list(done.values()))], images=images), ("detectron",)
    )
    return write_s, size, check_s, (time.perf_counter() - began) / images


def measure_costs(folder: Path | None) -> UnitCosts:
    """Measures all unit costs; those of calls of actors are 0 where Ray is not installed."""
    fetch_s, order_s = measure_calls_s()
    with tempfile.TemporaryDirectory(dir=folder) as name:
        write_s, size, check_s, merge_s = measure_storage(Path(name), 2000)
    return UnitCosts(measure_report_s(), fetch_s, order_s, write_s, size, check_s, merge_s)


# -- the table -------------------------------------------------------------------------------------------------------------------

COLUMNS = (
    "GPUs",
    "images/s",
    "wall",
    "of ideal",
    "head busy",
    "decision a shard",
    "deaths",
    "images again",
    "shards/s",
    "MB/s written",
    "merge",
)


def row_of(outcome: Outcome, shards: int, assumed: Assumptions, costs: UnitCosts) -> list[str]:
    """Returns a line of the table."""
    done = outcome.handled["ShardDone"]
    rate = assumed.images / outcome.wall_s
    return [
        f"{outcome.gpus}",
        f"{rate:.0f}",
        f"{outcome.wall_s:.0f} s",
        f"{outcome.ideal_s / outcome.wall_s:.1%}",
        f"{outcome.head_s / outcome.wall_s:.1%}",
        f"{1e3 * outcome.decided_s['ShardDone'] / done:.2f} ms",
        f"{outcome.deaths}",
        f"{outcome.images_again}",
        f"{shards / outcome.wall_s:.1f}",
        f"{rate * costs.shard_bytes / 64 / 1e6:.0f}",
        f"{assumed.images * costs.merge_image_s:.0f} s",
    ]


def describe_costs(costs: UnitCosts) -> str:
    """Returns the unit costs as lines."""
    calls = f"{costs.fetch_s * 1e6:.0f} us to fetch reports, {costs.order_s * 1e6:.0f} us to hand a shard out"
    return "\n".join(
        [
            f"a report of an image on its way into the head: {costs.report_s * 1e6:.1f} us of processor time",
            f"a call of an actor: {calls if costs.fetch_s else 'not measured (no Ray)'}",
            f"a shard of 64 x 1,000 proposals: {costs.shard_bytes / 1e6:.2f} MB, written in {costs.shard_write_s * 1e3:.1f} ms",
            f"a shard checked when a run goes on: {costs.shard_check_s * 1e3:.2f} ms; an image merged: {costs.merge_image_s * 1e3:.3f} ms",
        ]
    )


def main() -> None:
    """Measures the unit costs, simulates, and prints both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=1_000_000)
    parser.add_argument("--images-per-s", type=float, default=30.0, help="of one GPU")
    parser.add_argument("--gpus", type=int, nargs="*", default=GPUS)
    parser.add_argument("--folder", type=Path, help="where shards are written to measure that")
    options = parser.parse_args()
    costs = measure_costs(options.folder)
    print(describe_costs(costs))
    assumed = Assumptions(options.images, options.images_per_s)
    began = time.perf_counter()
    plan = plan_shards([(800, 1344)] * assumed.images)
    print(f"{assumed.images} images are {len(plan)} shards, planned in {time.perf_counter() - began:.1f} s\n")
    shards = {shard.index: len(shard.positions) for shard in plan}
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
    for gpus in options.gpus:
        outcome = Simulation(gpus, shards, assumed, costs).run()
        print(f"| {' | '.join(row_of(outcome, len(shards), assumed, costs))} |", flush=True)


if __name__ == "__main__":
    main()
