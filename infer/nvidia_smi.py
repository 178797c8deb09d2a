"""What the driver's own tool says of this machine's GPUs: what they are, how they are split, what is free, and who uses them.

Asking the tool keeps CUDA out of the parent process. Fields that a GPU does not have (the tool writes [N/A]) are None.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from roiline.core.errors import EngineError

TOOL = "nvidia-smi"
_FIELDS = ("index", "uuid", "pci.bus_id", "memory.total", "memory.free", "mig.mode.current", "name")
_APP_FIELDS = ("gpu_uuid", "pid", "used_memory", "process_name")
_FORMAT = "--format=csv,noheader,nounits"
_PATIENCE_S = 60
_NO_GPU = "No devices were found"
_ADVICE = "; run on the CPU with --cpu-workers N, or repair the driver"
_LISTED_GPU = re.compile(r"GPU \d+:.*\(UUID: (GPU-[^)\s]+)\)")
_LISTED_PART = re.compile(r"\s+MIG (\S+)\s+Device\s+\d+:\s+\(UUID: (MIG-[^)\s]+)\)")


@dataclass(frozen=True, slots=True)
class MigPart:
    """Is one part of a GPU that is split (multi-instance GPU): its UUID and its profile, as `1g.10gb`."""

    uuid: str
    profile: str


@dataclass(frozen=True, slots=True)
class Gpu:
    """Is one GPU of this machine as the driver numbers it; `parts` are there where it is split."""

    index: int
    uuid: str
    name: str
    pci_bus_id: str = ""
    total_mb: int | None = None
    free_mb: int | None = None
    parts: tuple[MigPart, ...] = ()


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """Is a process that holds memory of a GPU."""

    gpu_uuid: str
    pid: int
    used_mb: int | None
    name: str


def list_gpus() -> tuple[Gpu, ...]:
    """Returns the GPUs that the driver knows; none where there is no driver, or it says that it has none.

    Raises:
        EngineError: a driver is installed and does not answer, or not as expected.
    """
    if shutil.which(TOOL) is None:
        return ()
    rows = _query("--query-gpu", _FIELDS)
    split = any(row["mig.mode.current"] == "Enabled" for row in rows)
    parts = _list_parts() if split else {}
    return tuple(
        Gpu(
            index=_integer(row["index"], "index"),
            uuid=row["uuid"],
            name=row["name"],
            pci_bus_id=_short_bus_id(row["pci.bus_id"]),
            total_mb=_number(row["memory.total"]),
            free_mb=_number(row["memory.free"]),
            parts=tuple(parts.get(row["uuid"], ())),
        )
        for row in rows
    )


def list_processes() -> tuple[GpuProcess, ...]:
    """Returns the processes that hold memory of GPUs, as far as this user may see them.

    Raises:
        EngineError: the driver does not answer.
    """
    rows = _query("--query-compute-apps", _APP_FIELDS)
    return tuple(
        GpuProcess(row["gpu_uuid"], _integer(row["pid"], "pid"), _number(row["used_memory"]), row["process_name"])
        for row in rows
    )


def _query(kind: str, fields: Sequence[str]) -> list[dict[str, str]]:
    lines = _ask(f"{kind}={','.join(fields)}", _FORMAT).splitlines()
    rows = [[cell.strip() for cell in line.split(",", len(fields) - 1)] for line in lines if line.strip()]
    for row in rows:
        if len(row) != len(fields):
            raise EngineError(f"{TOOL}: expected a line of {', '.join(fields)}, got {', '.join(row)!r}")
    return [dict(zip(fields, row, strict=True)) for row in rows]


def _ask(*arguments: str) -> str:
    try:
        answer = subprocess.run(
            [TOOL, *arguments], capture_output=True, text=True, errors="replace", timeout=_PATIENCE_S, check=True
        )
    except subprocess.CalledProcessError as error:
        if error.stdout.strip() == _NO_GPU:  # some drivers' tools call that a failure, others do not
            return ""
        said = " ".join((error.stdout + error.stderr).split())
        raise EngineError(
            f"the NVIDIA driver does not answer: {error}{f' ({said})' if said else ''}{_ADVICE}"
        ) from error
    except (OSError, subprocess.SubprocessError) as error:
        raise EngineError(f"the NVIDIA driver does not answer: {error}{_ADVICE}") from error
    return "" if answer.stdout.strip() == _NO_GPU else answer.stdout


def _list_parts() -> Mapping[str, list[MigPart]]:
    """Returns the parts of every GPU by its UUID."""
    parts: dict[str, list[MigPart]] = {}
    current: list[MigPart] = []
    for line in _ask("-L").splitlines():
        gpu, part = _LISTED_GPU.match(line), _LISTED_PART.match(line)
        if gpu is not None:
            current = parts.setdefault(gpu[1], [])
        elif part is not None:
            current.append(MigPart(part[2], part[1]))
    return parts


def _number(text: str) -> int | None:
    """Returns a number of mebibytes, None where the tool has none."""
    return int(text) if text.isdecimal() else None


def _integer(text: str, field: str) -> int:
    if not text.isdecimal():
        raise EngineError(f"{TOOL}: expected a number as {field}, got {text!r}")
    return int(text)


def _short_bus_id(text: str) -> str:
    """Returns a PCI bus id as the kernel writes it: four digits of domain, lower case."""
    domain, _, rest = text.lower().partition(":")
    return f"{domain[-4:]}:{rest}" if rest else ""
