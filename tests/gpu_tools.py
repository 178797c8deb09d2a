"""A driver's tool and a management library that are none: what a test says, they answer."""

# ruff: noqa: N802 - the names are the library's

from __future__ import annotations

import os
import stat
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def gpu_line(index: int, uuid: str, *, free: int = 143000, mig: str = "Disabled", bus: str = "00000000:1B:00.0") -> str:
    """One line of the tool's answer about GPUs."""
    return f"{index}, {uuid}, {bus}, 143771, {free}, {mig}, NVIDIA H200, 141 GB"


def install_tool(
    folder: Path, monkeypatch: Any, gpus: Sequence[str], *, listing: Sequence[str] = (), apps: Sequence[str] = ()
) -> None:
    """Puts an `nvidia-smi` on the path that answers with these lines."""
    answers = {"--query-gpu=*": gpus, "-L": listing, "--query-compute-apps=*": apps}
    cases = "\n".join(
        f"  {pattern}) {'; '.join(f'echo {_quote(line)}' for line in lines) or ':'} ;;"
        for pattern, lines in answers.items()
    )
    tool = folder / "nvidia-smi"
    tool.write_text(f'#!/bin/sh\ncase "$1" in\n{cases}\n  *) exit 6 ;;\nesac\n')
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def _quote(text: str) -> str:
    return "'" + text + "'"


class FakeNvml(types.ModuleType):
    """Is `pynvml` for GPUs by UUID: `use` percent and `memory` (used, total) in MiB; those without `use` do not tell it."""

    class NVMLError(Exception):
        pass

    def __init__(self, gpus: dict[str, dict[str, Any]], *, starts: bool = True) -> None:
        super().__init__("pynvml")
        self.gpus, self.starts = gpus, starts
        self.open = False
        self.asked = 0

    def nvmlInit(self) -> None:
        if not self.starts:
            raise self.NVMLError("Driver Not Loaded")
        self.open = True

    def nvmlShutdown(self) -> None:
        self.open = False

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> dict[str, Any]:
        if uuid not in self.gpus:
            raise self.NVMLError("Not Found")
        return self.gpus[uuid]

    def nvmlDeviceGetName(self, gpu: dict[str, Any]) -> str:
        return "NVIDIA H200"

    def nvmlDeviceGetMemoryInfo(self, gpu: dict[str, Any]) -> Any:
        used, total = gpu["memory"]
        return types.SimpleNamespace(used=used << 20, total=total << 20)

    def nvmlDeviceGetUtilizationRates(self, gpu: dict[str, Any]) -> Any:
        self.asked += 1
        if "use" not in gpu:
            raise self.NVMLError("Not Supported")
        return types.SimpleNamespace(gpu=gpu["use"])


def install_nvml(monkeypatch: Any, library: FakeNvml | None) -> None:
    """Puts a management library in place; None: it is not installed."""
    monkeypatch.setitem(sys.modules, "pynvml", library)
