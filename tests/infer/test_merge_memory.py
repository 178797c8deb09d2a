"""Joining shards takes memory for where rows lie, not for the rows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from roiline.core.structures import Detections, Proposals, Result
from roiline.infer.shards import shard_path, write_shard

IMAGES, ROWS, SHARD = 3000, 1000, 100

MERGE = """
import sys
from pathlib import Path
from roiline.infer.detection_table import DetectionTable
from roiline.infer.formats import write_coco_boxes, write_proposal_pickle
from roiline.infer.merge import MergedResults
from roiline.infer.proposal_formats import write_detectron2_proposals, write_mmdet_proposals
from roiline.infer.shards import ShardFile
def read_mb(field):
    return next(int(line.split()[1]) / 1024 for line in open("/proc/self/status") if line.startswith(field))
folder, task, images = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
before = read_mb("VmRSS")
results = MergedResults([(0, [ShardFile(path) for path in sorted(folder.glob("*.shard"))])], images=images)
if task == "proposals":
    write_proposal_pickle(folder / "a.pkl", results, config_yaml="")
    write_detectron2_proposals(folder / "b.pkl", results)
    write_mmdet_proposals(folder / "c.pkl", results)
else:
    with DetectionTable(results, num_classes=4, order=[0, 1, 2, 3], folder=folder) as table:
        for label in (1, 2, 3):
            assert sum(map(len, table.box_cells(label))) > 0
print(read_mb("VmHWM") - before)
"""


def write_shards(folder: Path, task: Any) -> int:
    """Writes the shards of a run, 100 images each; returns their bytes."""
    random = np.random.default_rng(1)
    boxes, scores = random.random((ROWS, 4), np.float32), random.random(ROWS, np.float32)
    classes = random.integers(1, 4, ROWS)
    for index in range(IMAGES // SHARD):
        results: list[tuple[int, Result]] = []
        for position in range(index * SHARD, (index + 1) * SHARD):
            rows = Proposals(position, boxes, scores)
            results.append((position, rows if task == "proposals" else Detections(position, boxes, scores, classes)))
        files = {position: f"p/{position}.jpg" for position, _ in results}
        write_shard(shard_path(folder, index), identity="i", index=index, task=task, results=results, files=files)
    return sum(path.stat().st_size for path in folder.iterdir())


@pytest.mark.parametrize("task", ["proposals", "detections"])
def test_memory_does_not_grow_with_the_rows(tmp_path: Path, task: str) -> None:
    written = write_shards(tmp_path, task) / 1e6
    assert written > 55
    command = [sys.executable, "-c", MERGE, str(tmp_path), task, str(IMAGES)]
    grown = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert grown < 45
