"""That what the scheduler does for one shard does not grow with the number of workers, and that its sums are right all the same."""

from __future__ import annotations

import random

import pytest

from roiline.infer.scheduler import (
    AssignShard,
    Finish,
    ImageFinished,
    ImageStarted,
    Instruction,
    Limits,
    Scheduler,
    ShardDone,
    ShardsPlanned,
    StartWorker,
    TimePassed,
    WorkerDied,
    WorkerLeft,
    WorkerReady,
)

SIZE = 16


class Cluster:
    """Workers that go through their shards, one whole shard a step; some are slow, and some die now and then."""

    def __init__(self, workers: int, shards: int) -> None:
        self.scheduler = Scheduler(workers, Limits(600.0, 600.0))
        self.queues: list[list[int]] = [[] for _ in range(workers)]
        self.done: list[int] = []
        self.finished = ""
        self.feed(*(WorkerReady(number) for number in range(workers)))
        self.feed(ShardsPlanned({shard: range(SIZE) for shard in range(shards)}, 3, 3))

    def feed(self, *events: object) -> None:
        for event in events:
            for instruction in self.scheduler.handle(event):
                self.carry_out(instruction)

    def carry_out(self, instruction: Instruction) -> None:
        match instruction:
            case AssignShard(worker, shard):
                self.queues[worker].append(shard)
            case StartWorker(worker):
                self.feed(WorkerReady(worker))
            case Finish(outcome):
                self.finished = outcome

    def work(self, worker: int) -> None:
        if not self.queues[worker]:
            return
        shard = self.queues[worker].pop(0)
        for image in range(SIZE):
            self.feed(ImageStarted(worker, shard, image), ImageFinished(worker, shard, image))
        self.done.append(shard)
        self.feed(ShardDone(worker, shard))

    def die(self, worker: int) -> None:
        self.queues[worker].clear()
        self.feed(WorkerDied(worker, "for a test"))


def check_sums(scheduler: Scheduler) -> None:
    known = [worker for worker in scheduler._workers if worker.state == "ready" and worker.rate is not None]
    assert scheduler._rates == pytest.approx(sum(worker.rate for worker in known), rel=1e-9, abs=1e-9)
    assert scheduler._images_held == sum(held.left for worker in known for held in worker.held.values())
    for worker in scheduler._workers:
        assert worker.images_left == sum(held.left for held in worker.held.values())


@pytest.mark.parametrize("seed", range(5))
def test_sums_stay_right_and_every_shard_is_done_once(seed: int) -> None:
    choose = random.Random(seed)
    cluster = Cluster(12, 300)
    for step in range(3000):
        worker = choose.randrange(12)
        if worker >= 3 or step % 4 == 0:  # three slow ones
            cluster.work(worker)
        if choose.random() < 0.02:
            cluster.die(worker)
        if step % 5 == 0:
            cluster.feed(TimePassed(0.5))
        check_sums(cluster.scheduler)
        if cluster.scheduler.left == 0:
            break
    assert sorted(cluster.done) == list(range(300))
    cluster.feed(*(WorkerLeft(number) for number in range(12)))
    assert cluster.finished == "done"
    check_sums(cluster.scheduler)


@pytest.mark.parametrize("workers", [10, 200])
def test_a_shards_end_looks_at_no_other_worker(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0
    expected = Scheduler._expected_s

    def count(*arguments: object) -> float | None:
        nonlocal looks
        looks += 1
        return expected(*arguments)

    cluster = Cluster(workers, 40 * workers)
    for turn in range(6):  # everybody's rate is known
        for worker in range(workers):
            cluster.work(worker)
        cluster.feed(TimePassed(1.0 + 0.1 * turn))
    monkeypatch.setattr(Scheduler, "_expected_s", staticmethod(count))
    for _ in range(10):
        for worker in range(workers):
            cluster.work(worker)
    assert looks <= 2 * 10 * workers
