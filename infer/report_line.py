"""The worker's end of what is reported to the parent, and how a worker leaves when something of it fails."""

from __future__ import annotations

import os
import threading
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection

from roiline.core.errors import RoilineError
from roiline.infer.messages import Failing, Report

EXIT_ORPHANED = 70
EXIT_FAILING = 71


class PipeLine:
    """Sends reports to the parent from any thread, whole and one after another."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()

    def send(self, report: Report) -> None:
        """Sends one report; when nobody listens any more, the process leaves."""
        try:
            with self._lock:
                self._connection.send(report)
        except OSError:
            os._exit(EXIT_ORPHANED)

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
