"""That a long run stays flat: images a second, resident memory and open files of the parent and of the workers, over 100,000 images.

The pictures are tiny and few, under many names (hard links), the engine costs nothing, shards and result files are written as always.
Memory and files are sampled while shards are worked on; the slopes are of straight lines fitted to the second half, when all buffers
have been filled and all tables made.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path

import cv2
import numpy as np
from overhead import make_rules, write_model

from roiline.infer.devices import cpu_slots
from roiline.infer.request import DataSource, RunRequest
from roiline.infer.run import run_dataset

DIFFERENT = 64
LINKS_A_FOLDER = 10_000
SIDE = 48
SMALL_RULES = make_rules(SIDE, 2 * SIDE)


def write_dataset(root: Path, images: int) -> Path:
    """Writes a few pictures, links them under many names, and returns the COCO json that lists them."""
    root.mkdir(parents=True)
    random = np.random.default_rng(3)
    rows = []
    for number in range(images):
        source = root / f"{number % DIFFERENT}.jpg"
        if number < DIFFERENT:
            cv2.imwrite(str(source), random.integers(0, 256, (SIDE, SIDE + 16 * (number % 3), 3), np.uint8))
        name = f"{number // LINKS_A_FOLDER}/{number:07d}.jpg"
        (root / name).parent.mkdir(exist_ok=True)
        os.link(source, root / name)
        width = SIDE + 16 * (number % DIFFERENT % 3)
        rows.append({"id": number, "file_name": name, "height": SIDE, "width": width})
    categories = [{"id": i, "name": f"class_{i}"} for i in range(1, 81)]
    path = root / "data.json"
    path.write_text(json.dumps({"images": rows, "categories": categories, "annotations": []}))
    return path


class Sampler(threading.Thread):
    """Notes resident memory (MB) and open files of this process and its children every so often."""

    def __init__(self, shards: Path, every_s: float) -> None:
        super().__init__(daemon=True)
        self._shards = shards
        self._every_s = every_s
        self._over = threading.Event()
        self.rows: dict[str, list[tuple[float, float, int]]] = defaultdict(list)

    def run(self) -> None:
        """Samples until told to stop."""
        while not self._over.wait(self._every_s):
            if not self._shards.is_dir():
                continue
            samples = {f"worker {pid}": _sample(pid) for pid in _children()}
            alive = {name: sample for name, sample in samples.items() if sample is not None and sample[0] > 0}
            parent = _sample(os.getpid())
            if alive and parent is not None:  # what comes after the workers have gone is the merge
                for name, sample in {"parent": parent, **alive}.items():
                    self.rows[name].append((time.monotonic(), *sample))

    def stop(self) -> None:
        """Ends the sampling."""
        self._over.set()
        self.join()


def _children() -> list[int]:
    return [
        int(child) for task in Path("/proc/self/task").iterdir() for child in (task / "children").read_text().split()
    ]


def _sample(pid: int) -> tuple[float, int] | None:
    """Returns resident megabytes and open files, None for a process that has gone."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6, len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return None


def describe(name: str, rows: list[tuple[float, float, int]], images_per_s: float) -> str:
    """Returns one process's figures as a line; the slope is in bytes an image of the whole run."""
    table = np.array(rows)
    late = table[len(table) // 2 :]
    slope = np.polyfit(late[:, 0], late[:, 1], 1)[0] if len(late) > 2 else 0.0
    return (
        f"{name}: resident {table[0, 1]:.1f} MB first, {table[:, 1].max():.1f} MB at most, {table[-1, 1]:.1f} MB last, "
        f"slope {slope * 1e6 / images_per_s:+.1f} bytes an image; open files {table[:, 2].min():.0f} to {table[:, 2].max():.0f}"
    )


def main() -> None:
    """Runs once and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=100_000)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        began = time.perf_counter()
        data = write_dataset(root / "pictures", options.images)
        print(f"{options.images} pictures linked in {time.perf_counter() - began:.1f} s", flush=True)
        request = RunRequest(
            model=write_model(root / "model.onnx", SMALL_RULES),
            task="detections",
            data=(DataSource(str(data), images=data.parent),),
            out=root / "out",
            slots=cpu_slots(options.workers),
            engine="fake",
            batch_size=8,
            formats=("coco",),
        )
        sampler = Sampler(request.out / "shards", every_s=0.25)
        sampler.start()
        summary = run_dataset(request)
        sampler.stop()
        timing = json.loads((request.out / "timing.json").read_text())
        assert (summary.exit_code, summary.images) == (0, options.images)
        shards = len(list((request.out / "shards").iterdir()))
        phases = ", ".join(f"{phase} {seconds:.1f}" for phase, seconds in timing["phases"].items())
        print(f"{timing['images_per_s']:.0f} images/s over {shards} shards; phases in seconds: {phases}")
        for process, rows in sampler.rows.items():
            print(describe(process, rows, timing["images_per_s"]))


if __name__ == "__main__":
    main()
