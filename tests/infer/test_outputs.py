from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from run_support import make_request, result_bytes, write_model, write_pictures

from roiline.core.errors import DataError, UsageError
from roiline.core.files import FolderLock
from roiline.infer.outputs import choose_formats, merge_outputs
from roiline.infer.run import run_dataset
from roiline.infer.status import describe_status, read_status

IMAGES = 11
RANGES = ((0, 4), (4, 8), (8, 11))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole run, and one for each range, with a broken picture in the second."""
    folder = tmp_path_factory.mktemp("ranges")
    write_model(folder / "model.onnx")
    write_pictures(folder / "pictures", IMAGES)
    (folder / "pictures" / "000022.png").write_bytes(b"not a picture")
    run_dataset(make_request(folder, folder / "whole"), progress=False)
    for start, end in RANGES:
        run_dataset(
            make_request(folder, folder / f"{start}", id_range=(start, end), batch_size=start + 1), progress=False
        )
    return folder


def parts(root: Path) -> list[Path]:
    return [root / f"{start}" for start, _ in RANGES]


def test_runs_over_ranges_join_to_the_files_of_one_run(root: Path, tmp_path: Path) -> None:
    first, second, third = parts(root)
    assert (second / "detection_range_4_8.pkl").exists()
    summary = merge_outputs([third, first, second], tmp_path, formats=("coco", "detectron"))
    assert (summary.exit_code, summary.images, summary.failed) == (4, IMAGES, 1)
    assert result_bytes(tmp_path) == result_bytes(root / "whole")
    assert json.loads((tmp_path / "failed.json").read_text())["failed"][0]["image_id"] == 22
    again = merge_outputs(parts(root), tmp_path, formats=("coco", "detectron"))
    assert again == summary
    (status,) = read_status(tmp_path)
    assert (status.images, status.done, status.left, status.failed, status.finished) == (IMAGES, IMAGES, 0, 1, True)


def test_gaps_and_overlaps_are_listed(root: Path, tmp_path: Path) -> None:
    first, second, third = parts(root)
    with pytest.raises(UsageError, match=r"images \[4, 8\) are in none of the runs"):
        merge_outputs([first, third], tmp_path)
    with pytest.raises(UsageError, match=r"images \[8, 11\) are in none of the runs"):
        merge_outputs([first, second], tmp_path)
    with pytest.raises(UsageError, match=r"images \[4, 8\) of .* are in an earlier run too"):
        merge_outputs([root / "whole", second], tmp_path)
    assert not list(tmp_path.iterdir())


def test_runs_with_other_settings_are_not_joined(root: Path, tmp_path: Path) -> None:
    run_dataset(make_request(root, tmp_path / "other", id_range=(8, 11), exif="ignore"), progress=False)
    with pytest.raises(UsageError, match=r"exif: apply in .*, ignore in"):
        merge_outputs([*parts(root)[:2], tmp_path / "other"], tmp_path / "out")


def test_damaged_unfinished_and_foreign_folders_are_refused(root: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not an OUT folder"):
        merge_outputs([tmp_path], tmp_path / "out")
    with pytest.raises(UsageError, match="nothing to join"):
        merge_outputs([], tmp_path / "out")
    with pytest.raises(UsageError, match="holds a run of its own"):
        merge_outputs(parts(root), root / "whole")
    copy = tmp_path / "copy"
    run_dataset(make_request(root, copy, id_range=(8, 11)), progress=False)
    shard = copy / "shards" / "000000.shard"
    shard.write_bytes(shard.read_bytes()[:-1] + b"x")
    with pytest.raises(DataError, match="damaged"):
        merge_outputs([*parts(root)[:2], copy], tmp_path / "out")
    plain = json.loads((copy / "run.json").read_text())
    (copy / "run.json").write_text(json.dumps({**plain, "finished": False}))
    with pytest.raises(DataError, match="not finished"):
        merge_outputs([*parts(root)[:2], copy], tmp_path / "out")


def test_formats_are_chosen_by_task() -> None:
    assert choose_formats("proposals", ()) == ("detectron",)
    assert choose_formats("detections", ()) == ("coco",)
    assert choose_formats("detections", ("detectron", "coco", "detectron")) == ("detectron", "coco")
    with pytest.raises(UsageError, match="--format coco: proposals can be written as detectron"):
        choose_formats("proposals", ("coco",))


def test_status_reads_what_is_on_the_disk(root: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no run here"):
        read_status(tmp_path)
    (whole,) = read_status(root / "whole")
    assert (whole.done, whole.left, whole.failed, whole.finished) == (IMAGES, 0, 1, True)
    assert describe_status([whole]) == f"data: finished; {IMAGES} of {IMAGES} images done, 0 left, 1 failed"
    request = make_request(root, tmp_path / "out")
    run_dataset(request, progress=False)
    plain = json.loads((tmp_path / "out" / "run.json").read_text())
    (tmp_path / "out" / "run.json").write_text(json.dumps({**plain, "finished": False}))
    (tmp_path / "out" / "shards" / "000001.shard").unlink()
    (part,) = read_status(tmp_path / "out")
    assert (part.done, part.left) == (IMAGES - 4, 4)
    assert part.images_per_s is not None
    assert part.eta_s == pytest.approx(4 / part.images_per_s)
    assert describe_status([part]).endswith("; no process works on it, the same command again goes on from here")
    with FolderLock(tmp_path / "out"):
        (part,) = read_status(tmp_path / "out")
        assert part.holder == f"process {os.getpid()}"
        assert f"; process {os.getpid()} works on it, " in describe_status([part])
        assert describe_status([part]).endswith(f"{part.images_per_s:.2f} images/s, ETA 0:00:00")
        (tmp_path / "out" / "run.json").write_text(json.dumps({**plain, "finished": False, "started_at": 9e9}))
        assert "nothing written yet" in describe_status(read_status(tmp_path / "out"))
    (tmp_path / "out" / "run.json").write_text(json.dumps({**plain, "finished": True}))
    assert "finished" not in describe_status(
        read_status(tmp_path / "out")
    )  # a shard is missing, whatever run.json says
    assert run_dataset(replace(request, slots=request.slots * 2), progress=False).failed == 1


def test_joined_results_are_not_joined_again(root: Path, tmp_path: Path) -> None:
    merge_outputs(parts(root), tmp_path / "joined")
    with pytest.raises(UsageError, match=r"already joined.*name its parts instead \(joined from .*; joined from"):
        merge_outputs([tmp_path / "joined"], tmp_path / "again")
    assert not (tmp_path / "again").exists()


def test_an_unknown_format_leaves_no_folder(root: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--format mmdet"):
        merge_outputs(parts(root), tmp_path / "joined", formats=("mmdet",))
    assert not (tmp_path / "joined").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shard_sizes": [4, 4, -3]}, "expected shards of 11 images in all, got 5"),
        ({"shard_sizes": [4, 4, -3, 6]}, "expected shards of 11 images in all, got 11"),
        ({"shard_sizes": [400]}, "expected shards of 11 images in all, got 400"),
        (
            {"dataset": {"name": "d", "kind": "coco", "source": "d", "total": 3}},
            r"the dataset's 3 images, got \[0, 11\)",
        ),
    ],
)
def test_counts_that_cannot_be_are_damage(root: Path, tmp_path: Path, change: dict[str, object], message: str) -> None:
    plain = json.loads((root / "whole" / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps({**plain, **change}))
    with pytest.raises(DataError, match=message):
        read_status(tmp_path)


def test_shards_that_cannot_be_looked_at_are_said(root: Path, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_bytes((root / "whole" / "run.json").read_bytes())
    (tmp_path / "shards").touch()
    with pytest.raises(DataError, match=r"000000\.shard: cannot be looked at \(Not a directory\)"):
        read_status(tmp_path)


_KILLED_WHILE_MERGING = """
import os, signal, sys
from pathlib import Path
from run_support import make_request
from roiline.infer import pickle_stream
from roiline.infer.run import run_dataset
pickle_stream.PickleStream.close = lambda self: os.kill(os.getpid(), signal.SIGKILL)
run_dataset(make_request(Path(sys.argv[1]), Path(sys.argv[2])), progress=False)
"""


def test_a_run_that_is_killed_while_it_merges_leaves_nothing_behind(root: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", _KILLED_WHILE_MERGING, str(root), str(tmp_path / "out")]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    assert subprocess.run(command, env=environment, check=False).returncode == -signal.SIGKILL
    assert not (tmp_path / "out" / "detections.pkl").exists()
    assert len(list((tmp_path / "out").glob(".*.part"))) == 1
    run_dataset(make_request(root, tmp_path / "out"), progress=False)
    assert list((tmp_path / "out").glob(".*.part")) == []
    assert result_bytes(tmp_path / "out") == result_bytes(root / "whole")
