"""Makes recorded kernel calls again under a sanitizer and compares every byte: `python replay_kernels.py CALLS SANITIZER THREADS`.

It runs in a process of its own that was started with the sanitizer's run-time library; that library ends the process at the first fault.
"""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

from kernel_calls import KERNELS, KernelCall

from roiline.ops.kernel_host import run_on_host


def main(path: str, sanitizer: str, threads: int) -> int:
    """Returns how many calls gave something else than was recorded."""
    calls: list[KernelCall] = pickle.loads(Path(path).read_bytes())
    different = 0
    for call in calls:
        got = run_on_host(KERNELS[call.kernel], call.arrays, call.attributes, threads=threads, sanitizer=sanitizer)
        if [array.tobytes() for array in got] != [array.tobytes() for array in call.outputs]:
            print(f"{call.kernel} {call.attributes} differs", file=sys.stderr)
            different += 1
    print(f"{len(calls)} calls")
    return different


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
