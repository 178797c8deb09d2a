"""How the pool reaches its workers: started, sent orders, heard, ended. Here as processes of this machine over pipes.

The pool knows workers through `WorkerHandle` alone; another way to place and reach them is another function like `start_process`.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, Protocol

from roiline.core.errors import WorkerError
from roiline.engines.protocol import Device
from roiline.infer.messages import Order, Report
from roiline.infer.request import Slot

WORKER_CODE = "from roiline.infer.worker import main; main()"


_REPORT_LIMIT_S = 60
_MEMORY_ENVIRONMENT = {"MALLOC_MMAP_THRESHOLD_": str(1 << 25), "MALLOC_TRIM_THRESHOLD_": str(1 << 28)}
"""Makes the C library keep the memory of one picture for the next: getting it anew from the system costs a fifth of preparing a picture."""


class WorkerHandle(Protocol):
    """Is one started worker as the pool sees it."""

    @property
    def waitable(self) -> Any:
        """Is what a selector can wait for (it has a `fileno`): ready when there is a report, or when the worker is gone."""

    @property
    def name(self) -> str:
        """Says for people where the worker is, e.g. `process 4711`."""

    def send(self, order: Order) -> None:
        """Sends an order; that a worker is gone is no error here, it is noticed when it is heard."""

    def has_report(self) -> bool:
        """Says whether a report (or the end) can be received without waiting."""

    def receive(self) -> Report:
        """Returns the next report.

        Raises:
            EOFError: the worker is gone and everything that it said has been received.
        """

    def kill(self) -> None:
        """Ends the worker at once, whatever it does, also when it is stopped."""

    def join(self, timeout_s: float) -> str | None:
        """Waits for the worker's end; returns how it ended, None if it has not after `timeout_s`."""

    def close(self) -> None:
        """Gives up the connection; the worker leaves when it notices."""


class StartWorkerHandle(Protocol):
    """Starts a worker in a place; what it returns can be sent the setup at once."""

    def __call__(self, worker: int, slot: Slot, *, code: str = WORKER_CODE) -> WorkerHandle:
        """Returns the handle of the new worker, whose process runs `code`.

        Raises:
            WorkerError: it cannot be started.
        """


class ProcessHandle:
    """Is a worker that is a child process."""

    def __init__(self, popen: subprocess.Popen[bytes], connection: Connection) -> None:
        self._popen = popen
        self._connection = connection
        _limit_reading(connection)
        self._orders: queue.SimpleQueue[Order | None] = queue.SimpleQueue()
        threading.Thread(target=self._send_orders, name=f"orders to {popen.pid}", daemon=True).start()

    @property
    def waitable(self) -> Connection:
        """Is the parent's end of the pipe."""
        return self._connection

    @property
    def name(self) -> str:
        """Is the process's number."""
        return f"process {self._popen.pid}"

    def send(self, order: Order) -> None:
        """Leaves an order to a thread of its own: a worker that hangs does not read, and must not hold up the parent."""
        self._orders.put(order)

    def _send_orders(self) -> None:
        with contextlib.suppress(OSError):  # the worker is gone, or the connection was closed
            while (order := self._orders.get()) is not None:
                self._connection.send(order)

    def has_report(self) -> bool:
        """Looks into the pipe."""
        try:
            return self._connection.poll()
        except OSError:
            return True  # a broken pipe is an end, which `receive` tells

    def receive(self) -> Report:
        """Receives from the pipe; its end is the process's, and so is a report of which the rest does not come."""
        try:
            report: Report = self._connection.recv()
        except OSError as error:
            raise EOFError from error
        return report

    def kill(self) -> None:
        """Sends SIGKILL."""
        self._popen.kill()

    def join(self, timeout_s: float) -> str | None:
        """Waits for the process and reaps it."""
        try:
            return _describe_exit(self._popen.wait(timeout_s))
        except subprocess.TimeoutExpired:
            return None

    def close(self) -> None:
        """Closes the pipe."""
        self._orders.put(None)
        self._connection.close()


def start_process(worker: int, slot: Slot, *, code: str = WORKER_CODE) -> WorkerHandle:
    """Starts a fresh interpreter (never a fork) with the environment of its slot; `code` is what it is to run.

    Raises:
        WorkerError: the system has no room for another process.
    """
    try:
        here, there = Pipe()
        with there, _blocked_signals():
            popen = subprocess.Popen(
                [sys.executable, "-P", "-c", code, str(there.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=sys.__stderr__.fileno() if sys.__stderr__ is not None else subprocess.DEVNULL,
                env={**_MEMORY_ENVIRONMENT, **os.environ, **_thread_environment(slot.device), **slot.environment},
                pass_fds=[there.fileno()],
            )
    except OSError as error:
        raise WorkerError(
            f"worker {worker} ({slot.label}): its process cannot be started ({error.strerror}); use fewer workers"
        ) from error
    return ProcessHandle(popen, here)


def _limit_reading(connection: Connection) -> None:
    """Makes a read fail that waits too long: a worker that is stopped within a report must not hold up the parent for good."""
    with socket.socket(fileno=os.dup(connection.fileno())) as end:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", _REPORT_LIMIT_S, 0))


@contextlib.contextmanager
def _blocked_signals() -> Iterator[None]:
    """Blocks SIGINT and SIGTERM while a process is started: it inherits the block and is never hit before it can ignore them."""
    numbers = {signal.SIGINT, signal.SIGTERM}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _thread_environment(device: Device) -> dict[str, str]:
    """Holds the libraries that take their number of threads from the environment to the worker's share of the cores."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS") if device.threads > 0 else ()
    return {name: str(device.threads) for name in names}


def _describe_exit(code: int) -> str:
    if code == -signal.SIGKILL:
        return "killed by SIGKILL (by hand, or by the system for want of memory)"
    if code < 0:
        known = {number.value: number.name for number in signal.Signals}
        return f"killed by {known.get(-code, f'signal {-code}')}"
    return f"its process ended with exit code {code}"
