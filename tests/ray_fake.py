"""A stand-in for the module `ray`: actors are objects of this process with a thread a concurrency group, calls pickle what they carry.

Nothing is placed: what was asked for each actor is kept. A killed actor takes its process along, as the system does for a real one.
"""

from __future__ import annotations

import pickle
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any


class RayError(Exception):
    pass


class GetTimeoutError(RayError, TimeoutError):
    pass


class RayActorError(RayError):
    pass


class _Lane(threading.Thread):
    """One thread of an actor, which makes its calls in order."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.calls: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self.waiting = threading.Semaphore(0)
        self.start()

    def run(self) -> None:
        while True:
            self.waiting.acquire()
            future, call = self.calls.popleft()
            if future.done():  # the actor was killed before its turn
                continue
            try:
                answer = call()
            except BaseException as error:
                _settle(future, error=RayError(str(error)))
            else:
                _settle(future, answer=answer)


def _settle(future: Future[Any], *, answer: Any = None, error: BaseException | None = None) -> None:
    try:
        if error is None:
            future.set_result(pickle.loads(pickle.dumps(answer)))
        else:
            future.set_exception(error)
    except Exception:
        assert future.done()  # the actor was killed meanwhile


class FakeActor:
    """What `Class.remote()` answers: its methods have `remote` and `options`."""

    def __init__(self, kind: type, arguments: tuple[Any, ...], *, placed: bool) -> None:
        self.dead = False
        self.pending: list[Future[Any]] = []
        self.lanes: dict[str, _Lane] = {}
        self.instance: Any = None
        if placed:
            future = self.call("_create", "", lambda: kind(*pickle.loads(pickle.dumps(arguments))))
            self.instance = future.result(60)

    def call(self, name: str, group: str, function: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        self.pending = [one for one in self.pending if not one.done()] + [future]
        if self.dead:
            future.set_exception(RayActorError(f"{name}: the actor is dead"))
        elif name == "_create":
            future.set_result(function())
        elif self.instance is not None:
            lane = self.lanes.setdefault(group, _Lane())
            lane.calls.append((future, function))
            lane.waiting.release()
        return future  # of an actor without a place: never

    def __getattr__(self, name: str) -> Any:
        def bind(group: str) -> SimpleNamespace:
            def remote(*arguments: Any) -> Future[Any]:
                sent = pickle.dumps(arguments)
                return self.call(name, group, lambda: getattr(self.instance, name)(*pickle.loads(sent)))

            return SimpleNamespace(remote=remote, options=lambda concurrency_group: bind(concurrency_group))

        return bind("orders")

    def kill(self) -> None:
        self.dead = True
        if self.instance is not None:
            self.instance.end()
        for future in self.pending:
            _settle(future, error=RayActorError("the actor was killed"))


class FakeRay:
    """The functions of the module that are used; `nodes_there` are given as {"CPU": .., "GPU": ..}, `asked` is what actors asked for."""

    def __init__(self, *resources: Mapping[str, float], places: int = 1000) -> None:
        self.exceptions = SimpleNamespace(RayError=RayError, GetTimeoutError=GetTimeoutError)
        self.resources = resources
        self.places = places
        self.asked: list[dict[str, Any]] = []
        self.actors: list[FakeActor] = []
        self.inits: list[dict[str, Any]] = []
        self.refuses: Exception | None = None

    def is_initialized(self) -> bool:
        return bool(self.inits)

    def init(self, **options: Any) -> None:
        if self.refuses is not None:
            raise self.refuses
        self.inits.append(options)

    def nodes(self) -> Sequence[Mapping[str, Any]]:
        return [
            {"NodeManagerHostname": f"node{number}", "Alive": True, "Resources": dict(resources)}
            for number, resources in enumerate(self.resources)
        ] + [{"NodeManagerHostname": "gone", "Alive": False, "Resources": {"CPU": 64.0, "GPU": 8.0}}]

    def get_runtime_context(self) -> SimpleNamespace:
        return SimpleNamespace(gcs_address="10.0.0.1:6379")

    def remote(self, **options: Any) -> Callable[[type], SimpleNamespace]:
        def make(*arguments: Any, kind: type) -> FakeActor:
            self.asked.append(options)
            living = sum(not actor.dead for actor in self.actors)
            self.actors.append(FakeActor(kind, arguments, placed=living < self.places))
            return self.actors[-1]

        return lambda kind: SimpleNamespace(remote=lambda *arguments: make(*arguments, kind=kind))

    def get(self, future: Future[Any], timeout: float | None = None) -> Any:
        try:
            return future.result(timeout)
        except TimeoutError as error:
            if isinstance(error, RayError) or future.done():
                raise
            raise GetTimeoutError(f"no answer in {timeout} s") from error

    def kill(self, actor: FakeActor) -> None:
        actor.kill()
