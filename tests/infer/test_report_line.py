from __future__ import annotations

from multiprocessing import Pipe
from multiprocessing.connection import Connection
from types import SimpleNamespace

import pytest

from roiline.infer.messages import Done, Finished, Several, Started
from roiline.infer.report_line import PipeLine


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The line's clock, one moment, to be changed by the test."""
    moment = [100.0]
    monkeypatch.setattr("roiline.infer.report_line.time", SimpleNamespace(monotonic=lambda: moment[0]))
    return moment


@pytest.fixture
def ends() -> tuple[PipeLine, Connection]:
    there, here = Pipe()
    return PipeLine(there), here


def received(end: Connection) -> list[object]:
    messages: list[object] = []
    while end.poll():
        messages.append(end.recv())
    return messages


def finished(position: int) -> Finished:
    return Finished(3, position, None)


def test_reports_that_come_fast_travel_together_and_in_order(
    ends: tuple[PipeLine, Connection], now: list[float]
) -> None:
    line, here = ends
    line.announce([Started(3, 0), Started(3, 1)])
    assert received(here) == [Several((Started(3, 0), Started(3, 1)))]
    line.hold(finished(0))
    line.hold(finished(1))
    assert received(here) == []
    line.announce([Started(3, 2)])
    assert received(here) == [Several((finished(0), finished(1), Started(3, 2)))]
    line.hold(finished(2))
    line.flush()
    line.flush()
    assert received(here) == [finished(2)]


def test_a_report_that_comes_long_after_the_last_waits_for_nobody(
    ends: tuple[PipeLine, Connection], now: list[float]
) -> None:
    line, here = ends
    line.hold(finished(0))
    assert received(here) == [finished(0)]
    now[0] += 1.0
    line.hold(finished(1))
    line.hold(finished(2))
    assert received(here) == [finished(1)]


def test_nothing_overtakes_what_was_held_back(ends: tuple[PipeLine, Connection], now: list[float]) -> None:
    line, here = ends
    line.announce([Started(3, 0)])
    line.hold(finished(0))
    line.send(Done(3, {}))
    assert received(here) == [Started(3, 0), finished(0), Done(3, {})]


def test_announcing_nothing_says_nothing(ends: tuple[PipeLine, Connection]) -> None:
    line, here = ends
    line.announce([])
    assert received(here) == []
