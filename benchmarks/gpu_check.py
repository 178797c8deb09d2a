"""One command for a machine with an NVIDIA GPU: whether kernels and engines do there what they are proved to do without one.

    python benchmarks/gpu_check.py [--json FILE] [--backend device|host] [--sizes usual|small]

It takes less than four minutes on one GPU, needs no network, and uses what is there: a CUDA binding (cuda-bindings or pycuda) and a
compiler (NVRTC or nvcc) for the kernels; TensorRT 11 for the engine; onnxruntime-gpu for its CUDA provider. What is not there is skipped,
and said. Exit codes: 0 all that could be checked agrees, 1 something does not, 5 no driver or no GPU.

`--backend host` is a dry run that takes the same way with kernels compiled by g++, so that the script itself is proved where no GPU is.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import numpy as np
from gpu_cases import SMALL, USUAL, Sizes, make_cases
from gpu_kernels import HostRunner, KernelRunner, Outcome, check_case, check_preparation, measure_fill_rate
from gpu_models import build_demo, check_trunk, compare_engines, export_demo

from roiline.core.errors import EngineError, RoilineError
from roiline.core.spec import ImageRules
from roiline.engines.cuda.driver import open_driver
from roiline.engines.cuda.kernels import DeviceKernels
from roiline.engines.cuda.resources import CudaContext
from roiline.engines.protocol import Device
from roiline.ops.kernel_build import compile_ptx, find_device_compiler
from roiline.ops.kernel_source import translation_unit

PACKAGES = (
    "roiline",
    "cuda-bindings",
    "pycuda",
    "nvidia-cuda-nvrtc",
    "tensorrt",
    "tensorrt-rtx",
    "onnxruntime-gpu",
    "onnxruntime",
    "torch",
)
RESIZING: tuple[Literal["detectron", "torchvision", "torchvision_stretch", "detectron_stretch"], ...] = (
    "detectron",
    "torchvision",
    "detectron_stretch",
)
LIMIT_S = 220.0


@dataclass(slots=True)
class Report:
    """Is everything that was found: `entries` are one a check, with `status` passed, failed or skipped."""

    backend: str
    machine: dict[str, Any] = field(default_factory=dict)
    entries: list[dict[str, Any]] = field(default_factory=list)

    def add(self, name: str, status: str, detail: str = "", **numbers: Any) -> None:
        """Adds one check and shows it."""
        self.entries.append({"name": name, "status": status, "detail": detail, **numbers})
        print(f"{status:8}{name}{': ' + detail if detail else ''}", flush=True)

    @property
    def failed(self) -> bool:
        """Says whether any check failed."""
        return any(entry["status"] == "failed" for entry in self.entries)


@dataclass(frozen=True, slots=True)
class Bench:
    """Is what checks run with: the kernel runner, the device for engines, the rate of memory, and how often a kernel is launched."""

    runner: KernelRunner
    device: Device
    rate: float | None
    launches: int
    sizes: Sizes


def main() -> int:
    """Checks everything, and returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=("device", "host"), default="device")
    parser.add_argument("--sizes", choices=("usual", "small"), default="usual")
    parser.add_argument("--launches", type=int, default=10, help="launches of every kernel")
    parser.add_argument("--limit-s", type=float, default=LIMIT_S, help="no check begins later")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    report = Report(asked.backend)
    sizes = USUAL if asked.sizes == "usual" else SMALL
    began = time.perf_counter()
    with ExitStack() as stack:
        try:
            bench = open_bench(asked.backend, sizes, max(1, asked.launches), report, stack)
        except RoilineError as error:
            print(error, file=sys.stderr)
            return error.exit_code
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="roiline-gpu-check-")))
        for name, check in list_checks(bench, folder, report):
            if time.perf_counter() - began > asked.limit_s:
                report.add(name, "skipped", f"{asked.limit_s:g} s have passed")
                continue
            run_check(name, check, report)
    seconds = round(time.perf_counter() - began, 1)
    print_kernels(report)
    counts = {
        status: sum(entry["status"] == status for entry in report.entries) for status in ("passed", "failed", "skipped")
    }
    print(", ".join(f"{count} {status}" for status, count in counts.items()), f"in {seconds} s")
    if asked.json is not None:
        asked.json.write_text(json.dumps({**asdict(report), "seconds": seconds}, indent=1, default=str) + "\n")
    return 1 if report.failed else 0


def open_bench(backend: str, sizes: Sizes, launches: int, report: Report, stack: ExitStack) -> Bench:
    """Opens the GPU, or the host in its place.

    Raises:
        EngineError: there is no driver, no GPU, or no compiler.
    """
    versions = {name: version for name in PACKAGES if (version := _version(name)) is not None}
    report.machine = {"packages": versions, "python": sys.version.split()[0]}
    if backend == "host":
        return Bench(HostRunner(), Device(), None, launches, sizes)
    driver = open_driver()
    compiler = find_device_compiler()
    context = stack.enter_context(CudaContext(driver))
    version = compiler_version(compiler)
    rate = measure_fill_rate(context)
    report.machine |= {
        "gpu": asdict(context.properties),
        "cuda_of_driver": driver.version(),
        "binding": driver.name,
        "compiler": compiler,
        "compiler_version": version,
        "fill_gb_per_s": round(rate / 1e9, 1),
    }
    major, minor = context.properties.compute_capability
    name = f"{context.properties.name} (sm_{major}{minor})"
    print(f"{name}, CUDA {driver.version()}, {driver.name}, {compiler} {version}, {rate / 1e9:.0f} GB/s")
    if version > driver.version():
        print(
            f"warning: {compiler} is of CUDA {version}, newer than the driver's {driver.version()}, which may refuse what it compiles; "
            "install nvidia-cuda-nvrtc of the driver's version"
        )
    compiled: dict[str, str] = {}

    def compile_kernel(node: Any, dtypes: Sequence[str]) -> str:
        source = translation_unit(node, dtypes)
        if source not in compiled:
            compiled[source] = compile_ptx(source, compiler=compiler)
        return compiled[source]

    return Bench(DeviceKernels(context, compile_kernel), Device("cuda"), rate, launches, sizes)


def compiler_version(compiler: str) -> int:
    """Returns the CUDA version of a compiler, as 13000 for 13.0; 0 where it does not say."""
    if compiler == "nvrtc":
        from cuda.bindings import nvrtc

        _, major, minor = nvrtc.nvrtcVersion()
        return 1000 * int(major) + 10 * int(minor)
    said = subprocess.run(["nvcc", "--version"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"release (\d+)\.(\d+)", said)
    return 1000 * int(found[1]) + 10 * int(found[2]) if found else 0


def list_checks(bench: Bench, folder: Path, report: Report) -> list[tuple[str, Callable[[], Mapping[str, Any]]]]:
    """Returns the checks by name, engines first: they are what a run needs, and the rest may be cut off by time."""
    checks: list[tuple[str, Callable[[], Mapping[str, Any]]]] = []
    for engine in ("onnxruntime", "tensorrt") if bench.device.kind == "cuda" else ("host-kernels",):
        reason = missing_engine(engine)
        if reason:
            report.add(f"engine {engine}", "skipped", reason)
        else:
            checks.append((f"engine {engine}", lambda engine=engine: check_engine(engine, bench, folder)))
    if bench.device.kind == "cuda":
        if importlib.util.find_spec("tensorrt_rtx") is None:
            report.add("trunk in TensorRT for RTX", "skipped", "tensorrt_rtx is not installed")
        else:
            checks.append(("trunk in TensorRT for RTX", lambda: check_rtx(folder)))
    random = np.random.default_rng(0)
    picture = random.integers(0, 256, (bench.sizes.height * 5 // 8, bench.sizes.width * 5 // 8, 3), np.uint8)
    for resize in RESIZING:
        rules = ImageRules(
            "RGB" if resize == "torchvision" else "BGR",
            (102.9801, 115.9465, 122.7717),
            (1.0, 1.0, 1.0),
            bench.sizes.height,
            bench.sizes.width,
            resize,
            32,
            "apply",
        )
        checks.append(
            (
                f"PrepareImage ({resize})",
                lambda rules=rules: describe(
                    check_preparation(rules, picture, bench.runner, launches=bench.launches, rate=bench.rate)
                ),
            )
        )
    for case in make_cases(bench.sizes):
        name = f"{case.operator} ({case.stands_for})"
        checks.append(
            (name, lambda case=case: describe(check_case(case, bench.runner, launches=bench.launches, rate=bench.rate)))
        )
    return checks


def run_check(name: str, check: Callable[[], Mapping[str, Any]], report: Report) -> None:
    """Runs one check; an error of ours fails it, and the others go on."""
    start = time.perf_counter()
    try:
        found = dict(check())
    except RoilineError as error:
        report.add(name, "failed", str(error))
        return
    agrees, detail = found.pop("agrees"), str(found.pop("detail", ""))
    report.add(name, "passed" if agrees else "failed", detail, **found, seconds=round(time.perf_counter() - start, 2))


def check_rtx(folder: Path) -> Mapping[str, Any]:
    """Runs the demo's convolutional part in TensorRT for RTX, which our engines are not built with."""
    return check_trunk(importlib.import_module("tensorrt_rtx"), find_demo(folder))


def find_demo(folder: Path) -> Path:
    """Returns the demo model, exported where it is not there yet."""
    model = folder / "digits.onnx"
    return model if model.exists() else export_demo(folder)


def check_engine(engine: str, bench: Bench, folder: Path) -> Mapping[str, Any]:
    """Runs the demo model in an engine; TensorRT's is built first."""
    model = find_demo(folder)
    plan, built = build_demo(model, folder) if engine == "tensorrt" else (None, {})
    found = compare_engines(model, engine, bench.device, batches=16 if bench.device.kind == "cuda" else 2, path=plan)
    rates = ", ".join(f"{value} {name.replace('_', ' ')}" for name, value in found.items() if name.startswith("images"))
    detail = f"{found['detections']:.0f} detections in the fullest batch, {found['unpaired']:.0f} unpaired; {rates}"
    return {**found, **built, "detail": detail}


def missing_engine(engine: str) -> str:
    """Returns why an engine cannot be tried; empty where it can."""
    package = {"onnxruntime": "onnxruntime", "tensorrt": "tensorrt", "host-kernels": "onnxruntime"}[engine]
    if importlib.util.find_spec(package) is None:
        return f"{package} is not installed"
    if engine == "onnxruntime":
        import onnxruntime

        if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
            return "the installed onnxruntime is the CPU package"
    return ""


def describe(outcome: Outcome) -> Mapping[str, Any]:
    """Returns a kernel check as an entry of the report."""
    total = sum(kernel.ms for kernel in outcome.kernels)
    same = f"{100 * outcome.differing_share:.3f} % of values differ, by {outcome.largest_difference:.2g} at most"
    return {
        "agrees": outcome.agrees,
        "detail": outcome.detail
        or f"{len(outcome.kernels)} kernels, {total:.3f} ms; {same if outcome.differing_share else 'every bit agrees'}",
        "largest_difference": outcome.largest_difference,
        "differing_share": outcome.differing_share,
        "kernels": [asdict(kernel) for kernel in outcome.kernels],
    }


def print_kernels(report: Report) -> None:
    """Prints every kernel's time and, where a rate of memory is known, how many times its floor that is."""
    rows = [kernel for entry in report.entries for kernel in entry.get("kernels", ())]
    if not rows:
        return
    print(f"\n{'kernel':32}{'ms':>10}{'MB':>10}{'floors':>10}")
    for row in rows:
        floors = "" if row["floor_ms"] is None else f"{row['ms'] / row['floor_ms']:.1f}"
        print(f"{row['kernel']:32}{row['ms']:10.4f}{row['moved_bytes'] / 1e6:10.2f}{floors:>10}")


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    try:
        sys.exit(main())
    except EngineError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
