"""A dataset run under attack: workers and the whole job killed and stopped, shards damaged, the disk filled, poison among the pictures.

Workers import this module too, by the name that `RunRequest.predictor` gives. What happens follows from a seed and from the shards that
are there, never from the clock: every blow falls after a few more shards have reached the disk.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from run_support import _Wrapped

from roiline.infer.model import open_predictor

WORKERS = 3
KILLER, HANGER = 25, 61
"""Ids of two poison pictures (`write_pictures` gives 7, 10, 13, ...): one kills its worker, over the other it hangs."""
TIMEOUT_S = 2.0
PACE_VARIABLE = "ROILINE_CHAOS_IMAGE_S"
LOG_VARIABLE = "ROILINE_CHAOS_LOG"
FULL_VARIABLE = "ROILINE_CHAOS_FULL"

CORES_VARIABLE = "ROILINE_CHAOS_CORES"
"""How many cores the job believes to have: with few its workers read in their main lane, with many they have readers beside it."""

JOB = f"""
import logging, os, sys
from pathlib import Path
os.sched_getaffinity = lambda _process: set(range(int(os.environ["{CORES_VARIABLE}"])))
from run_support import make_request
from roiline.core.errors import RoilineError
from roiline.infer.run import run_dataset
logging.basicConfig(level=logging.INFO, format="%(message)s")
request = make_request(
    Path(sys.argv[1]), Path(sys.argv[2]), workers={WORKERS}, predictor="chaos_support:open_poisoned", image_timeout_s={TIMEOUT_S}
)
try:
    sys.exit(run_dataset(request, progress=False).exit_code)
except RoilineError as error:
    logging.error("%s", error)
    sys.exit(error.exit_code)
"""


class _Poisoned(_Wrapped):
    """Dies over one picture, hangs over another (in C, holding the interpreter's lock), and notes every picture that it answers."""

    def harm(self, ids: tuple[int, ...]) -> None:
        if KILLER in ids:
            os.kill(os.getpid(), signal.SIGKILL)
        if HANGER in ids:
            ctypes.PyDLL(None).sleep(3600)
        time.sleep(float(os.environ[PACE_VARIABLE]))
        with open(os.environ[LOG_VARIABLE], "ab", buffering=0) as log:
            log.write("".join(f"{image_id}\n" for image_id in ids).encode())


def open_poisoned(model: Path, *args: Any, **options: Any) -> Any:
    if FULL_VARIABLE in os.environ:  # where no small disk can be had: no file may grow beyond a few bytes
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        os.environ[LOG_VARIABLE] = os.devnull
    return _Poisoned(open_predictor(model, *args, **options), model)


def start_job(root: Path, out: Path, log: Path, **variables: str) -> subprocess.Popen[bytes]:
    """Starts the run in a process group of its own; what it says goes to the end of `log`.text."""
    ours = {"PYTHONPATH": str(Path(__file__).parent), LOG_VARIABLE: str(log), CORES_VARIABLE: "1"}
    environment = {**os.environ, **ours, **variables}
    with log.with_suffix(".text").open("ab") as text:
        return subprocess.Popen(
            [sys.executable, "-c", JOB, str(root), str(out)], env=environment, start_new_session=True, stderr=text
        )


def children_of(pid: int) -> list[int]:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def is_alive(pid: int) -> bool:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    return False


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[bool]:
    """Mounts a small disk at `folder` where that is allowed, and says whether it did."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
    try:
        mounted = os.geteuid() == 0 and subprocess.run(mount, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        mounted = False
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(folder)], check=True)


@dataclass
class Attack:
    """Runs the job over and over until it ends by itself, and hits it with the blows in `blows`, in their order."""

    root: Path
    out: Path
    log: Path
    random: random.Random
    blows: list[str]
    small: bool
    pace: dict[str, str]
    workers: set[int] = field(default_factory=set)
    starts: int = 0
    kept: dict[str, tuple[int, int]] = field(default_factory=dict)
    damaged: int = 0
    deaths: int = 0
    report: list[str] = field(default_factory=list)

    def run(self) -> int:
        """Returns the exit code of the last start."""
        while True:
            full = bool(self.blows) and self.blows[0] == "fill the disk"
            if full:
                self.blows.pop(0)
                code = self._run_full()
                assert code == 5, f"exit code {code} on a full disk"
            else:
                code = self._run_once()
                if code != -signal.SIGKILL:
                    assert not self.blows, f"the run ended before {self.blows}"
                    return code
            self._keep()
            self._damage()

    def shards(self) -> list[Path]:
        return sorted(self.out.glob("shards/*.shard"))

    def _run_once(self) -> int:
        self.starts += 1
        cores = 3 * WORKERS if self.starts % 2 else WORKERS
        self.report.append(f"a start with {cores} cores")
        job = start_job(self.root, self.out, self.log, **self.pace, **{CORES_VARIABLE: str(cores)})
        try:
            while self.blows and self.blows[0] != "fill the disk":
                self._wait_for_shards(job, self.random.randint(2, 3))
                blow = self.blows.pop(0)
                self.report.append(f"{len(self.shards())} shards: {blow}")
                if blow == "kill the job":
                    self.deaths += WORKERS
                    job.kill()
                    break
                self._hit_worker(job, blow)
            else:
                if self.blows:  # the next start is on a full disk
                    self._wait_for_shards(job, 1)
                    self.deaths += WORKERS
                    job.kill()
            self.workers |= set(children_of(job.pid))
            return job.wait(timeout=120)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(job.pid, signal.SIGKILL)
            job.wait()

    def _wait_for_shards(self, job: subprocess.Popen[bytes], more: int) -> None:
        limit = time.monotonic() + 120
        wanted = len(self.shards()) + more
        while len(self.shards()) < wanted:
            self.workers |= set(children_of(job.pid))
            assert job.poll() is None, f"ended with {job.returncode} before {self.blows}; {self.report}"
            assert time.monotonic() < limit, f"no progress; {self.report}"
            time.sleep(0.005)

    def _hit_worker(self, job: subprocess.Popen[bytes], blow: str) -> None:
        victims = children_of(job.pid)
        if not victims:
            return
        victim = self.random.choice(victims)
        with contextlib.suppress(ProcessLookupError):
            if blow == "kill a worker":
                os.kill(victim, signal.SIGKILL)
            else:
                os.kill(victim, signal.SIGSTOP)
                time.sleep(self.random.uniform(0.2, 0.5) * TIMEOUT_S)
                os.kill(victim, signal.SIGCONT)

    def _run_full(self) -> int:
        """Starts the job where only a few shards find room, or none at all where no small disk can be had."""
        self.report.append(f"{len(self.shards())} shards: the disk is full")
        self.deaths += 6 * WORKERS  # what waits to be written there
        ballast = self.out / "ballast"
        if self.small:
            with ballast.open("wb", buffering=0) as stream:
                free = os.statvfs(self.out).f_bavail * os.statvfs(self.out).f_frsize
                stream.write(bytes(max(0, free - 6 * 4096)))
        job = start_job(self.root, self.out, self.log, **self.pace, **({} if self.small else {FULL_VARIABLE: "1"}))
        code = job.wait(timeout=120)
        ballast.unlink(missing_ok=True)
        return code

    def _keep(self) -> None:
        for path in self.shards():
            state = path.stat()
            now = (state.st_ino, state.st_mtime_ns)
            assert self.kept.setdefault(path.name, now) == now, f"{path.name} was done again"

    def _damage(self) -> None:
        """Cuts one shard, changes a byte of another, and puts a third in a fourth's place."""
        cut, changed, foreign = self.random.sample(self.shards(), 3)
        cut.write_bytes(cut.read_bytes()[:-30])
        content = bytearray(changed.read_bytes())
        content[self.random.randrange(len(content))] ^= 0x20
        changed.write_bytes(content)
        foreign.write_bytes(self.shards()[0 if foreign != self.shards()[0] else 1].read_bytes())
        for path in (cut, changed, foreign):
            self.kept.pop(path.name, None)
            self.damaged += 1


def answered(log: Path) -> list[int]:
    """Returns the ids of the pictures that were answered, as often as they were."""
    return [int(line) for line in log.read_text().split()]


def failed_ids(out: Path) -> list[int]:
    rows = json.loads((out / "failed.json").read_text())["failed"]
    assert all(row["reason"].startswith("set aside: its worker died 2 times over it") for row in rows), rows
    return [row["image_id"] for row in rows]
