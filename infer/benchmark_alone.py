"""The parent's side of the probes: one a worker, started as workers are, told what to measure, and ended."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

import roiline.core.errors
from roiline.core.errors import EngineError, RoilineError, WorkerError
from roiline.infer.benchmark_machine import Ceilings
from roiline.infer.benchmark_probe import EngineRound, NetworkCost, Opened, Order, ProbeSetup, Refusal, StageAlone
from roiline.infer.messages import ImageWork, Setup
from roiline.infer.request import Slot
from roiline.infer.transport import StartWorkerHandle, WorkerHandle, start_process

_PROBE_CODE = "from roiline.infer.benchmark_probe import main; main()"
_LEAVE_S = 10.0


@dataclass(frozen=True, slots=True)
class EngineAlone:
    """Is one round of all workers' engines at the same time: `images` of all, `seconds` of the slowest, and every call's seconds."""

    images: int
    seconds: float
    calls_s: tuple[float, ...]

    @property
    def images_per_s(self) -> float:
        """Is the rate of all engines together."""
        return self.images / self.seconds if self.seconds > 0 else 0.0


class Probes:
    """Holds one probe a worker; close it (it is a context manager), and no process is left."""

    def __init__(
        self,
        slots: Sequence[Slot],
        worker: Setup,
        images: Sequence[ImageWork],
        *,
        rounds: int,
        folder: Path,
        start: StartWorkerHandle = start_process,
    ) -> None:
        self._handles: list[WorkerHandle] = []
        try:
            for number, slot in enumerate(slots):
                handle = start(number, slot, code=_PROBE_CODE)
                self._handles.append(handle)
                setup: Any = ProbeSetup(replace(worker, device=slot.device), tuple(images), rounds, folder)
                handle.send(setup)
            self.opened: tuple[Opened, ...] = tuple(self._receive(handle) for handle in self._handles)
        except BaseException:
            self.close()
            raise

    def run_engines(self) -> EngineAlone:
        """Runs every worker's engine over its batches once, all at the same time."""
        for handle in self._handles:
            self._order(handle, "engine")
        rounds: list[EngineRound] = [self._receive(handle) for handle in self._handles]
        return EngineAlone(
            sum(one.images for one in rounds),
            max(one.seconds for one in rounds),
            tuple(call for one in rounds for call in one.calls_s),
        )

    def run_stages(self) -> dict[str, StageAlone]:
        """Runs every stage alone, in the first worker's place."""
        stages: dict[str, StageAlone] = self._ask("stages")
        return stages

    def run_network(self) -> NetworkCost | None:
        """Profiles and counts the network, in the first worker's place."""
        cost: NetworkCost | None = self._ask("network")
        return cost

    def measure_machine(self) -> Ceilings | None:
        """Measures the ceilings, in the first worker's place."""
        ceilings: Ceilings | None = self._ask("ceilings")
        return ceilings

    def close(self) -> None:
        """Tells every probe to stop, and ends those that do not."""
        for handle in self._handles:
            with contextlib.suppress(OSError):
                self._order(handle, "stop")
        for handle in self._handles:
            if handle.join(_LEAVE_S) is None:
                handle.kill()
                handle.join(_LEAVE_S)
            handle.close()
        self._handles.clear()

    def __enter__(self) -> Probes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ask(self, order: Order) -> Any:
        self._order(self._handles[0], order)
        return self._receive(self._handles[0])

    def _order(self, handle: WorkerHandle, order: Order) -> None:
        message: Any = order
        handle.send(message)

    def _receive(self, handle: WorkerHandle) -> Any:
        try:
            answer: Any = handle.receive()
        except EOFError as error:
            raise WorkerError(f"the benchmark's {handle.name} is gone: {handle.join(_LEAVE_S)}") from error
        if isinstance(answer, Refusal):
            kind: type[RoilineError] = getattr(roiline.core.errors, answer.kind, EngineError)
            raise kind(answer.text)
        return answer
