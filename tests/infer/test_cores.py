"""Cores near a GPU, from a kernel's files that a test writes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from roiline.core.errors import UsageError
from roiline.infer.cores import CORES_VARIABLE, cores_from_text, near_cores, text_from_cores

BUS = "0000:1b:00.0"
USABLE = frozenset(os.sched_getaffinity(0))


def write_node(root, node: str, cpulist: str | None) -> None:
    device = root / "bus/pci/devices" / BUS
    device.mkdir(parents=True)
    (device / "numa_node").write_text(f"{node}\n")
    if cpulist is not None:
        folder = root / f"devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{cpulist}\n")


def test_the_cores_of_the_node_are_taken(tmp_path):
    one = min(USABLE)
    write_node(tmp_path, "1", f"{one},4000-4003")
    assert near_cores(BUS, sysfs=tmp_path) == {one}


@pytest.mark.parametrize(("node", "cpulist"), [("-1", None), ("1", None), ("1", "4000-4003")])
def test_all_cores_where_the_node_says_nothing_usable(tmp_path, node, cpulist):
    write_node(tmp_path, node, cpulist)
    assert near_cores(BUS, sysfs=tmp_path) == USABLE


def test_all_cores_where_there_is_no_such_device(tmp_path):
    assert near_cores(BUS, sysfs=tmp_path) == USABLE
    assert near_cores("", sysfs=tmp_path) == USABLE


def test_lists_of_cores():
    assert cores_from_text("0-2,5, 7-7") == {0, 1, 2, 5, 7}
    assert cores_from_text(text_from_cores(frozenset({3, 1, 12}))) == {1, 3, 12}
    with pytest.raises(UsageError, match="list of cores"):
        cores_from_text("all")


def test_a_process_holds_itself_to_its_cores():
    one = min(USABLE)
    code = "import os; from roiline.infer.cores import take_cores; take_cores(); print(sorted(os.sched_getaffinity(0)))"
    for text, expected in ((str(one), [one]), ("", sorted(USABLE))):
        environment = {**os.environ, CORES_VARIABLE: text}
        answer = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment, cwd="/"
        )
        assert answer.stdout.strip() == str(expected)
