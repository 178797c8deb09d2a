"""Runs the GPU check's way over a device, on a GPU that is none: its kernels are run by what g++ makes of the same sources.

A program of its own, because the check's modules are scripts beside the package. Arguments: the folder of the scripts, a folder to work in.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cuda_fakes import FakeGpu, install_bindings

import roiline.engines.cuda.kernels as device_kernels
from roiline.ops.kernel_build import compile_host_library
from roiline.ops.kernel_source import translation_unit


class AnyKernel(dict[str, tuple[type, ...]]):
    """Knows every kernel; which types its arguments have is known once a launch is laid out."""

    def __contains__(self, name: object) -> bool:
        return True


def main() -> None:
    scripts, folder = Path(sys.argv[1]), Path(sys.argv[2])
    sys.path.insert(0, str(scripts))
    import gpu_check

    gpu = FakeGpu()
    gpu.kernels = AnyKernel()
    libraries: dict[str, Any] = {}
    plain_rule = device_kernels.launch_rule

    def lay_out(node: Any, inputs: Any, addresses: Any) -> Any:
        launch, arguments = plain_rule(node, inputs, addresses)
        gpu.kernels[node.kernel.entry] = tuple(type(argument) for argument in arguments)
        source = translation_unit(node, [array.dtype.name for array in inputs])
        libraries["now"] = ctypes.CDLL(str(path_of(source)))
        return launch, arguments

    def path_of(source: str) -> Path:
        return folder / f"{hashlib.sha256(source.encode()).hexdigest()[:16]}.so"

    def compile_source(source: str, *, compiler: str) -> str:
        compile_host_library(source, path_of(source))
        return source

    def execute(name: str, values: tuple[int, ...]) -> None:
        library = libraries["now"]
        memory = np.zeros(1 << 16, np.uint8)
        if hasattr(library, "block_memory"):
            ctypes.c_void_p.in_dll(library, "block_memory").value = memory.ctypes.data
        library[name](
            *(
                ctypes.c_void_p(gpu.view(value, 1).ctypes.data) if kind is np.uint64 else ctypes.c_int32(value)
                for kind, value in zip(gpu.kernels[name], values, strict=True)
            )
        )

    gpu.execute = execute
    patch = pytest.MonkeyPatch()
    install_bindings(patch, gpu)
    patch.setattr(device_kernels, "launch_rule", lay_out)
    patch.setattr(gpu_check, "compile_ptx", compile_source)
    patch.setattr(gpu_check, "find_device_compiler", lambda: "nvrtc")
    patch.setattr(gpu_check, "compiler_version", lambda compiler: 13050)
    patch.setattr(gpu_check, "missing_engine", lambda engine: "not tried on a fake")
    report = gpu_check.Report("device")
    with ExitStack() as stack:
        bench = gpu_check.open_bench("device", gpu_check.SMALL, 2, report, stack)
        for name, check in gpu_check.list_checks(bench, folder, report):
            gpu_check.run_check(name, check, report)
    gpu_check.print_kernels(report)
    (folder / "check.json").write_text(json.dumps({"machine": report.machine, "entries": report.entries}, default=str))


if __name__ == "__main__":
    main()
