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


def work_off(scheduler: Scheduler, worker: int, shard: int, images: int) -> list[Instruction]:
    """Lets a worker do a shard at an image a second; returns what followed."""
    got: list[Instruction] = []
    for image in range(images):
        got += feed(scheduler, TimePassed(1.0))
        got += feed(scheduler, ImageStarted(worker, shard, image))
        got += feed(scheduler, ImageFinished(worker, shard, image))
    return got + feed(scheduler, ShardDone(worker, shard))


def test_shards_are_shared_out_evenly_one_at_first_and_up_to_the_depth_once_a_speed_is_known() -> None:
    scheduler = Scheduler(2)
    plan = ShardsPlanned({n: range(8) for n in range(9)}, depth=2)
    got = feed(scheduler, WorkerReady(0), WorkerReady(1), plan)
    assert assigned(got) == [(0, 0, False), (1, 1, False)]
    assert assigned(work_off(scheduler, 1, 1, 8)) == [(1, 2, False), (1, 3, False)]
    assert assigned(work_off(scheduler, 1, 2, 8)) == [(1, 4, False)]
    assert assigned(work_off(scheduler, 0, 0, 8)) == [(0, 5, False), (0, 6, False)]


def test_a_worker_holds_more_shards_where_a_batch_needs_them() -> None:
    scheduler = Scheduler(1)
    got = feed(scheduler, WorkerReady(0), ShardsPlanned({n: range(4) for n in range(9)}, depth=2, ahead=10))
    assert assigned(got) == [(0, 0, False), (0, 1, False), (0, 2, False)]
    assert assigned(feed(scheduler, ImageStarted(0, 0, 0), ImageFinished(0, 0, 0))) == []
    feed(scheduler, ImageStarted(0, 0, 1), ImageFinished(0, 0, 1))
    assert assigned(feed(scheduler, ImageStarted(0, 0, 2), ImageFinished(0, 0, 2))) == [(0, 3, False)]


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
    feed(scheduler, WorkerReady(0), ShardsPlanned({n: [0, 1] for n in range(4)}, depth=2, ahead=4))
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
    killed: list[int] = field(default_factory=list)

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
                case KillWorker(worker, _):
                    assert self.state[worker] not in ("dead", "gone", "given up")
                    self.killed.append(worker)
                case StopWorker(worker):
                    assert self.state[worker] in ("starting", "ready")
                    self.state[worker] = "leaving"
                case SetAside(shard, image, _):
                    assert self.deaths_on[shard, image] >= 2
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
    feed(scheduler, ShardsPlanned({0: [0, 1], 1: [0, 1]}, depth=2, ahead=9))
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
    got = feed(scheduler, ShardsPlanned({n: [0] for n in range(3)}, depth=10**18, ahead=10**18))
    assert assigned(got) == [(0, 0, False), (1, 1, False), (0, 2, False)]


# -- time ------------------------------------------------------------------------------------------------------------------------


@dataclass
class HangingMachine(Machine):
    """Workers hang over the images in `hangers` until they are ended; every step takes a while."""

    hangers: set[tuple[int, int]] = field(default_factory=set)
    hung: dict[int, tuple[int, int]] = field(default_factory=dict)

    def step(self, worker: int, dies: bool) -> None:
        if worker not in self.hung:
            super().step(worker, dies)

    def work(self, worker: int, dies: bool) -> None:
        shard, images = next(iter(self.held[worker].items()))
        if images and (shard, images[0]) in self.hangers - self.aside and not dies:
            self.hung[worker] = (shard, images[0])
            self.feed(ImageStarted(worker, shard, images.pop(0)))
        else:
            super().work(worker, dies)

    def pass_time(self, seconds: float) -> None:
        self.feed(TimePassed(seconds))
        for worker in self.killed:
            place = self.hung.pop(worker, None)
            self.die(worker, [] if place is None else [place])
        self.killed.clear()


@settings(max_examples=150, deadline=None)
@given(
    workers=st.integers(1, 4),
    sizes=st.lists(st.integers(1, 5), max_size=8),
    depth=st.integers(1, 4),
    ahead=st.integers(0, 9),
    killers=st.sets(st.tuples(st.integers(0, 7), st.integers(0, 4)), max_size=1),
    hangers=st.sets(st.tuples(st.integers(0, 7), st.integers(0, 4)), max_size=2),
    choices=st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.floats(0, 3)), max_size=60),
    stop_at=st.one_of(st.none(), st.integers(0, 80)),
)
def test_whatever_dies_or_hangs_and_however_fast_anybody_is_the_run_ends(
    workers: int,
    sizes: list[int],
    depth: int,
    ahead: int,
    killers: set[tuple[int, int]],
    hangers: set[tuple[int, int]],
    choices: list[tuple[int, bool, float]],
    stop_at: int | None,
) -> None:
    plan = {shard: list(range(size)) for shard, size in enumerate(sizes)}
    scheduler = Scheduler(workers, Limits(image_s=20.0, other_s=50.0))
    machine = HangingMachine(scheduler, plan, killers, hangers=hangers)
    machine.carry_out(scheduler.begin())
    machine.feed(ShardsPlanned(plan, depth, ahead))
    steps = 0
    while machine.finish is None:
        if steps == stop_at:
            machine.stopped = True
            machine.feed(StopRequested())
        worker, dies, seconds = choices[steps] if steps < len(choices) else (steps % workers, False, 0.5)
        machine.step(worker % workers, dies)
        machine.pass_time(seconds)
        steps += 1
        assert steps < 5000, "the run does not end"
    assert len(machine.done) == len(set(machine.done))
    if machine.finish.outcome == "done":
        assert sorted(machine.done) == sorted(plan)
        assert {(s, i) for s, i in killers | hangers if i in plan.get(s, [])} <= machine.aside
    else:
        assert machine.stopped or set(machine.state.values()) <= {"given up", "gone"}


def test_a_hanging_image_is_retried_alone_once_and_then_set_aside() -> None:
    scheduler = Scheduler(1, Limits(image_s=10.0, other_s=99.0, together=4))
    feed(scheduler, WorkerReady(0), ShardsPlanned({0: [5, 6, 7]}))
    feed(scheduler, ImageStarted(0, 0, 5), ImageStarted(0, 0, 6), TimePassed(15.0))
    assert feed(scheduler, TimePassed(4.0)) == []  # two are in its hands: twice as long
    assert feed(scheduler, TimePassed(2.0)) == [KillWorker(0, "no answer for more than 20 s")]
    assert feed(scheduler, TimePassed(99.0)) == []  # once is enough
    assert feed(scheduler, WorkerDied(0, "slow")) == [StartWorker(0)]
    assert feed(scheduler, WorkerReady(0)) == [AssignShard(0, 0, True, {})]
    feed(scheduler, ImageStarted(0, 0, 5), ImageFinished(0, 0, 5), ImageStarted(0, 0, 6))
    assert feed(scheduler, TimePassed(11.0)) == [KillWorker(0, "no answer for more than 10 s")]
    reason = "set aside: its worker died 2 times over it (slow)"
    assert feed(scheduler, WorkerDied(0, "slow")) == [SetAside(0, 6, reason), StartWorker(0)]


def test_a_worker_that_is_stopped_below_the_limit_costs_nothing() -> None:
    scheduler = Scheduler(1, Limits(image_s=10.0, other_s=10.0))
    feed(scheduler, WorkerReady(0), ShardsPlanned({0: [1, 2]}))
    for image in (1, 2):
        assert feed(scheduler, ImageStarted(0, 0, image), TimePassed(9.0), ImageFinished(0, 0, image)) == []
    assert feed(scheduler, TimePassed(9.0), ShardDone(0, 0), TimePassed(9.0)) == []


def test_an_idle_worker_is_never_ended_and_a_silent_start_or_write_is() -> None:
    scheduler = Scheduler(2, Limits(image_s=1.0, other_s=10.0))
    feed(scheduler, WorkerReady(0))
    assert feed(scheduler, TimePassed(11.0)) == [KillWorker(1, "no answer for more than 10 s")]
    feed(scheduler, WorkerDied(1, "x"), ShardsPlanned({0: [1]}))
    feed(scheduler, ImageStarted(0, 0, 1), ImageFinished(0, 0, 1))
    assert feed(scheduler, TimePassed(9.0)) == []  # it writes
    assert KillWorker(0, "no answer for more than 10 s") in feed(scheduler, TimePassed(2.0))


def test_without_limits_nobody_is_ended() -> None:
    scheduler = Scheduler(2)
    feed(scheduler, WorkerReady(0), ShardsPlanned({0: [1]}), ImageStarted(0, 0, 1))
    assert feed(scheduler, TimePassed(1e9)) == []


@dataclass
class Simulation:
    """Workers of given speeds (images a second) on a clock of its own; returns how long a queue takes them."""

    speeds: list[float]

    def run(self, shards: int, size: int) -> float:
        scheduler = Scheduler(len(self.speeds))
        todo: dict[int, list[tuple[int, int]]] = {n: [] for n in range(len(self.speeds))}
        next_s = dict.fromkeys(todo, float("inf"))
        now = 0.0

        def carry_out(instructions: list[Instruction]) -> None:
            for one in instructions:
                if isinstance(one, AssignShard):
                    if not todo[one.worker]:
                        next_s[one.worker] = now + 1 / self.speeds[one.worker]
                    todo[one.worker] += [(one.shard, image) for image in range(size)]

        for worker in todo:
            carry_out(scheduler.handle(WorkerReady(worker)))
        carry_out(scheduler.handle(ShardsPlanned({n: list(range(size)) for n in range(shards)}, 3)))
        while scheduler.left:
            worker = min(next_s, key=lambda one: next_s[one])
            assert next_s[worker] < float("inf"), "nobody works"
            carry_out(scheduler.handle(TimePassed(next_s[worker] - now)))
            now = next_s[worker]
            shard, image = todo[worker].pop(0)
            next_s[worker] = now + 1 / self.speeds[worker] if todo[worker] else float("inf")
            carry_out(scheduler.handle(ImageStarted(worker, shard, image)))
            carry_out(scheduler.handle(ImageFinished(worker, shard, image)))
            if image == size - 1:
                carry_out(scheduler.handle(ShardDone(worker, shard)))
        return now


@pytest.mark.parametrize("speeds", [[10.0, 10.0, 1.0], [10.0, 0.2], [5.0] * 8, [8.0, 4.0, 2.0, 1.0]])
def test_a_slow_device_does_not_decide_the_end(speeds: list[float]) -> None:
    shards, size = 60, 8
    ideal = shards * size / sum(speeds)
    first = size / min(speeds)  # its speed is not known before
    assert Simulation(speeds).run(shards, size) <= max(first, ideal + 2 * size / max(speeds))
