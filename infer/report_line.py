"""The worker's end of what is reported to the parent, and how a worker leaves when something of it fails."""

from __future__ import annotations

import os
import pickle
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection

from roiline.core.errors import RoilineError
from roiline.infer.messages import Failing, Finished, Report, Several, Started

EXIT_ORPHANED = 70
EXIT_FAILING = 71

HOLD_S = 0.1
"""How long what is not urgent may wait for company."""


class PipeLine:
    """Sends reports to the parent from any thread, one after another; those of images several at a time where they come fast."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._held: list[Started | Finished] = []
        self._last_sent = 0.0

    def send(self, report: Report) -> None:
        """Sends one report, after what was held back; when nobody listens any more, the process leaves."""
        with self._lock:
            self._send_held()
            self._send(report)

    def announce(self, reports: Sequence[Started]) -> None:
        """Sends, in one message with what was held back, that images are touched from now on."""
        with self._lock:
            self._held += reports
            self._send_held()

    def hold(self, report: Finished) -> None:
        """Keeps a report for company, unless the last message was long ago: whoever holds sees to it that `flush` is called."""
        with self._lock:
            self._held.append(report)
            if time.monotonic() - self._last_sent >= HOLD_S:
                self._send_held()

    def flush(self) -> None:
        """Sends what was held back."""
        with self._lock:
            self._send_held()

    def _send_held(self) -> None:
        if self._held:
            held, self._held = self._held, []
            self._send(held[0] if len(held) == 1 else Several(tuple(held)))

    def _send(self, report: Report) -> None:
        content = pickle.dumps(report, pickle.HIGHEST_PROTOCOL)  # the connection's own `send` pickles much more slowly
        try:
            self._connection.send_bytes(content)
        except OSError:
            os._exit(EXIT_ORPHANED)
        self._last_sent = time.monotonic()

    def fail(self, error: BaseException) -> None:
        """Sends the last word of a worker that cannot go on, and leaves at once, whatever other threads do."""
        reason = str(error) if isinstance(error, RoilineError) else f"{type(error).__name__}: {error}"
        self.send(Failing(reason, "".join(traceback.format_exception(error))))
        os._exit(EXIT_FAILING)

    def guard(self, name: str, target: Callable[[], None]) -> threading.Thread:
        """Starts a thread in which any error ends the process with its reason."""

        def run() -> None:
            try:
                target()
            except (
                BaseException
            ) as error:  # the boundary of a thread: an error left here would vanish and the run would hang
                self.fail(error)

        thread = threading.Thread(target=run, name=name, daemon=True)
        thread.start()
        return thread
