"""How busy the GPUs of a run are: use and memory, sampled through NVIDIA's management library while the workers work.

The library (package nvidia-ml-py) asks the driver and makes no CUDA context, so the parent may use it. Where it is missing, or a GPU does
not tell something (parts of a split one tell no use), the record says so: nothing is made up.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import numpy as np

from roiline.infer.request import Slot

PERIOD_S = 0.5
_MIB = 1 << 20


@dataclass(slots=True)
class _Watched:
    """Is one GPU that is sampled: percent of the time in which a kernel ran, and MiB that are taken."""

    uuid: str
    label: str
    handle: Any
    name: str
    total_mb: float
    use: list[float] = field(default_factory=list)
    memory_mb: list[float] = field(default_factory=list)


class GpuMonitor:
    """Samples the GPUs of a run's slots in a thread of its own, from `with` to its end; `report` is the content for timing.json."""

    def __init__(self, slots: Sequence[Slot], *, period_s: float = PERIOD_S) -> None:
        self._slots = [slot for slot in slots if slot.device.kind == "cuda"]
        self._period_s = period_s
        self._watched: list[_Watched] = []
        self._notes: list[str] = []
        self._library: Any = None
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> GpuMonitor:
        if self._slots:
            self._open()
        if self._watched:
            self._thread = threading.Thread(target=self._sample_on, name="gpu-monitor", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        if self._library is not None:
            self._ask(self._library.nvmlShutdown)

    def report(self) -> dict[str, object]:
        """Returns a record of every GPU, and why something is missing; nothing at all for a run without GPUs."""
        if not self._slots:
            return {}
        return {"gpus": [_summarize(watched) for watched in self._watched], "gpu_notes": [*dict.fromkeys(self._notes)]}

    def _open(self) -> None:
        try:
            import pynvml
        except ImportError:
            self._notes.append("not measured: the package nvidia-ml-py is not installed (pip install 'roiline[gpu]')")
            return
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            self._notes.append(f"not measured: {error}")
            return
        self._library = pynvml
        for slot in self._slots:
            watched = self._ask(functools.partial(self._watch, slot))
            if watched is not None:
                self._watched.append(watched)

    def _watch(self, slot: Slot) -> _Watched:
        uuid = slot.environment["CUDA_VISIBLE_DEVICES"]
        handle = self._library.nvmlDeviceGetHandleByUUID(uuid)
        total = self._library.nvmlDeviceGetMemoryInfo(handle).total / _MIB
        return _Watched(uuid, slot.label, handle, str(self._library.nvmlDeviceGetName(handle)), total)

    def _sample_on(self) -> None:
        while not self._ended.wait(self._period_s):
            for watched in self._watched:
                self._sample(watched)

    def _sample(self, watched: _Watched) -> None:
        library = self._library
        use = self._ask(lambda: float(library.nvmlDeviceGetUtilizationRates(watched.handle).gpu))
        if use is not None:
            watched.use.append(use)
        memory = self._ask(lambda: library.nvmlDeviceGetMemoryInfo(watched.handle).used / _MIB)
        if memory is not None:
            watched.memory_mb.append(memory)

    def _ask(self, question: Callable[[], Any]) -> Any:
        """Asks the library; what it cannot say becomes a note and None, for a run does not end over its own measuring."""
        try:
            return question()
        except self._library.NVMLError as error:
            self._notes.append(f"not measured: {error}")
            return None


def _summarize(watched: _Watched) -> dict[str, object]:
    return {
        "device": watched.label,
        "uuid": watched.uuid,
        "name": watched.name,
        "use_percent": _statistics(watched.use),
        "memory_mib": {**_statistics(watched.memory_mb), "total": round(watched.total_mb)},
    }


def _statistics(values: Sequence[float]) -> dict[str, float]:
    """Returns count, mean, median and maximum; the count alone where there are no values."""
    if not values:
        return {"count": 0}
    return {
        "count": len(values),
        "mean": round(float(np.mean(values)), 1),
        "p50": float(np.median(values)),
        "max": float(np.max(values)),
    }
