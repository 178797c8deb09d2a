"""What all commands share: their log, and errors shown as one message and an exit code."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from roiline.core.errors import EXIT_BUG, EXIT_DONE, EXIT_ENGINE, EXIT_INPUT, EXIT_INTERRUPTED, RoilineError, UsageError

LOG = logging.getLogger("roiline")
PATH = click.Path(
    path_type=Path, readable=False
)  # what opens a file says why it cannot, with the exit code of its kind
CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 110}
MESSAGE_LIMIT = 16_000


class LoggedCommand(click.Command):
    """Is a command with the options that all have, and with errors shown as one message and an exit code."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params += [
            click.Option(["-v", "--verbose"], is_flag=True, help="Say more."),
            click.Option(["-q", "--quiet"], is_flag=True, help="Say only warnings and errors."),
            click.Option(["--log-file"], type=PATH, metavar="FILE", help="Write the log to FILE too."),
            click.Option(["--debug"], is_flag=True, help="Show tracebacks, and say more."),
        ]

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command; ends the process with the exit code of its error, if there is one."""
        options = {name: ctx.params.pop(name) for name in ("verbose", "quiet", "log_file")}
        debug = ctx.params.pop("debug")
        options["verbose"] = options["verbose"] or debug
        try:
            with _interrupted_by_sigterm(), _logging(ctx.params, **options):
                return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit):
            raise
        except BrokenPipeError:
            sys.stdout = None  # whoever read our output has gone; nothing is left to say
            ctx.exit(EXIT_DONE)
        except (KeyboardInterrupt, Exception) as error:
            message, code = _explain(error)
            _show(f"{_command_path(ctx)}: {message}", debug=debug)
            ctx.exit(code)


def _command_path(ctx: click.Context) -> str:
    """Returns the command as people write it, "roiline export detectron", whatever the program file is called."""
    if ctx.parent is None:
        return "roiline"
    return f"{_command_path(ctx.parent)} {ctx.command.name}"


def _explain(error: BaseException) -> tuple[str, int]:
    """Returns what to say of an error that ended a command, and the exit code."""
    if isinstance(error, RoilineError):
        return str(error), error.exit_code
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", EXIT_INTERRUPTED
    if isinstance(error, OSError) and error.strerror:
        if error.filename is None:
            _give_up_full_output()
            return f"could not go on: {error.strerror}", EXIT_ENGINE
        return f"{error.filename}: {error.strerror}", EXIT_INPUT
    return (
        f"a fault in roiline itself: {type(error).__name__}: {error}\n"
        "  (run again with --debug and report what it shows)",
        EXIT_BUG,
    )


def _give_up_full_output() -> None:
    """Drops what standard output could not take; else Python would try again at its end, and end with a code of its own."""
    try:
        sys.stdout.flush()
    except OSError:
        sys.stdout = None


def _show(message: str, *, debug: bool) -> None:
    if debug:
        traceback.print_exc()
    if len(message) > MESSAGE_LIMIT:
        message = f"{message[:MESSAGE_LIMIT]}\n  .. and {len(message) - MESSAGE_LIMIT} characters more"
    with contextlib.suppress(OSError):  # a closed or full stderr; the exit code still says it
        click.echo(message, err=True)


@contextlib.contextmanager
def _interrupted_by_sigterm() -> Iterator[None]:
    """Makes SIGTERM what Ctrl-C is, so that it leaves no temporary files; only the main thread may, elsewhere it stays as it is."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _LogFile(logging.FileHandler):
    """Is a log file that may run full: that is said once, and is no reason to end the work."""

    _full = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802, ARG002 - the names are logging's
        """Says why the first record could not be written."""
        if not self._full:
            self._full = True
            _show(f"--log-file {self.baseFilename}: cannot be written ({sys.exc_info()[1]})", debug=False)

    def close(self) -> None:
        """Closes the file; what it could not take is dropped, as was said."""
        with contextlib.suppress(OSError):
            super().close()


@contextlib.contextmanager
def _logging(given: Mapping[str, Any], *, verbose: bool, quiet: bool, log_file: Path | None) -> Iterator[None]:
    """Sends the log where the options say; `given` are the command's own arguments, none of which may be the log file."""
    LOG.setLevel(logging.DEBUG if verbose else logging.WARNING if quiet else logging.INFO)
    handlers: list[logging.Handler] = [logging.StreamHandler(sys.stderr)]
    if log_file is not None:
        _check_log_file(log_file, given)
        try:
            handlers.append(_LogFile(log_file, encoding="utf-8"))
        except OSError as error:
            raise UsageError(f"--log-file {log_file}: cannot be written ({error.strerror})") from error
        handlers[1].setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    for handler in handlers:
        LOG.addHandler(handler)
    try:
        yield
    finally:
        for handler in handlers:
            LOG.removeHandler(handler)
            handler.close()


def _check_log_file(log_file: Path, given: Mapping[str, Any]) -> None:
    values = [one for value in given.values() for one in (value if isinstance(value, tuple) else (value,))]
    for value in values:
        given_file = isinstance(value, str | Path) and os.path.isfile(value) and os.path.isfile(log_file)
        if given_file and os.path.samefile(log_file, value):
            raise UsageError(f"--log-file {log_file}: is a file that this command was given; name another")
