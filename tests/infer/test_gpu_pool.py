"""Runs on GPUs that are none: what is asked before workers start, what a worker finds, and what timing.json says of GPUs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest
from gpu_tools import FakeNvml, gpu_line, install_nvml, install_tool
from run_support import make_request, result_bytes, write_model, write_pictures

from roiline.core.errors import EngineError
from roiline.engines.protocol import Device
from roiline.infer.cores import CORES_VARIABLE
from roiline.infer.devices import choose_slots
from roiline.infer.gpu_memory import OVERHEAD_MB, check_free_memory
from roiline.infer.gpu_monitor import GpuMonitor
from roiline.infer.request import MODEL_PREDICTOR, Slot
from roiline.infer.run import run_dataset


def make_slot(uuid: str, *, kind: str = "cuda") -> Slot:
    return Slot(Device(kind), {"CUDA_VISIBLE_DEVICES": uuid}, f"gpu {uuid[-1:]}")


def make_gpu_request(root, *slots: Slot, **changes):
    write_model(root / "model.onnx")
    write_pictures(root / "pictures", 3)
    return make_request(root, root / "out", slots=slots, **changes)


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "m.onnx"
    path.write_bytes(bytes(3 << 20))
    return path


def test_a_gpu_with_room_is_taken(tmp_path, monkeypatch, model):
    install_tool(tmp_path, monkeypatch, [gpu_line(0, "GPU-a", free=OVERHEAD_MB + 3)])
    check_free_memory([make_slot("GPU-a")], [model])


def test_a_full_gpu_is_named_with_who_holds_it(tmp_path, monkeypatch, model):
    lines = [gpu_line(0, "GPU-a"), gpu_line(1, "GPU-b", free=OVERHEAD_MB + 5), gpu_line(2, "GPU-c", free=1)]
    apps = ["GPU-b, 4711, 140000, /usr/bin/python3", "GPU-b, 4712, [N/A], trainer", "GPU-a, 1, 5, idle"]
    install_tool(tmp_path, monkeypatch, lines, apps=apps)
    with pytest.raises(EngineError) as caught:
        check_free_memory([make_slot("GPU-a"), make_slot("GPU-b")], [model, model])
    text = str(caught.value)
    assert f"needs at least {OVERHEAD_MB + 6} MiB" in text
    assert f"gpu 1 (NVIDIA H200, 141 GB, GPU-b): {OVERHEAD_MB + 5} of 143771 MiB are free" in text
    assert "process 4711 (/usr/bin/python3) holds 140000 MiB, process 4712 (trainer) holds an unknown part" in text
    assert "gpu 0" not in text
    assert "gpu 2" not in text


def test_memory_that_nobody_holds_is_said_so(tmp_path, monkeypatch, model):
    install_tool(tmp_path, monkeypatch, [gpu_line(0, "GPU-a", free=1)])
    with pytest.raises(EngineError, match="names no process"):
        check_free_memory([make_slot("GPU-a")], [model])


def test_cpu_workers_and_parts_are_not_asked(tmp_path, monkeypatch, model):
    monkeypatch.setenv("PATH", str(tmp_path))
    check_free_memory([make_slot("", kind="cpu"), make_slot("MIG-a")], [model])


def test_use_and_memory_are_sampled(monkeypatch):
    library = FakeNvml({"GPU-a": {"use": 40, "memory": (1000, 143771)}, "MIG-b": {"memory": (5, 18000)}})
    install_nvml(monkeypatch, library)
    with GpuMonitor([make_slot("GPU-a"), make_slot("MIG-b"), make_slot("GPU-c")], period_s=0.001) as monitor:
        limit = time.monotonic() + 30
        while library.asked < 6 and time.monotonic() < limit:
            time.sleep(0.002)
    assert not library.open
    report = monitor.report()
    first, second = report["gpus"]
    assert first["use_percent"]["count"] >= 2
    assert first["use_percent"]["max"] == first["use_percent"]["mean"] == 40
    assert first["memory_mib"]["p50"] == 1000
    assert first["memory_mib"]["total"] == 143771
    assert second["use_percent"] == {"count": 0}
    assert second["memory_mib"]["max"] == 5
    assert report["gpu_notes"] == ["not measured: Not Found", "not measured: Not Supported"]
    json.dumps(report)


@pytest.mark.parametrize(
    ("library", "note"), [(None, r"nvidia-ml-py is not installed"), (FakeNvml({}, starts=False), "Driver Not Loaded")]
)
def test_what_is_not_measured_is_said(monkeypatch, library, note):
    install_nvml(monkeypatch, library)
    with GpuMonitor([make_slot("GPU-a")]) as monitor:
        pass
    assert monitor.report()["gpus"] == []
    assert note in monitor.report()["gpu_notes"][0]


def test_a_run_without_gpus_has_no_such_record(monkeypatch):
    install_nvml(monkeypatch, None)
    with GpuMonitor([make_slot("", kind="cpu")]) as monitor:
        pass
    assert monitor.report() == {}


def test_a_worker_finds_its_gpu_and_its_cores_before_anything_is_loaded(tmp_path, monkeypatch):
    install_tool(tmp_path, monkeypatch, [gpu_line(0, "GPU-aaaa-1"), gpu_line(1, "GPU-bbbb-2")])
    install_nvml(monkeypatch, FakeNvml({"GPU-bbbb-2": {"use": 7, "memory": (9, 10)}}))
    one = str(min(os.sched_getaffinity(0)))
    (slot,) = choose_slots("1", None)
    slot = Slot(slot.device, {**slot.environment, CORES_VARIABLE: one}, slot.label)
    request = make_gpu_request(tmp_path, slot, predictor="run_support:open_on_gpu")
    run_dataset(request, progress=False)
    found = json.loads((tmp_path / "out/run.json").read_text())["workers"][0]
    assert found["mask"] == "GPU-bbbb-2"
    assert found["order"] == "PCI_BUS_ID"
    assert found["cores"] == one
    assert found["loaded"] == ""
    timing = json.loads((tmp_path / "out/timing.json").read_text())
    assert timing["workers"][0]["device"] == "gpu 1"
    assert [gpu["uuid"] for gpu in timing["gpus"]] == ["GPU-bbbb-2"]


def test_a_run_whose_gpu_is_full_leaves_nothing(tmp_path, monkeypatch):
    install_tool(tmp_path, monkeypatch, [gpu_line(0, "GPU-aaaa-1", free=10)])
    request = make_gpu_request(tmp_path, *choose_slots("0", None))
    with pytest.raises(EngineError, match="not enough free GPU memory"):
        run_dataset(request, progress=False)
    assert not (tmp_path / "out").exists()


def test_the_parent_loads_nothing_of_cuda(tmp_path, monkeypatch):
    install_tool(tmp_path, monkeypatch, [gpu_line(0, "GPU-aaaa-1")])
    code = (
        "import sys, roiline.infer.run, roiline.infer.python_api, roiline.commands.runs\n"
        "from roiline.infer.devices import choose_slots\n"
        "assert choose_slots('0', None)[0].device.kind == 'cuda'\n"
        "heavy = ('cuda', 'pycuda', 'tensorrt', 'torch', 'onnxruntime')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="/")
    assert answer.stdout.strip() == "[]"


@pytest.mark.parametrize("mode", ["exact", "padded"])
def test_pictures_that_the_engine_prepares_give_the_same_run(tmp_path, mode):
    write_model(tmp_path / "model.onnx")
    write_pictures(tmp_path / "pictures", 7)
    options = {"batch_size": 3, "batch_mode": mode}
    run_dataset(make_request(tmp_path, tmp_path / "host", **options), progress=False)
    asked = make_request(tmp_path, tmp_path / "device", predictor="run_support:open_from_pictures", **options)
    run_dataset(asked, progress=False)
    assert result_bytes(tmp_path / "device") == result_bytes(tmp_path / "host")


@pytest.mark.parametrize("kills", [False, True])
def test_two_batches_in_flight_give_the_same_run(tmp_path, kills):
    write_model(tmp_path / "model.onnx")
    write_pictures(tmp_path / "pictures", 24)
    if kills:
        (tmp_path / "kill").touch()
    predictors = ("run_support:open_killed_by_image" if kills else MODEL_PREDICTOR, "run_support:open_two_in_flight")
    found = []
    for number, predictor in enumerate(predictors):
        request = make_request(tmp_path, tmp_path / f"out{number}", predictor=predictor, batch_size=2)
        assert run_dataset(request, progress=False).failed == kills
        found.append(result_bytes(tmp_path / f"out{number}"))
    assert found[0] == found[1]
    assert kills or (tmp_path / "most-2").exists()  # what is left after a death is done one by one
