"""The GPU check itself, on machines without a GPU: the same way with kernels on the host, and what it says where it cannot go it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "benchmarks" / "gpu_check.py"


def run_check(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
        env={**os.environ, "PYTHONWARNINGS": "error", **environment},
    )


def test_a_machine_without_a_gpu_is_told_so_at_once(tmp_path):
    answer = run_check("--json", str(tmp_path / "check.json"), CUDA_VISIBLE_DEVICES="")
    assert answer.returncode == 5
    assert "no NVIDIA driver" in answer.stderr or "sees no GPU" in answer.stderr or "no CUDA binding" in answer.stderr
    assert "Traceback" not in answer.stderr
    assert not (tmp_path / "check.json").exists()


@pytest.mark.golden
def test_the_same_way_on_the_host(tmp_path):
    if shutil.which("g++") is None:
        pytest.skip("kernels are compiled by g++, which is not on the PATH")
    answer = run_check(
        "--backend", "host", "--sizes", "small", "--launches", "1", "--json", str(tmp_path / "check.json")
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    report = json.loads((tmp_path / "check.json").read_text())
    entries = {entry["name"]: entry for entry in report["entries"]}
    assert {entry["status"] for entry in entries.values()} == {"passed"}
    assert len(entries) == 17
    assert entries["engine host-kernels"]["unpaired"] == 0
    assert entries["engine host-kernels"]["detections"] > 50
    assert entries["MultiLevelPSRoIPool (R-FCN scores)"]["differing_share"] == 0
    assert len(entries["DetectionOutput (FPN box head's answers)"]["kernels"]) > 3


@pytest.mark.golden
def test_the_way_over_a_device_on_a_fake_one(tmp_path):
    if shutil.which("g++") is None:
        pytest.skip("kernels are compiled by g++, which is not on the PATH")
    program = Path(__file__).with_name("gpu_check_on_fake.py")
    answer = subprocess.run(
        [sys.executable, str(program), str(SCRIPT.parent), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    report = json.loads((tmp_path / "check.json").read_text())
    assert report["machine"]["gpu"]["name"] == "NVIDIA H200"
    assert "nvrtc is of CUDA 13050, newer than the driver's 13000" in answer.stdout
    kernels = [entry for entry in report["entries"] if "kernels" in entry]
    assert len(kernels) == 16
    assert {entry["status"] for entry in kernels} == {"passed"}
    assert all(kernel["floor_ms"] > 0 and kernel["ms"] == 1.5 for entry in kernels for kernel in entry["kernels"])
    skipped = {entry["name"] for entry in report["entries"] if entry["status"] == "skipped"}
    assert skipped >= {"engine onnxruntime", "engine tensorrt"}


@pytest.mark.golden
def test_time_that_has_passed_is_said(tmp_path):
    answer = run_check("--backend", "host", "--sizes", "small", "--limit-s", "0")
    assert answer.returncode == 0
    assert "0 passed, 0 failed, 17 skipped" in answer.stdout


def test_a_wrong_kernel_is_found():
    code = (
        f"import sys; sys.path.insert(0, {str(SCRIPT.parent)!r})\n"
        "import numpy as np\n"
        "from gpu_cases import SMALL, make_cases\n"
        "from gpu_kernels import check_case\n"
        "from roiline.engines.cuda.kernels import Measured\n"
        "from roiline.ops.catalogue import OPERATORS\n"
        "class Wrong:\n"
        "    def measure(self, node, arrays, *, launches):\n"
        "        rois = OPERATORS['Trim'].run(*arrays)[0]\n"
        "        full = np.full((arrays[0].shape[0] * arrays[0].shape[1], 5), -1, np.float32)\n"
        "        full[:len(rois)] = rois\n"
        "        full[3, 2] += self.error\n"
        "        return Measured((full,), (1.0,), 1)\n"
        "case = next(case for case in make_cases(SMALL) if case.operator == 'Trim')\n"
        "for error in (0.0, 0.01):\n"
        "    Wrong.error = error\n"
        "    outcome = check_case(case, Wrong(), launches=1, rate=None)\n"
        "    print(outcome.agrees, outcome.detail)\n"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="/")
    first, second = answer.stdout.splitlines()
    assert first.startswith("True")
    assert second.startswith("False rois: 1 of")
