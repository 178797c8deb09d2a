"""Which devices a run uses: what `--gpus` and `--cpu-workers` mean on this machine.

A worker is given one GPU through its environment, before anything of CUDA is loaded, and sees it as its number 0. CPU workers share the
cores that this process may run on. Asking the driver's own tool keeps CUDA out of the parent process.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass

from roiline.core.errors import EngineError, UsageError
from roiline.engines.protocol import Device
from roiline.infer.request import Slot

_QUERY = ("nvidia-smi", "--query-gpu=index,uuid,name", "--format=csv,noheader")
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
_UUID = re.compile(r"(GPU|MIG)-[0-9A-Za-z/-]+")
_MOST_GPUS = 1024
_WORKERS_A_CORE = 4
_SPARE_WORKERS = 16


@dataclass(frozen=True, slots=True)
class Gpu:
    """Is one GPU of this machine as the driver numbers it."""

    index: int
    uuid: str
    name: str


def list_gpus() -> tuple[Gpu, ...]:
    """Returns the GPUs that the driver knows; none where there is no driver.

    Raises:
        EngineError: a driver is installed and does not answer.
    """
    if shutil.which(_QUERY[0]) is None:
        return ()
    try:
        answer = subprocess.run(_QUERY, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise EngineError(f"the NVIDIA driver does not answer: {error}") from error
    rows = [[cell.strip() for cell in line.split(",", 2)] for line in answer.stdout.splitlines() if line.strip()]
    return tuple(Gpu(int(index), uuid, name) for index, uuid, name in rows)


def parse_gpus(text: str) -> tuple[str, ...]:
    """Returns the GPUs that a list names, as numbers or UUIDs: `0-3`, `0,2`, `0-1,3`, `GPU-8f...`.

    Raises:
        UsageError: the list is empty, cannot be read, or names a GPU twice.
    """
    names: list[str] = []
    for part in (piece.strip() for piece in text.split(",")):
        match = _RANGE.fullmatch(part)
        if match is not None:
            first, last = int(match[1]), int(match[2] or match[1])
            if not first <= last < _MOST_GPUS:
                raise UsageError(f"--gpus {text}: {part} is no range of GPU numbers")
            names += [str(index) for index in range(first, last + 1)]
        elif _UUID.fullmatch(part):
            names.append(part)
        else:
            raise UsageError(f"--gpus {text}: {part!r} is neither a number, a range like 0-3, nor a GPU's UUID")
    if len(set(names)) != len(names):
        raise UsageError(f"--gpus {text}: names a GPU twice")
    return tuple(names)


def choose_slots(gpus: str | None, cpu_workers: int | None) -> tuple[Slot, ...]:
    """Returns the places of the workers: the asked GPUs, or N CPU workers, or (nothing asked) all GPUs, else one CPU worker.

    Raises:
        UsageError: both are asked, or a GPU that this machine does not have; the message lists those that it has.
        EngineError: GPUs are asked and there is no driver.
    """
    if gpus is not None and cpu_workers is not None:
        raise UsageError("--gpus and --cpu-workers exclude each other")
    if cpu_workers is not None:
        return cpu_slots(cpu_workers)
    present = list_gpus()
    if gpus is None:
        return _gpu_slots([(gpu.uuid, f"gpu {gpu.index}") for gpu in present]) or cpu_slots(1)
    asked = parse_gpus(gpus)
    if not present:
        raise EngineError(
            f"--gpus {gpus}: this machine has no NVIDIA driver, so no GPU can be used; run on the CPU with --cpu-workers N"
        )
    known = {str(gpu.index): gpu.uuid for gpu in present} | {gpu.uuid: gpu.uuid for gpu in present}
    unknown = [name for name in asked if name not in known and not name.startswith("MIG-")]
    if unknown:
        listing = ", ".join(f"{gpu.index} ({gpu.name}, {gpu.uuid})" for gpu in present)
        raise UsageError(f"--gpus {gpus}: there is no GPU {', '.join(unknown)}; this machine has {listing}")
    return _gpu_slots([(known.get(name, name), f"gpu {name}") for name in asked])


def device_from_text(text: str) -> Device:
    """Returns the device that `cpu`, `cuda` or `cuda:N` means in this process.

    Raises:
        UsageError: it is none of these.
    """
    kind, _, index = text.partition(":")
    if kind not in ("cpu", "cuda") or (index and not (kind == "cuda" and index.isdecimal())):
        raise UsageError(f"device {text!r}: expected cpu, cuda or cuda:N")
    return Device(kind, int(index or 0))


def cpu_slots(workers: int) -> tuple[Slot, ...]:
    """Returns N places on the CPU, each with its share of the cores as threads.

    Raises:
        UsageError: N is below 1, or far beyond what the cores can carry.
    """
    cores = len(os.sched_getaffinity(0))
    most = _WORKERS_A_CORE * cores + _SPARE_WORKERS
    if not 1 <= workers <= most:
        raise UsageError(
            f"--cpu-workers: expected at least 1 and at most {most} (for {cores} usable cores), got {workers}"
        )
    return tuple(
        Slot(Device("cpu", threads=threads), {"CUDA_VISIBLE_DEVICES": ""}, f"cpu {index}")
        for index, threads in enumerate(_share_cores(workers))
    )


def _gpu_slots(gpus: list[tuple[str, str]]) -> tuple[Slot, ...]:
    return tuple(
        Slot(Device("cuda", index=0, threads=threads), {"CUDA_VISIBLE_DEVICES": uuid}, label)
        for (uuid, label), threads in zip(gpus, _share_cores(len(gpus)), strict=True)
    )


def _share_cores(workers: int) -> list[int]:
    """Returns how many threads each of N workers has; with more workers than cores, one each."""
    if not workers:
        return []
    share, rest = divmod(len(os.sched_getaffinity(0)), workers)
    return [max(1, share + (index < rest)) for index in range(workers)]
