"""Measures how much memory the joining of shards to result files takes: a fresh process a format, over shards made for it.

    python benchmarks/merge_memory.py [--images 100000] [--rows 1000] [--task NAME] [--folder DIR]

Shards of random proposals (`--rows` an image) and of random detections (`--detections` an image, 80 classes) are written by the code
that runs write them with; then every format is written by a process of its own, whose peak of resident memory is compared with
what it has after its imports. `--images 20000` is quick. The folder needs about 6 GB for the defaults, and is emptied at the end.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from roiline.core.structures import Detections, Proposals
from roiline.infer.manifest import DatasetRecord, Manifest, ResultClass, RunSettings
from roiline.infer.merge import MergedResults
from roiline.infer.outputs import write_results
from roiline.infer.request import FORMATS, RunOverrides
from roiline.infer.shards import SUFFIX, ShardFile, shard_path, write_shard

_SHARD_IMAGES = 100
_CLASSES = 80


def main() -> None:
    """Runs the measurement, or (with `--write`) one format of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=100_000)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--detections", type=int, default=100)
    parser.add_argument("--task", choices=["proposals", "detections"], help="only this one")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--write", nargs=3, metavar=("SHARDS", "TASK", "FORMAT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.write:
        _write_one(*options.write, images=options.images)
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        _measure(Path(name), options)


def _measure(folder: Path, options: argparse.Namespace) -> None:
    counts = {"proposals": options.rows, "detections": options.detections}
    for task, rows in counts.items() if options.task is None else [(options.task, counts[options.task])]:
        shards = folder / task
        shards.mkdir()
        began = time.perf_counter()
        _write_shards(shards, task, options.images, rows)
        size = sum(path.stat().st_size for path in shards.iterdir())
        seconds = time.perf_counter() - began
        print(f"{task}: {options.images} images x {rows} rows, shards of {size / 1e6:.0f} MB in {seconds:.0f} s")
        for form in FORMATS[task]:
            command = [sys.executable, __file__, "--images", str(options.images), "--write", str(shards), task, form]
            report = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            print(
                f"  {form:<10} {report['seconds']:6.1f} s, {report['result_mb']:7.0f} MB written, "
                f"memory: {report['before_mb']:.0f} MB after "
                f"imports, peak {report['peak_mb']:.0f} MB, that is {report['peak_mb'] - report['before_mb']:.0f} MB more",
                flush=True,
            )
        shutil.rmtree(shards)


def _write_shards(folder: Path, task: str, images: int, rows: int) -> None:
    random = np.random.default_rng(1)
    boxes = random.uniform(0, 600, (rows + _SHARD_IMAGES, 4)).astype(np.float32)
    scores = np.sort(random.uniform(0, 1, rows + _SHARD_IMAGES).astype(np.float32))[::-1]
    classes = random.integers(1, _CLASSES + 1, rows + _SHARD_IMAGES)
    for index, start in enumerate(range(0, images, _SHARD_IMAGES)):
        results = []
        for place, position in enumerate(range(start, min(images, start + _SHARD_IMAGES))):
            part = slice(place, place + rows)
            image_id = 10 * position
            if task == "proposals":
                results.append((position, Proposals(image_id, boxes[part], scores[part])))
            else:
                results.append((position, Detections(image_id, boxes[part], scores[part], classes[part])))
        files = {position: f"pictures/{position:012d}.jpg" for position, _ in results}
        path = shard_path(folder, index)
        write_shard(path, identity="0" * 64, index=index, task=task, results=results, files=files)


def _write_one(shards: str, task: str, form: str, *, images: int) -> None:
    if form == "parquet":
        import pyarrow.parquet  # noqa: F401 - counted with the imports
    before = _read_mb("VmRSS")
    began = time.perf_counter()
    files = [ShardFile(path) for path in sorted(Path(shards).glob(f"*{SUFFIX}"))]
    manifest = _make_manifest(task, images)
    with tempfile.TemporaryDirectory(dir=Path(shards).parent) as out:
        written = write_results(Path(out), manifest, MergedResults([(0, files)], images=images), (form,))
        size = sum(path.stat().st_size for path in written)
    report = {
        "before_mb": before,
        "peak_mb": _read_mb("VmHWM"),
        "seconds": time.perf_counter() - began,
        "result_mb": size / 1e6,
    }
    print(json.dumps(report))


def _read_mb(field: str) -> float:
    """Returns a number of /proc/self/status; unlike `getrusage` it knows nothing of the process that started this one."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{field}:"))


def _make_manifest(task: str, images: int) -> Manifest:
    settings = RunSettings(
        "0" * 64, "fake", "fp32", task, "0" * 64, (0, images), "apply", "exact", None, RunOverrides()
    )
    classes = tuple(ResultClass(k, f"class {k}") for k in range(1, _CLASSES + 1)) if task == "detections" else ()
    return Manifest(
        1,
        settings.identity,
        settings,
        DatasetRecord("synthetic", "coco", "synthetic.json", images),
        classes,
        tuple(range(len(classes) + 1)),
        plus_one=True,
        config_yaml="",
        shard_sizes=(),
        named_range=None,
        started_at=0.0,
        finished=False,
    )


if __name__ == "__main__":
    main()
