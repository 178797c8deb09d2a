"""What a cluster runs on the machine of a worker: it starts the worker's process there, hands orders on, and keeps reports until they
are fetched.

The process is the same as of a run on one machine, so a picture that kills or hangs it takes nothing else along. It goes when this
object's process goes. Where this machine does not see the run's folder, finished shards are sent along with the report that they are done.

Nothing here knows Ray: it makes an actor of the class below from outside.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import platform
import queue
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any, TypeAlias

from roiline.core.errors import EngineError, ModelError, RoilineError
from roiline.core.files import FolderLock, lock_holder, sha256_of_file
from roiline.infer.benchmark_probe import ProbeSetup
from roiline.infer.devices import choose_slots
from roiline.infer.gpu_memory import check_free_memory
from roiline.infer.messages import Done, Failing, Finished, Ready, Refused, Report, Setup, Several, ShardWork, Started
from roiline.infer.request import Slot
from roiline.infer.shard_transfer import ShardFiles, take_shard
from roiline.infer.shards import SUFFIX
from roiline.infer.transport import WorkerHandle, start_process

_LEAVE_S = 5.0
_SCRATCH_PREFIX = f"roiline-cluster-{os.getuid()}-"


@dataclass(frozen=True, slots=True)
class Place:
    """Is what a worker is started with: its number and slot, what its process runs, and what its machine must have.

    `working_folder` is where relative paths begin, `version` is that of this package, `models` are model files and their SHA-256.
    `sign` is a file in the run's folder with the content `sign_text`: a machine that finds it sees the folder.
    """

    worker: int
    slot: Slot
    code: str
    working_folder: Path
    version: str
    models: Mapping[Path, str]
    sign: Path
    sign_text: str


@dataclass(frozen=True, slots=True)
class Delivered:
    """Says that a shard is done, and brings it."""

    done: Done
    files: ShardFiles


@dataclass(frozen=True, slots=True)
class Ended:
    """Says that the process is gone, and how; nothing comes after it."""

    how: str


Message: TypeAlias = Report | Delivered | Ended


class RemoteWorker:
    """Holds one worker process; its methods are called from the machine where the pool is."""

    def __init__(self, place: Place) -> None:
        """Starts the process and returns when it is there, or when it is known that it cannot be (then the only report says why)."""
        self._place = place
        self._handle: WorkerHandle | None = None
        self._scratch: Path | None = None
        self._works: dict[int, ShardWork] = {}
        self._messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._begun = threading.Event()
        # The kernel ends the process with the thread that started it, so that thread is one that waits for its end.
        threading.Thread(target=self._live, name="worker process", daemon=True).start()
        self._begun.wait()

    def clock(self) -> float:
        """Returns this machine's monotonic clock, which its processes time their work with."""
        return time.perf_counter()

    def send(self, order: Any, witness: str | None = None) -> None:
        """Hands an order on; `witness` is a picture of it that is there where the order comes from."""
        if self._handle is None:
            return
        if witness is not None and not os.path.exists(witness):
            self._messages.put(Failing(f"{platform.node()} does not see the pictures: {witness} is not there", ""))
            self._handle.kill()
            return
        self._handle.send(self._adapt(order))

    def collect(self, wait_s: float, gather_s: float) -> list[Message]:
        """Returns the reports that have come since the last call; waits for the first, up to `wait_s`.

        Where they are of images alone, it gathers for `gather_s` more: they are many, each call costs the other side, and none is urgent.
        """
        messages: list[Message] = []
        with contextlib.suppress(queue.Empty):
            messages.append(self._messages.get(timeout=wait_s))
            until = time.monotonic() + gather_s
            while True:
                urgent = not isinstance(messages[-1], (Several, Started, Finished))
                until = 0.0 if urgent else until
                rest_s = until - time.monotonic()
                messages.append(self._messages.get(timeout=rest_s) if rest_s > 0 else self._messages.get_nowait())
        return join_reports(messages)

    def end(self) -> None:
        """Ends the process at once."""
        if self._handle is not None:
            self._handle.kill()

    # -- the life of the process -------------------------------------------------------------------------------------------------

    def _live(self) -> None:
        """Is the whole life of the process; that it ended is said when nothing of it is left here, for the actor may be ended then."""
        how = f"{platform.node()}: its thread ended"
        try:
            with _find_room(self._place) as self._scratch:
                handle = self._start()
                self._handle = handle
                self._begun.set()
                how = self._relay(handle)
        except RoilineError as error:
            how = f"{platform.node()}: {error}"
            self._messages.put(Refused(type(error).__name__, how))
        except BaseException as error:  # the boundary of a thread: whoever waits for reports must hear of it
            how = f"{platform.node()}: {type(error).__name__}: {error}"
            raise
        finally:
            self._messages.put(Ended(how))
            self._begun.set()

    def _start(self) -> WorkerHandle:
        place = self._place
        here = metadata.version("roiline")
        if here != place.version:
            raise EngineError(f"has roiline {here}, the run is of {place.version}; install the same on every machine")
        for model, digest in place.models.items():
            _check_model(model, digest)
        if place.working_folder.is_dir():  # where it is not, nothing of the run can lie in it either
            os.chdir(place.working_folder)
        return start_process(place.worker, _slot_here(place), code=place.code)

    def _relay(self, handle: WorkerHandle) -> str:
        """Keeps reports until the process is gone; returns how it ended."""
        with contextlib.suppress(EOFError):
            while True:
                self._messages.put(self._complete(handle.receive()))
        how = handle.join(_LEAVE_S)
        if how is None:
            handle.kill()
            how = handle.join(_LEAVE_S)
        handle.close()
        return f"{how or f'{handle.name} cannot be ended'}, on {platform.node()}"

    def _complete(self, report: Report) -> Message:
        """Adds to a report what the pool cannot know: the machine, or the shard itself."""
        if isinstance(report, Ready):
            return replace(report, description={**report.description, "machine": platform.node()})
        if isinstance(report, Done) and self._scratch is not None:
            return Delivered(report, take_shard(self._works.pop(report.key).path))
        return report

    def _adapt(self, order: Any) -> Any:
        """Returns an order as it is right on this machine."""
        match order:
            case Setup(python_path=path):
                there = [place for place in path if os.path.exists(place)]
                return replace(order, python_path=(*there, *(place for place in sys.path if place not in there)))
            case ProbeSetup(worker=setup, folder=folder):
                return replace(order, worker=self._adapt(setup), folder=self._scratch or folder)
            case ShardWork(key=key) if self._scratch is not None:
                self._works[key] = replace(order, path=self._scratch / f"{key:08d}{SUFFIX}")
                return self._works[key]
            case _:
                return order


def join_reports(messages: Sequence[Message]) -> list[Message]:
    """Makes one message of reports of images that follow one another; of an image that was begun and has ended only the end is told."""
    joined: list[Message] = []
    for of_images, group in itertools.groupby(messages, lambda one: isinstance(one, (Several, Started, Finished))):
        if not of_images:
            joined += group
            continue
        reports = [one for message in group for one in _reports_of(message)]
        ended = {(one.key, one.position) for one in reports if isinstance(one, Finished)}
        joined.append(Several(tuple(one for one in reports if isinstance(one, Finished) or one not in ended)))
    return joined


def _reports_of(message: Message) -> tuple[Started | Finished, ...]:
    if isinstance(message, Several):
        return message.reports
    return (message,) if isinstance(message, (Started, Finished)) else ()


def _check_model(model: Path, digest: str) -> None:
    if not model.is_file():
        raise ModelError(f"{model}: no such file here; models lie at the same path on every machine")
    found = sha256_of_file(model)
    if found != digest:
        raise ModelError(f"{model}: is another file here (SHA-256 {found[:12]}, expected {digest[:12]})")


def _slot_here(place: Place) -> Slot:
    """Returns the worker's slot on this machine: its GPU is the one that the cluster has masked all others for."""
    slot = place.slot
    if slot.device.kind != "cuda":
        return slot
    mask = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    found = choose_slots(mask, None) if mask else ()
    if len(found) != 1:
        raise EngineError(f"expected one GPU for {slot.label}, the cluster gave CUDA_VISIBLE_DEVICES={mask!r}")
    check_free_memory(found, tuple(place.models))
    return replace(found[0], device=replace(found[0].device, threads=slot.device.threads))


@contextlib.contextmanager
def _find_room(place: Place) -> Iterator[Path | None]:
    """Gives a folder of this machine for shards, None where the run's own is seen; what killed ones have left is removed."""
    if _sees(place):
        yield None
        return
    parent = Path(tempfile.gettempdir())
    for left in parent.glob(f"{_SCRATCH_PREFIX}*"):
        if lock_holder(left) is None:
            shutil.rmtree(left, ignore_errors=True)  # another worker may be removing it too
    folder = parent / f"{_SCRATCH_PREFIX}{os.getpid()}-{place.worker}-{time.monotonic_ns()}"
    with FolderLock(folder):
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)  # what cannot be removed is looked for by the next worker here


def _sees(place: Place) -> bool:
    """Says whether this machine sees the run's folder and may write there."""
    try:
        return place.sign.read_text(encoding="ascii") == place.sign_text and os.access(place.sign.parent, os.W_OK)
    except (OSError, ValueError):
        return False
