"""The one tree of errors, and the exit code of each branch.

    RoilineError                1  a fault of ours, unless a branch below says otherwise
    ├── UsageError              2  a wrong call: options that exclude each other, a device that is not there
    ├── InputError              3  what was given cannot be used
    │   ├── ConfigError            a configuration: unknown key, wrong type, inconsistent values
    │   ├── WeightError            a weights file: unreadable, incomplete, of another model
    │   ├── ExportError            a model that cannot be expressed
    │   ├── ModelError             a model or engine file that is not ours, damaged, or of another version
    │   └── DataError              a dataset, a proposal file, a result file, a picture
    ├── OutputError             5  what was made could not be written: no room, no permission (an OSError too)
    └── EngineError             5  no driver, no runtime, or a device that could not go on
        └── WorkerError            a worker process that could not go on

Exit code 0 is success, 4 a run that finished while some pictures failed, 130 an interrupted, resumable run.
"""

from __future__ import annotations

EXIT_DONE = 0
EXIT_BUG = 1
EXIT_USAGE = 2
EXIT_INPUT = 3
EXIT_SOME_FAILED = 4
EXIT_ENGINE = 5
EXIT_INTERRUPTED = 130


class RoilineError(Exception):
    """Is the base of every error that this package raises on purpose; its text is shown to the user as it is."""

    exit_code: int = EXIT_BUG


class UsageError(RoilineError):
    """Says that a command or a function was called in a way that cannot be meant."""

    exit_code = EXIT_USAGE


class InputError(RoilineError):
    """Says that something that was given (a file, a dataset, a configuration) cannot be used."""

    exit_code = EXIT_INPUT


class ConfigError(InputError):
    """Says what is wrong with a configuration, by key."""


class WeightError(InputError):
    """Says what is wrong with a weights file, by blob."""


class ExportError(InputError):
    """Says why a model cannot be expressed as an ONNX file."""


class ModelError(InputError):
    """Says why a model or engine file cannot be used."""


class DataError(InputError):
    """Says what is wrong with a dataset, a proposal file, a result file or a picture."""


class OutputError(RoilineError, OSError):
    """Says which file could not be written and why; is an `OSError` too, with its `errno`, for those who expect one of a write."""

    exit_code = EXIT_ENGINE


class EngineError(RoilineError):
    """Says why a model cannot be run on a device."""

    exit_code = EXIT_ENGINE


class WorkerError(EngineError):
    """Says why a worker process could not go on."""
