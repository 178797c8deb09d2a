"""Batches in flight, over backends that compute at once and one that does not."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from run_support import make_spec

from roiline.core.errors import EngineError, UsageError
from roiline.engines.protocol import Engine, Tensor, TensorInfo

INFOS = (TensorInfo("x", "float32", (None,)),)


class Immediate:
    inputs = outputs = INFOS
    description: Mapping[str, str] = {}

    def run(self, feeds: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {"x": feeds["x"] * 2}

    def close(self) -> None:
        self.closed = True


class Pipelined(Immediate):
    depth = 2
    usual_hw = None

    def __init__(self) -> None:
        self.calls: list[str] = []

    def submit(self, feeds: Mapping[str, Tensor]) -> object:
        self.calls.append("submit")
        return feeds["x"].copy()

    def collect(self, pending: object) -> dict[str, Tensor]:
        self.calls.append("collect")
        assert isinstance(pending, np.ndarray)
        return {"x": pending * 2}


@pytest.mark.parametrize("kind", [Immediate, Pipelined])
def test_batches_in_flight_come_back_each_with_its_own(kind):
    engine = Engine(kind(), make_spec())
    assert engine.depth == (2 if kind is Pipelined else 1)
    first = engine.submit({"x": np.float32([1])})
    second = engine.submit({"x": np.float32([2, 3])})
    assert engine.collect(first)["x"].tolist() == [2]
    assert engine.collect(second)["x"].tolist() == [4, 6]
    assert engine.run({"x": np.float32([5])})["x"].tolist() == [10]


def test_two_batches_are_really_in_flight():
    backend = Pipelined()
    engine = Engine(backend, make_spec())
    tickets = [engine.submit({"x": np.float32([1])}) for _ in range(2)]
    for ticket in tickets:
        engine.collect(ticket)
    assert backend.calls == ["submit", "submit", "collect", "collect"]


@pytest.mark.parametrize("kind", [Immediate, Pipelined])
def test_a_batch_is_collected_once(kind):
    engine = Engine(kind(), make_spec())
    ticket = engine.submit({"x": np.float32([1])})
    engine.collect(ticket)
    with pytest.raises(UsageError, match="collected twice"):
        engine.collect(ticket)


def test_calls_are_checked_on_both_sides():
    engine = Engine(Pipelined(), make_spec())
    with pytest.raises(UsageError, match="float64"):
        engine.submit({"x": np.float64([1])})
    ticket = engine.submit({"x": np.float32([1])})
    ticket.pending = np.float64([1])
    with pytest.raises(EngineError, match="expected float32"):
        engine.collect(ticket)
    engine.close()
    with pytest.raises(EngineError, match="closed"):
        engine.submit({"x": np.float32([1])})
