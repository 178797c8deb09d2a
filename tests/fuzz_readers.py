"""Gives every reader bent and invented files: only our own errors may come out, in time, in bounded memory.

    python tests/fuzz_readers.py --count 100000 --markdown docs/fuzzing.md

Each reader has a process of its own; a finding prints the reader, the seed and the input, which `--replay` reads again.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import datetime
import platform
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import fuzz_targets

from roiline import __version__
from roiline.core.errors import RoilineError

TIME_LIMIT_S = 5.0
MEMORY_LIMIT = 1 << 30


class HangError(BaseException):
    """Says that a reader took longer than its time; no reader may catch it."""


def _ring(_signal: int, _frame: FrameType | None) -> None:
    raise HangError(f"took longer than {TIME_LIMIT_S} s")


def fuzz(name: str, count: int, seed: int, folder: Path) -> tuple[Counter[str], list[str]]:
    """Reads `count` inputs; returns how many were read and refused, and the findings."""
    target = fuzz_targets.build_targets(folder)[name]
    path, read = target.prepare(folder)
    chance = random.Random(f"{name} {seed}")
    counts: Counter[str] = Counter()
    findings: list[str] = []
    signal.signal(signal.SIGALRM, _ring)
    for number in range(count):
        data = target.generate(chance)
        path.write_bytes(data)
        signal.setitimer(signal.ITIMER_REAL, TIME_LIMIT_S)
        try:
            read(path)
            counts["read"] += 1
        except RoilineError as error:
            counts["refused"] += 1
            counts["longest message"] = max(counts["longest message"], len(str(error)))
        except BaseException as error:
            signal.setitimer(signal.ITIMER_REAL, 0)
            if isinstance(error, KeyboardInterrupt):
                raise
            counts["findings"] += 1
            if len(findings) < 10:
                shown = base64.b64encode(data).decode()
                findings.append(f"{name}, seed {seed}, input {number}: {shown}\n{traceback.format_exc()}")
        signal.setitimer(signal.ITIMER_REAL, 0)
    return counts, findings


def bound_memory() -> int:
    """Bounds this process to a gigabyte more than it has; returns what it has had at most, in bytes."""
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY_LIMIT, resource.RLIM_INFINITY))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _run_one(name: str, count: int, seed: int, replay: str | None) -> int:
    warnings.simplefilter("error")
    with tempfile.TemporaryDirectory(dir=_quick_folder()) as text:
        folder = Path(text)
        if replay is not None:
            path, read = fuzz_targets.build_targets(folder)[name].prepare(folder)
            path.write_bytes(base64.b64decode(replay))
            print(read(path))
            return 0
        before = bound_memory()
        start = time.perf_counter()
        counts, findings = fuzz(name, count, seed, folder)
        took = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    print(*findings, sep="\n", file=sys.stderr)
    print(
        f"| {name} | {count:,} | {counts['read']:,} | {counts['refused']:,} | {counts['findings']} "
        f"| {count / took:,.0f} | {peak / 2**20:.0f} |"
    )
    return 1 if findings else 0


def _quick_folder() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def main() -> int:
    """Fuzzes all readers, or one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100_000, help="inputs a reader")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--reader", help="only this one")
    parser.add_argument("--replay", metavar="BASE64", help="read one input again, with --reader")
    parser.add_argument("--markdown", type=Path, help="write the table here too")
    options: Any = parser.parse_args()
    if options.reader:
        return _run_one(options.reader, options.count, options.seed, options.replay)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
        names = list(fuzz_targets.build_targets(Path(folder)))
    head = [
        "| reader | inputs | read | refused | findings | inputs/s | memory, MB more |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    print(*head, sep="\n", flush=True)
    rows, worst = [], 0
    for name in names:
        command = [
            sys.executable,
            __file__,
            "--reader",
            name,
            "--count",
            str(options.count),
            "--seed",
            str(options.seed),
        ]
        answer = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        died = f"| {name} | {options.count:,} | process ended with {answer.returncode} |"
        row = answer.stdout.strip().splitlines()[-1] if answer.stdout.strip() else died
        rows.append(row)
        worst = max(worst, abs(answer.returncode))
        print(row, flush=True)
    if options.markdown is not None:
        options.markdown.write_text(_page(options, [*head, *rows]))
    return worst


def _page(options: Any, table: list[str]) -> str:
    command = f"python tests/fuzz_readers.py --count {options.count} --seed {options.seed}"
    return f"""# Files that nobody meant to write

Every reader of a file that comes from elsewhere is given bent files (bits, lengths, cuts, odd values in the right places) and files
invented from the format's own pieces, of at most 4 KB each. It may answer or refuse with an error of roiline; anything else (another
exception, more than {TIME_LIMIT_S:.0f} s, more than {MEMORY_LIMIT >> 30} GB, the end of the process) is a finding.
A short run is part of the tests. The table is what `{command}` printed, roiline {__version__}, Python {platform.python_version()},
{datetime.date.today().isoformat()}.

{chr(10).join(table)}
"""


if __name__ == "__main__":
    sys.exit(main())
