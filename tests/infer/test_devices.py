from __future__ import annotations

import os
import stat

import pytest

from roiline.core.errors import EngineError, UsageError
from roiline.infer.devices import choose_slots, cpu_slots, list_gpus, parse_gpus


@pytest.fixture
def two_gpus(tmp_path, monkeypatch):
    """Puts a driver's tool that knows two GPUs on the path."""
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho '0, GPU-aaaa-1, NVIDIA H200'\necho '1, GPU-bbbb-2, NVIDIA H200'\n")
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")


@pytest.fixture
def no_driver(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("0-3", ("0", "1", "2", "3")),
        ("0,2", ("0", "2")),
        ("0-1,3", ("0", "1", "3")),
        ("GPU-8f1e-22", ("GPU-8f1e-22",)),
        ("MIG-8f1e-22, 1", ("MIG-8f1e-22", "1")),
    ],
)
def test_lists_are_read(text, names):
    assert parse_gpus(text) == names


@pytest.mark.parametrize("text", ["", "0,,1", "a", "3-1", "0,0", "0-1,1", "-1", "0-99999", "1.5", "9" * 5000])
def test_other_lists_are_refused(text):
    with pytest.raises(UsageError, match="--gpus"):
        parse_gpus(text)


def test_every_worker_sees_its_own_gpu(two_gpus):
    slots = choose_slots("1,0", None)
    assert [slot.environment["CUDA_VISIBLE_DEVICES"] for slot in slots] == ["GPU-bbbb-2", "GPU-aaaa-1"]
    assert all(slot.device.kind == "cuda" and slot.device.index == 0 for slot in slots)


def test_all_gpus_are_the_default(two_gpus):
    assert len(choose_slots(None, None)) == 2


def test_one_cpu_worker_is_the_default_without_a_driver(no_driver):
    assert list_gpus() == ()
    (slot,) = choose_slots(None, None)
    assert slot.device.kind == "cpu"


def test_a_gpu_that_is_not_there_is_refused_with_those_that_are(two_gpus):
    with pytest.raises(UsageError, match=r"no GPU 2.*NVIDIA H200, GPU-aaaa-1"):
        choose_slots("0-2", None)


def test_gpus_without_a_driver(no_driver):
    with pytest.raises(EngineError, match="no NVIDIA driver"):
        choose_slots("0", None)


def test_a_driver_that_does_not_answer(tmp_path, monkeypatch):
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\nexit 9\n")
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(EngineError, match="does not answer"):
        choose_slots(None, None)


def test_both_kinds_of_device_exclude_each_other(two_gpus):
    with pytest.raises(UsageError, match="exclude"):
        choose_slots("0", 1)


def test_cpu_workers_share_the_cores():
    cores = len(os.sched_getaffinity(0))
    assert sum(slot.device.threads for slot in cpu_slots(cores)) == cores
    assert [slot.device.threads for slot in cpu_slots(cores + 1)] == [1] * (cores + 1)
    with pytest.raises(UsageError, match="at least 1"):
        cpu_slots(0)


def test_more_cpu_workers_than_a_machine_carries_are_refused():
    cores = len(os.sched_getaffinity(0))
    assert len(cpu_slots(4 * cores + 16)) == 4 * cores + 16
    with pytest.raises(UsageError, match=rf"at most {4 * cores + 16} .*got 99999"):
        cpu_slots(99999)
