from __future__ import annotations

import os
import stat

import pytest
from gpu_tools import gpu_line, install_tool

from roiline.core.errors import EngineError, UsageError
from roiline.infer.cores import CORES_VARIABLE, cores_from_text
from roiline.infer.devices import choose_slots, cpu_slots, parse_gpus
from roiline.infer.nvidia_smi import MigPart, list_gpus


@pytest.fixture
def two_gpus(tmp_path, monkeypatch):
    """Puts a driver's tool that knows two GPUs on the path."""
    install_tool(tmp_path, monkeypatch, [gpu_line(0, "GPU-aaaa-1"), gpu_line(1, "GPU-bbbb-2")])


@pytest.fixture
def split_gpu(tmp_path, monkeypatch):
    """A tool that knows a whole GPU and one that is split in two."""
    listing = [
        "GPU 0: NVIDIA H200 (UUID: GPU-aaaa-1)",
        "GPU 1: NVIDIA H200 (UUID: GPU-bbbb-2)",
        "  MIG 1g.18gb     Device  0: (UUID: MIG-cccc-3)",
        "  MIG 3g.71gb     Device  1: (UUID: MIG-dddd-4)",
    ]
    lines = [gpu_line(0, "GPU-aaaa-1"), gpu_line(1, "GPU-bbbb-2", mig="Enabled")]
    install_tool(tmp_path, monkeypatch, lines, listing=listing)


@pytest.fixture
def no_driver(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))


def write_tool(folder, monkeypatch, script):
    """Puts a driver's tool that runs a script on the path."""
    tool = folder / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


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
    assert all(slot.environment["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID" for slot in slots)
    assert [slot.label for slot in slots] == ["gpu 1", "gpu 0"]


def test_workers_of_one_node_share_its_cores(two_gpus):
    cores = os.sched_getaffinity(0)
    slots = choose_slots(None, None)
    assert [cores_from_text(slot.environment[CORES_VARIABLE]) for slot in slots] == [cores, cores]
    assert [slot.device.threads for slot in slots] == [max(1, len(cores) // 2)] * 2


def test_gpus_are_read(two_gpus):
    first, _ = list_gpus()
    assert (first.index, first.uuid, first.name) == (0, "GPU-aaaa-1", "NVIDIA H200, 141 GB")
    assert (first.pci_bus_id, first.total_mb, first.free_mb, first.parts) == ("0000:1b:00.0", 143771, 143000, ())


def test_a_split_gpu_counts_as_its_parts(split_gpu):
    assert list_gpus()[1].parts == (MigPart("MIG-cccc-3", "1g.18gb"), MigPart("MIG-dddd-4", "3g.71gb"))
    slots = choose_slots(None, None)
    assert [slot.environment["CUDA_VISIBLE_DEVICES"] for slot in slots] == ["GPU-aaaa-1", "MIG-cccc-3", "MIG-dddd-4"]
    assert [slot.label for slot in slots] == ["gpu 0", "gpu 1 part 0", "gpu 1 part 1"]
    assert [slot.label for slot in choose_slots("1", None)] == ["gpu 1 part 0", "gpu 1 part 1"]
    assert [slot.label for slot in choose_slots("MIG-dddd-4,GPU-aaaa-1", None)] == ["gpu 1 part 1", "gpu 0"]


def test_parts_that_are_not_there_or_named_twice(split_gpu):
    with pytest.raises(UsageError, match=r"no GPU MIG-eeee-5; .*1g\.18gb MIG-cccc-3, 3g\.71gb MIG-dddd-4"):
        choose_slots("MIG-eeee-5", None)
    with pytest.raises(UsageError, match="names a GPU twice, by number and by UUID: MIG-cccc-3"):
        choose_slots("1,MIG-cccc-3", None)
    with pytest.raises(UsageError, match="GPU-aaaa-1"):
        choose_slots("0,GPU-aaaa-1", None)


@pytest.mark.parametrize("line", ["0, GPU-a", "x, GPU-a, 0:0:0.0, 1, 1, Disabled, H200"])
def test_an_answer_that_cannot_be_read(tmp_path, monkeypatch, line):
    install_tool(tmp_path, monkeypatch, [line])
    with pytest.raises(EngineError, match="nvidia-smi: expected a"):
        list_gpus()


def test_a_gpu_that_does_not_say_its_memory(tmp_path, monkeypatch):
    install_tool(tmp_path, monkeypatch, ["0, GPU-a, 00000000:01:00.0, [N/A], [N/A], [N/A], NVIDIA GB10"])
    (gpu,) = list_gpus()
    assert gpu.free_mb is None
    assert gpu.name == "NVIDIA GB10"


def test_all_gpus_are_the_default(two_gpus):
    assert len(choose_slots(None, None)) == 2


def test_one_cpu_worker_is_the_default_without_a_driver(no_driver):
    assert list_gpus() == ()
    (slot,) = choose_slots(None, None)
    assert slot.device.kind == "cpu"


def test_a_gpu_that_is_not_there_is_refused_with_those_that_are(two_gpus):
    with pytest.raises(UsageError, match=r"no GPU 2.*NVIDIA H200, 141 GB, GPU-aaaa-1"):
        choose_slots("0-2", None)


@pytest.mark.parametrize("status", [0, 6])
def test_a_driver_without_a_gpu_is_as_none(tmp_path, monkeypatch, status):
    write_tool(tmp_path, monkeypatch, f"echo No devices were found; exit {status}")
    (slot,) = choose_slots(None, None)
    assert slot.device.kind == "cpu"
    with pytest.raises(EngineError, match="no GPU, so none can be used"):
        choose_slots("0", None)


def test_an_answer_that_is_no_text(tmp_path, monkeypatch):
    write_tool(tmp_path, monkeypatch, r"printf '\377\376\n'")
    with pytest.raises(EngineError, match="nvidia-smi: expected a line"):
        choose_slots(None, None)


def test_gpus_without_a_driver(no_driver):
    with pytest.raises(EngineError, match="no NVIDIA driver"):
        choose_slots("0", None)


def test_a_driver_that_does_not_answer(tmp_path, monkeypatch):
    write_tool(tmp_path, monkeypatch, "exit 9")
    with pytest.raises(EngineError, match=r"does not answer.*--cpu-workers"):
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
