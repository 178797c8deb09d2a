from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roiline.infer.scheduler import (
    MAX_DEATHS,
    MAX_IDLE_DEATHS,
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


def feed(scheduler: Scheduler, *events: Event) -> list[Instruction]:
    """Feeds events and returns what followed from the last."""
    instructions: list[Instruction] = []
    for event in events:
        instructions = scheduler.handle(event)
    return instructions


def assigned(instructions: list[Instruction]) -> list[tuple[int, int, bool]]:
    return [(i.worker, i.shard, i.careful) for i in instructions if isinstance(i, AssignShard)]


def test_every_worker_is_started_first() -> None:
    assert Scheduler(3).begin() == [StartWorker(0), StartWorker(1), StartWorker(2)]


def test_few_shards_are_shared_out_evenly_up_to_the_depth() -> None:
    scheduler = Scheduler(2)
    plan = ShardsPlanned({n: [0] for n in range(5)}, depth=2)
    got = feed(scheduler, WorkerReady(0), WorkerReady(1), plan)
    assert assigned(got) == [(0, 0, False), (1, 1, False), (0, 2, False), (1, 3, False)]
    assert assigned(feed(scheduler, ShardDone(1, 1))) == [(1, 4, False)]


def test_nothing_is_assigned_before_the_plan_and_a_late_worker_joins() -> None:
    scheduler = Scheduler(2)
    assert feed(scheduler, WorkerReady(0)) == []
    assert assigned(feed(scheduler, ShardsPlanned({0: [0], 1: [0], 2: [0]}, depth=1))) == [(0, 0, False)]
    assert assigned(feed(scheduler, WorkerReady(1))) == [(1, 1, False)]


def test_an_empty_plan_is_done_when_the_workers_have_left() -> None:
    scheduler = Scheduler(1)
    assert feed(scheduler, WorkerReady(0), ShardsPlanned({})) == [StopWorker(0)]
    assert feed(scheduler, WorkerLeft(0)) == [Finish("done")]
    assert feed(scheduler, StopRequested()) == []


def test_a_dead_workers_shards_come_back_first_and_touched_ones_careful() -> None:
    scheduler = Scheduler(1)
    feed(scheduler, WorkerReady(0), ShardsPlanned({n: [0, 1] for n in range(4)}, depth=2))
    got = feed(scheduler, ImageStarted(0, 0, 0), ImageFinished(0, 0, 0), ImageStarted(0, 0, 1), WorkerDied(0, "gone"))
    assert got == [StartWorker(0)]
    assert assigned(feed(scheduler, WorkerReady(0))) == [(0, 0, True)]  # alone
    assert assigned(feed(scheduler, ShardDone(0, 0))) == [(0, 1, False), (0, 2, False)]


def test_an_image_is_set_aside_at_the_second_death_that_it_is_blamed_for() -> None:
    scheduler = Scheduler(1)
    feed(scheduler, WorkerReady(0), ShardsPlanned({0: [5, 6]}))
    feed(scheduler, ImageStarted(0, 0, 5), ImageStarted(0, 0, 6), WorkerDied(0, "boom"), WorkerReady(0))
    feed(scheduler, ImageStarted(0, 0, 5), ImageFinished(0, 0, 5), ImageStarted(0, 0, 6))
    assert feed(scheduler, WorkerDied(0, "boom")) == [StartWorker(0)]
    feed(scheduler, WorkerReady(0), ImageStarted(0, 0, 5), ImageFinished(0, 0, 5), ImageStarted(0, 0, 6))
    got = feed(scheduler, WorkerDied(0, "boom"))
    reason = "set aside: its worker died 2 times over it (boom)"
    assert got == [SetAside(0, 6, reason), StartWorker(0)]
    assert feed(scheduler, WorkerReady(0)) == [AssignShard(0, 0, True, {6: reason})]


def test_a_worker_that_dies_idle_is_given_up_and_the_others_go_on() -> None:
    scheduler = Scheduler(2)
    feed(scheduler, WorkerReady(1), ShardsPlanned({0: [0]}))
    for _ in range(MAX_IDLE_DEATHS - 1):
        assert feed(scheduler, WorkerDied(0, "no device")) == [StartWorker(0)]
    assert feed(scheduler, WorkerDied(0, "no device")) == [
        GiveUpWorker(0, f"worker 0 died {MAX_IDLE_DEATHS} times in a row: no device")
    ]
    assert feed(scheduler, ShardDone(1, 0)) == [StopWorker(1)]
    assert feed(scheduler, WorkerLeft(1)) == [Finish("done")]


def test_when_no_worker_is_left_the_run_fails_with_the_last_reason() -> None:
    scheduler = Scheduler(1)
    feed(scheduler, WorkerReady(0), ShardsPlanned({n: [0] for n in range(20)}, depth=1))
    for number in range(MAX_DEATHS):
        assert not any(isinstance(i, Finish) for i in feed(scheduler, WorkerReady(0)))
        held = [s for s in range(20) if s in scheduler._workers[0].held]
        got = feed(scheduler, ImageStarted(0, held[0], 0), WorkerDied(0, f"broken {number}"))
    assert got[-1] == Finish("failed", f"broken {MAX_DEATHS - 1}")


def test_an_image_that_fails_is_no_sign_of_health() -> None:
    scheduler = Scheduler(1)
    feed(scheduler, ShardsPlanned({0: [0]}))
    for _ in range(MAX_IDLE_DEATHS - 1):
        feed(scheduler, WorkerReady(0), ImageFinished(0, 0, 0, failed=True), WorkerDied(0, "x"))
    got = feed(scheduler, WorkerReady(0), ImageFinished(0, 0, 0, failed=True), WorkerDied(0, "x"))
    assert isinstance(got[-1], Finish)


def test_a_stop_lets_workers_finish_and_assigns_nothing_more() -> None:
    scheduler = Scheduler(2)
    feed(scheduler, WorkerReady(0), ShardsPlanned({n: [0] for n in range(9)}, depth=1))
    assert feed(scheduler, StopRequested()) == [StopWorker(0), StopWorker(1)]
    assert feed(scheduler, ShardDone(0, 0)) == []
    assert feed(scheduler, WorkerDied(1, "killed while opening")) == []
    assert feed(scheduler, WorkerLeft(0)) == [Finish("stopped")]
    assert scheduler.left == 8


@dataclass
class Machine:
    """Plays workers that do what they are told, unless they die; checks what must always hold."""

    scheduler: Scheduler
    plan: dict[int, list[int]]
    killers: set[tuple[int, int]]
    state: dict[int, str] = field(default_factory=dict)
    held: dict[int, dict[int, list[int]]] = field(default_factory=dict)
    careful: set[int] = field(default_factory=set)
    done: list[int] = field(default_factory=list)
    aside: set[tuple[int, int]] = field(default_factory=set)
    deaths_on: Counter[tuple[int, int]] = field(default_factory=Counter)
    finish: Finish | None = None
    stopped: bool = False

    def carry_out(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            assert self.finish is None
            match instruction:
                case StartWorker(worker):
                    assert self.state.get(worker, "dead") == "dead"
                    self.state[worker], self.held[worker] = "starting", {}
                case AssignShard(worker, shard, careful, skip):
                    assert self.state[worker] == "ready"
                    assert not self.stopped
                    assert shard not in self.done
                    assert all(shard not in held for held in self.held.values())
                    assert not (self.careful & set(self.held[worker]))
                    assert not (careful and self.held[worker])
                    assert {(shard, image) for image in skip} == {p for p in self.aside if p[0] == shard}
                    self.careful |= {shard} if careful else set()
                    self.held[worker][shard] = list(self.plan[shard])
                case StopWorker(worker):
                    assert self.state[worker] in ("starting", "ready")
                    self.state[worker] = "leaving"
                case SetAside(shard, image, _):
                    assert self.deaths_on[shard, image] == 2
                    self.aside.add((shard, image))
                case GiveUpWorker(worker, _):
                    self.state[worker] = "given up"
                case Finish():
                    self.finish = instruction

    def feed(self, event: Event) -> None:
        self.carry_out(self.scheduler.handle(event))

    def die(self, worker: int, in_flight: list[tuple[int, int]]) -> None:
        self.deaths_on.update(in_flight)
        leaving = self.state[worker] == "leaving"
        self.state[worker], self.held[worker] = ("gone" if leaving else "dead"), {}
        self.feed(WorkerDied(worker, "dead"))

    def step(self, worker: int, dies: bool) -> None:
        """Lets one worker do its next thing."""
        state = self.state.get(worker)
        if state == "starting":
            self.die(worker, []) if dies else (self.state.update({worker: "ready"}), self.feed(WorkerReady(worker)))
        elif state in ("ready", "leaving") and self.held[worker]:
            self.work(worker, dies)
        elif state == "leaving":
            self.state[worker] = "gone"
            self.feed(WorkerLeft(worker))
        elif state == "ready" and dies:
            self.die(worker, [])

    def work(self, worker: int, dies: bool) -> None:
        shard, images = next(iter(self.held[worker].items()))
        if not images:
            del self.held[worker][shard]
            self.careful.discard(shard)
            self.done.append(shard)
            self.feed(ShardDone(worker, shard))
            return
        image = images.pop(0)
        if (shard, image) in self.aside:
            self.feed(ImageFinished(worker, shard, image, failed=True))
            return
        self.feed(ImageStarted(worker, shard, image))
        if dies or (shard, image) in self.killers:
            self.die(worker, [(shard, image)])
        else:
            self.feed(ImageFinished(worker, shard, image))


@settings(max_examples=150, deadline=None)
@given(
    workers=st.integers(1, 4),
    sizes=st.lists(st.integers(1, 5), max_size=8),
    depth=st.integers(1, 4),
    killers=st.sets(st.tuples(st.integers(0, 7), st.integers(0, 4)), max_size=2),
    choices=st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=60),
    stop_at=st.one_of(st.none(), st.integers(0, 80)),
)
def test_whatever_dies_every_shard_is_done_once_or_the_run_says_why_not(
    workers: int,
    sizes: list[int],
    depth: int,
    killers: set[tuple[int, int]],
    choices: list[tuple[int, bool]],
    stop_at: int | None,
) -> None:
    plan = {shard: list(range(size)) for shard, size in enumerate(sizes)}
    machine = Machine(Scheduler(workers), plan, killers)
    machine.carry_out(machine.scheduler.begin())
    machine.feed(ShardsPlanned(plan, depth))
    steps = 0
    while machine.finish is None:
        if steps == stop_at:
            machine.stopped = True
            machine.feed(StopRequested())
        worker, dies = choices[steps] if steps < len(choices) else (steps % workers, False)
        machine.step(worker % workers, dies)
        steps += 1
        assert steps < 5000, "the run does not end"
    assert len(machine.done) == len(set(machine.done))
    outcome = machine.finish.outcome
    if outcome == "done":
        assert sorted(machine.done) == sorted(plan)
        present = {(s, i) for s, i in killers if i in plan.get(s, [])}
        assert present <= machine.aside
    elif outcome == "stopped":
        assert machine.stopped
    else:
        assert set(machine.state.values()) <= {"given up", "gone"}
    assert machine.scheduler.left == len(plan) - len(machine.done)


def test_an_image_alone_in_flight_is_blamed_at_once() -> None:
    scheduler = Scheduler(1)
    feed(scheduler, WorkerReady(0), ShardsPlanned({0: [5]}))
    feed(scheduler, ImageStarted(0, 0, 5), WorkerDied(0, "boom"), WorkerReady(0))
    assert isinstance(feed(scheduler, ImageStarted(0, 0, 5), WorkerDied(0, "boom"))[0], SetAside)


@pytest.mark.parametrize("killers", [1, 2, 3, 4])
def test_neighbouring_killers_do_not_end_a_run(killers: int) -> None:
    plan = {0: list(range(6)), 1: [0]}
    machine = Machine(Scheduler(1), plan, {(0, i + 1) for i in range(killers)})
    machine.carry_out(machine.scheduler.begin())
    machine.feed(ShardsPlanned(plan, 2))
    steps = 0
    while machine.finish is None and (steps := steps + 1) < 500:
        machine.step(0, False)
    assert machine.finish == Finish("done")
    assert machine.aside == machine.killers


def test_a_worker_that_never_finishes_a_shard_is_given_up_though_images_succeed() -> None:
    scheduler = Scheduler(1)
    feed(scheduler, ShardsPlanned({0: [0, 1], 1: [0, 1]}, depth=2))
    deaths = 0
    got: list[Instruction] = []
    while not any(isinstance(i, GiveUpWorker) for i in got):
        deaths += 1
        assert deaths <= MAX_DEATHS
        feed(scheduler, WorkerReady(0))
        (shard, *_) = scheduler._workers[0].held
        for image in (0, 1):
            feed(scheduler, ImageStarted(0, shard, image), ImageFinished(0, shard, image))
        if shard == 0 and deaths == 1:
            feed(scheduler, ImageStarted(0, 1, 0), ImageStarted(0, 1, 1))  # read ahead
        got = feed(scheduler, WorkerDied(0, "no room"))
    assert got == [
        GiveUpWorker(0, f"worker 0 died {MAX_DEATHS} times without finishing a shard: no room"),
        Finish("failed", "no room"),
    ]


def test_a_shard_that_is_done_clears_the_count_of_deaths() -> None:
    scheduler = Scheduler(1)
    feed(scheduler, ShardsPlanned({n: [0, 1] for n in range(3 * MAX_DEATHS)}, depth=1))
    for _ in range(2 * MAX_DEATHS):
        feed(scheduler, WorkerReady(0))
        (shard,) = scheduler._workers[0].held
        started = [
            event for image in (0, 1) for event in (ImageStarted(0, shard, image), ImageFinished(0, shard, image))
        ]
        feed(scheduler, *started, ShardDone(0, shard))
        assert feed(scheduler, WorkerDied(0, "now and then"))[0] == StartWorker(0)


def test_an_enormous_depth_hands_out_what_there_is() -> None:
    scheduler = Scheduler(2)
    feed(scheduler, WorkerReady(0), WorkerReady(1))
    got = feed(scheduler, ShardsPlanned({n: [0] for n in range(3)}, depth=10**18))
    assert assigned(got) == [(0, 0, False), (1, 1, False), (0, 2, False)]
