from __future__ import annotations

import os
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection

import pytest

from roiline.core.errors import WorkerError
from roiline.engines.protocol import Device
from roiline.infer.messages import Left, ShardWork, Started, Stop
from roiline.infer.request import Slot
from roiline.infer.transport import ProcessHandle, start_process


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[ProcessHandle, Connection, subprocess.Popen[bytes]]]:
    """A handle, the worker's end of its pipe, and a process that sleeps in the worker's place."""
    monkeypatch.setattr("roiline.infer.transport._REPORT_LIMIT_S", 1)
    here, there = Pipe()
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        handle = ProcessHandle(process, here)
        yield handle, there, process
        handle.kill()
        handle.close()
        there.close()


def test_reports_and_orders_pass_and_an_end_is_told(
    ends: tuple[ProcessHandle, Connection, subprocess.Popen[bytes]],
) -> None:
    handle, there, process = ends
    assert handle.name == f"process {process.pid}"
    assert not handle.has_report()
    there.send(Started(3, 4))
    there.send(Left({}))
    assert handle.has_report()
    assert (handle.receive(), handle.receive()) == (Started(3, 4), Left({}))
    handle.send(Stop())
    assert there.recv() == Stop()
    there.close()
    assert handle.has_report()
    with pytest.raises(EOFError):
        handle.receive()


def test_orders_to_a_worker_that_does_not_read_hold_nobody_up(
    ends: tuple[ProcessHandle, Connection, subprocess.Popen[bytes]],
) -> None:
    handle, there, _ = ends
    large = ShardWork(0, 0, os.devnull, "x" * 10_000_000, ())  # type: ignore[arg-type]
    sent = threading.Thread(target=lambda: [handle.send(large) for _ in range(3)])
    sent.start()
    sent.join(30)
    assert not sent.is_alive()
    assert [there.recv().identity for _ in range(3)] == [large.identity] * 3


def test_a_report_of_which_the_rest_does_not_come_is_an_end(
    ends: tuple[ProcessHandle, Connection, subprocess.Popen[bytes]],
) -> None:
    handle, there, _ = ends
    os.write(there.fileno(), struct.pack("!i", 100_000) + b"half")
    with pytest.raises(EOFError):
        handle.receive()


def test_a_stopped_process_is_ended_and_its_end_described(
    ends: tuple[ProcessHandle, Connection, subprocess.Popen[bytes]],
) -> None:
    handle, _, process = ends
    process.send_signal(19)  # SIGSTOP
    assert handle.join(0.05) is None
    handle.kill()
    assert handle.join(30) == "killed by SIGKILL (by hand, or by the system for want of memory)"


def test_a_process_that_cannot_be_started_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(WorkerError, match=r"worker 3 \(gpu 7\): its process cannot be started \(No such file"):
        start_process(3, Slot(Device("cpu"), {}, "gpu 7"))
