"""Nothing finished is lost or done twice, whatever is killed, stopped, damaged or full: a run under attack ends like a quiet one.

`ROILINE_CHAOS_ROUNDS=N` makes the long test longer, `ROILINE_CHAOS_SEED=N` repeats one.
"""

from __future__ import annotations

import os
import random
import re
import time
from pathlib import Path

import pytest
from chaos_support import HANGER, KILLER, PACE_VARIABLE, Attack, answered, failed_ids, is_alive, small_disk, start_job
from run_support import result_bytes, write_model, write_pictures

from roiline.infer.plan import shard_size
from roiline.infer.status import read_status

SHARDS_UNDER_WAY = 3
"""What a worker holds: the shard that it works on, the one before it on its way to the disk, and the next."""

QUICK = [
    "kill a worker",
    "stop a worker",
    "kill a worker",
    "kill the job",
    "fill the disk",
    "kill a worker",
    "stop a worker",
]
LONG = [*QUICK, "kill a worker", "kill the job", "stop a worker", "kill a worker"]


def attack(folder: Path, images: int, blows: list[str], seed: int, *, image_s: float) -> None:
    """`image_s` is how long a picture takes: long enough that all blows fall before the end."""
    pace = {PACE_VARIABLE: str(image_s)}
    print(f"chaos: seed {seed}")
    write_model(folder / "model.onnx")
    write_pictures(folder / "pictures", images)
    quiet = start_job(folder, folder / "quiet", folder / "quiet.log", **pace)
    with small_disk(folder / "out") as small:
        one = Attack(folder, folder / "out", folder / "chaos.log", random.Random(seed), [*blows], small, pace)
        try:
            assert one.run() == 4
            assert quiet.wait(timeout=120) == 4
            check(one, folder / "quiet", images)
        finally:
            print("\n".join(one.report))
            quiet.kill()
            quiet.wait()


def check(one: Attack, quiet: Path, images: int) -> None:
    out, log = one.out, one.log
    assert failed_ids(out) == failed_ids(quiet) == [KILLER, HANGER]
    (files, expected) = (result_bytes(out), result_bytes(quiet))
    del files["failed.json"], expected["failed.json"]  # it says how each poison picture ended its worker
    assert files == expected
    one._keep()  # no shard that was whole has been touched again
    text = log.with_suffix(".text").read_text(errors="replace")
    assert text.count("computed again") == one.damaged
    ends = one.deaths + len(re.findall(r"^worker \d+ \(", text, re.MULTILINE))
    lost = len(answered(log)) - (images - 2)
    assert 0 < lost <= shard_size(images) * (SHARDS_UNDER_WAY * ends + one.damaged)
    assert not [path for path in out.rglob("*") if path.suffix == ".part" or path.name == ".lock"]
    (status,) = read_status(out)
    assert (status.finished, status.done, status.failed) == (True, images, 2)
    limit = time.monotonic() + 30
    while any(map(is_alive, one.workers)):
        assert time.monotonic() < limit, "a worker has outlived its job"
        time.sleep(0.05)


def seed_of(round_: int) -> int:
    return int(os.environ.get("ROILINE_CHAOS_SEED", 20261130)) + round_


def test_a_run_under_attack_ends_like_a_quiet_one(tmp_path: Path) -> None:
    attack(tmp_path, 160, QUICK, seed_of(0), image_s=0.01)


@pytest.mark.golden
@pytest.mark.parametrize("round_", range(int(os.environ.get("ROILINE_CHAOS_ROUNDS", "1"))))
def test_a_longer_run_under_a_longer_attack(tmp_path: Path, round_: int) -> None:
    attack(tmp_path, 300, LONG, seed_of(round_), image_s=0.06)
