"""Which devices a run uses: what `--gpus` and `--cpu-workers` mean on this machine.

A worker is given one GPU through its environment, before anything of CUDA is loaded, and sees it as its number 0; it runs on the cores
near it. CPU workers share the cores that this process may run on. A GPU that is split counts as its parts, a worker each.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from roiline.core.errors import EngineError, UsageError
from roiline.engines.protocol import Device
from roiline.infer.cores import CORES_VARIABLE, near_cores, text_from_cores
from roiline.infer.nvidia_smi import Gpu, list_gpus
from roiline.infer.request import Slot

_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
_UUID = re.compile(r"(GPU|MIG)-[0-9A-Za-z/-]+")
_MOST_GPUS = 1024
_WORKERS_A_CORE = 4
_SPARE_WORKERS = 16


@dataclass(frozen=True, slots=True)
class _Place:
    """Is what one GPU worker is given: the UUID that masks all other GPUs, a name for people, and the GPU that it is (a part of)."""

    uuid: str
    label: str
    gpu: Gpu


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
        EngineError: GPUs are asked and there is no driver or no GPU, or the driver does not answer.
    """
    if gpus is not None and cpu_workers is not None:
        raise UsageError("--gpus and --cpu-workers exclude each other")
    if cpu_workers is not None:
        return cpu_slots(cpu_workers)
    present = list_gpus()
    if gpus is None:
        return _gpu_slots([place for gpu in present for place in _places(gpu)]) or cpu_slots(1)
    asked = parse_gpus(gpus)
    if not present:
        raise EngineError(
            f"--gpus {gpus}: this machine has no NVIDIA driver or no GPU, so none can be used; run on the CPU with --cpu-workers N"
        )
    known = _known_places(present)
    unknown = [name for name in asked if name not in known]
    if unknown:
        raise UsageError(f"--gpus {gpus}: there is no GPU {', '.join(unknown)}; this machine has {_describe(present)}")
    places = [place for name in asked for place in known[name]]
    twice = [uuid for uuid, times in Counter(place.uuid for place in places).items() if times > 1]
    if twice:
        raise UsageError(f"--gpus {gpus}: names a GPU twice, by number and by UUID: {', '.join(twice)}")
    return _gpu_slots(places)


def _places(gpu: Gpu) -> list[_Place]:
    """Returns the places on a GPU: itself, or its parts where it is split."""
    whole = [_Place(gpu.uuid, f"gpu {gpu.index}", gpu)]
    parts = [_Place(part.uuid, f"gpu {gpu.index} part {number}", gpu) for number, part in enumerate(gpu.parts)]
    return parts or whole


def _known_places(present: Sequence[Gpu]) -> dict[str, list[_Place]]:
    """Returns what every name means that `--gpus` takes: numbers, UUIDs of GPUs and those of their parts."""
    known: dict[str, list[_Place]] = {}
    for gpu in present:
        places = _places(gpu)
        known |= {str(gpu.index): places, gpu.uuid: places, **{place.uuid: [place] for place in places}}
    return known


def _describe(present: Sequence[Gpu]) -> str:
    return ", ".join(
        f"{gpu.index} ({gpu.name}, {gpu.uuid}{''.join(f', {part.profile} {part.uuid}' for part in gpu.parts)})"
        for gpu in present
    )


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


def _gpu_slots(places: Sequence[_Place]) -> tuple[Slot, ...]:
    """Returns the slots of GPU workers: each on the cores near its GPU, of which it takes its share as threads."""
    cores = [near_cores(place.gpu.pci_bus_id) for place in places]
    neighbours = Counter(cores)
    return tuple(
        Slot(
            Device("cuda", index=0, threads=max(1, len(near) // neighbours[near])),
            _gpu_environment(place, near),
            place.label,
        )
        for place, near in zip(places, cores, strict=True)
    )


def _gpu_environment(place: _Place, cores: frozenset[int]) -> dict[str, str]:
    """Returns what a worker finds in its environment: its GPU alone, numbered as the driver's tool does, and its cores."""
    return {
        "CUDA_VISIBLE_DEVICES": place.uuid,
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        CORES_VARIABLE: text_from_cores(cores),
    }


def _share_cores(workers: int) -> list[int]:
    """Returns how many threads each of N workers has; with more workers than cores, one each."""
    if not workers:
        return []
    share, rest = divmod(len(os.sched_getaffinity(0)), workers)
    return [max(1, share + (index < rest)) for index in range(workers)]
