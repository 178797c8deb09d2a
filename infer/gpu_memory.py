"""Whether the GPUs of a run have room for its models, asked before any worker starts.

What a model needs beside its weights depends on the engine and on the pictures, so this is a lower bound: a GPU that somebody else has
filled is named at once, with who holds its memory, instead of failing in the middle of opening.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from roiline.core.errors import EngineError
from roiline.infer.nvidia_smi import Gpu, GpuProcess, list_gpus, list_processes
from roiline.infer.request import Slot

OVERHEAD_MB = 500
"""What CUDA's own context and libraries take of a GPU before any model."""

_MIB = 1 << 20


def check_free_memory(slots: Sequence[Slot], models: Sequence[Path]) -> None:
    """Checks that every whole GPU among the slots has free what CUDA and the models' weights need at least.

    Parts of a split GPU are not asked: the driver's tool tells the memory of whole ones.

    Raises:
        EngineError: a GPU has less; the message says how much is missing, and which processes hold its memory.
    """
    workers = [slot.environment.get("CUDA_VISIBLE_DEVICES", "") for slot in slots if slot.device.kind == "cuda"]
    if not workers:
        return
    needed = OVERHEAD_MB + sum(-(-model.stat().st_size // _MIB) for model in models)
    short = [gpu for gpu in list_gpus() if gpu.uuid in workers and gpu.free_mb is not None and gpu.free_mb < needed]
    if short:
        processes = list_processes()
        lines = "\n  ".join(_describe(gpu, processes) for gpu in short)
        raise EngineError(
            f"not enough free GPU memory: a worker needs at least {needed} MiB ({OVERHEAD_MB} for CUDA, the rest for the weights of "
            f"{', '.join(model.name for model in models)})\n  {lines}\nfree it, or choose other GPUs with --gpus"
        )


def _describe(gpu: Gpu, processes: Sequence[GpuProcess]) -> str:
    users = [
        f"process {process.pid} ({process.name}) holds {'an unknown part' if process.used_mb is None else f'{process.used_mb} MiB'}"
        for process in processes
        if process.gpu_uuid == gpu.uuid
    ]
    who = ", ".join(users) or "the driver names no process (another container or user may hold it)"
    return f"gpu {gpu.index} ({gpu.name}, {gpu.uuid}): {gpu.free_mb} of {gpu.total_mb} MiB are free; {who}"
