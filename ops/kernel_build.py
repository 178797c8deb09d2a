"""Compilers for kernel sources: PTX by NVRTC or nvcc, and a shared library for the host by g++.

Nothing is chosen behind the caller's back: a compiler is named, `find_device_compiler` says which one there is, and an absent one is an
error. Contraction (fused multiply-add) is off on both sides, so that a decision (a level, an overlap against a threshold) is the same on
a device as on the host, where it is held against the references; kernels here are bound by memory, not by arithmetic.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, TypeAlias

from roiline.core.errors import EngineError

DeviceCompiler: TypeAlias = Literal["nvrtc", "nvcc"]
Sanitizer: TypeAlias = Literal["address", "thread"]

DEVICE_ARCHITECTURE = "compute_80"
"""The virtual architecture of shipped PTX: drivers compile it for every newer GPU."""

_DEVICE_FLAGS = ("--std=c++17", "-fmad=false")
_HOST_FLAGS = ("-std=c++17", "-O1", "-ffp-contract=off", "-fPIC", "-shared", "-x", "c++", "-Wall", "-Wextra", "-Werror")
_HOST_LENIENT = ("-Wno-unused-function", "-Wno-unused-parameter", "-Wno-unused-variable", "-Wno-type-limits")
_SANITIZERS = {
    "address": ("-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
    "thread": ("-g", "-fsanitize=thread"),
}


def find_device_compiler() -> DeviceCompiler:
    """Returns the compiler for PTX that this machine has; NVRTC before nvcc.

    Raises:
        EngineError: there is none.
    """
    try:
        _open_nvrtc()
    except EngineError as error:
        if shutil.which("nvcc"):
            return "nvcc"
        raise EngineError(
            f"no compiler for CUDA kernels: {error}; nvcc, which would do as well, is not on the PATH"
        ) from error
    return "nvrtc"


def compile_ptx(source: str, architecture: str = DEVICE_ARCHITECTURE, *, compiler: DeviceCompiler) -> str:
    """Returns the PTX of a translation unit for a virtual architecture (`compute_80`).

    Raises:
        EngineError: the compiler is absent or refuses the source.
    """
    return (
        _compile_with_nvrtc(source, architecture) if compiler == "nvrtc" else _compile_with_nvcc(source, architecture)
    )


def _open_nvrtc() -> Any:
    """Returns NVRTC's bindings; they load the library at the first call, so one is made."""
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError) as error:
        raise EngineError(
            f"NVRTC cannot be loaded ({str(error).strip()}); install cuda-bindings and nvidia-cuda-nvrtc (both are in roiline[tensorrt])"
        ) from error
    return nvrtc


def _compile_with_nvrtc(source: str, architecture: str) -> str:
    nvrtc = _open_nvrtc()

    def call(name: str, *arguments: Any) -> Any:
        status, *results = getattr(nvrtc, name)(*arguments)
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise EngineError(
                f"NVRTC failed in {name}: {status.name}\n{log() if name == 'nvrtcCompileProgram' else ''}"
            )
        return results[0] if results else None

    def log() -> str:
        text = bytearray(call("nvrtcGetProgramLogSize", program))
        call("nvrtcGetProgramLog", program, text)
        return text.decode(errors="replace").rstrip("\0\n")

    program = call("nvrtcCreateProgram", source.encode(), b"kernel.cu", 0, [], [])
    try:
        flags = [f"--gpu-architecture={architecture}".encode(), *(flag.encode() for flag in _DEVICE_FLAGS)]
        call("nvrtcCompileProgram", program, len(flags), flags)
        ptx = bytearray(call("nvrtcGetPTXSize", program))
        call("nvrtcGetPTX", program, ptx)
        return ptx.decode().rstrip("\0")
    finally:
        call("nvrtcDestroyProgram", program)


def _compile_with_nvcc(source: str, architecture: str) -> str:
    with TemporaryDirectory(prefix="roiline-nvcc-") as folder:
        written, ptx = Path(folder) / "kernel.cu", Path(folder) / "kernel.ptx"
        written.write_text(source, encoding="utf-8")
        _call_compiler("nvcc", [f"-arch={architecture}", *_DEVICE_FLAGS, "--ptx", str(written), "-o", str(ptx)])
        return ptx.read_text(encoding="utf-8")


def compile_host_library(source: str, target: Path, *, threads: int = 1, sanitizer: Sanitizer | None = None) -> None:
    """Compiles a translation unit into the shared library `target`; `threads` work on an item of a cooperative kernel.

    Raises:
        EngineError: g++ is absent or refuses the source.
    """
    written = target.with_suffix(".cpp")
    written.write_text(source, encoding="utf-8")
    flags = [*_HOST_FLAGS, *_HOST_LENIENT, f"-DHOST_THREADS={threads}", *(_SANITIZERS[sanitizer] if sanitizer else ())]
    _call_compiler("g++", [*flags, *(["-pthread"] if threads > 1 else []), str(written), "-o", str(target)])


def _call_compiler(compiler: str, arguments: Sequence[str]) -> None:
    if shutil.which(compiler) is None:
        raise EngineError(f"the compiler {compiler} was asked for and is not on the PATH")
    result = subprocess.run([compiler, *arguments], capture_output=True, text=True, check=False)
    if result.returncode:
        raise EngineError(
            f"{compiler} refused a kernel source (exit code {result.returncode}):\n{result.stderr[-4000:]}"
        )
