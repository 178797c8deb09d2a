"""A Ray cluster as a place for workers: how this process gets to it, which machines it has, and which workers that makes.

Ray decides on which machine a worker comes to run. What is decided here is how many there are and how large each is: one a GPU, else
equal shares of CPUs, so that every worker fits wherever there is room for one.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from roiline.core.errors import EngineError, UsageError
from roiline.engines.protocol import Device
from roiline.infer.request import Slot

LOG = logging.getLogger("roiline.cluster")

OWN_CLUSTER = "local"
RUNNING_CLUSTER = "auto"


@dataclass(frozen=True, slots=True)
class Machine:
    """Is one machine of a cluster: its name, and the CPUs and GPUs that Ray may give away there."""

    name: str
    cpus: int
    gpus: int


def connect(address: str) -> Any:
    """Connects this process with a cluster and returns the module `ray`; a process that is connected already stays so.

    `auto` is the cluster that runs on this machine or that RAY_ADDRESS names, `local` starts one on this machine that goes with this
    process, everything else is an address as Ray has them.

    Raises:
        EngineError: Ray is not installed, or no cluster answers.
        UsageError: the process is connected with another cluster.
    """
    try:
        import ray
    except ImportError as error:
        raise EngineError(f"--cluster {address}: Ray is not installed ({error}); pip install 'roiline[ray]'") from error
    if ray.is_initialized():
        _check_address(ray, address)
        return ray
    choices = {"include_dashboard": False} if address == OWN_CLUSTER else {}
    try:
        with _signals_kept():
            ray.init(address=address, logging_level=logging.WARNING, **choices)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        raise EngineError(
            f"--cluster {address}: no Ray cluster answers ({_first_line(error)}); start one with `ray start --head`, "
            f"or use --cluster {OWN_CLUSTER} for one on this machine"
        ) from error
    return ray


def choose_cluster_slots(address: str, gpus: str | None, cpu_workers: int | None) -> tuple[Slot, ...]:
    """Returns the places of the workers on a cluster: N shares of its CPUs, or (nothing asked) all GPUs, else a share a machine.

    Raises:
        UsageError: GPUs are asked by number, or more workers than the cluster has CPUs.
        EngineError: Ray is not installed, no cluster answers, or it has nothing to give.
    """
    if gpus is not None:
        raise UsageError(
            f"--gpus {gpus} names GPUs of this machine; on a cluster every GPU is used, or --cpu-workers N"
        )
    machines = list_machines(connect(address))
    slots = place_workers(machines, cpu_workers)
    LOG.info(
        "cluster: %d workers on %d machines (%s)", len(slots), len(machines), ", ".join(one.name for one in machines)
    )
    return slots


def list_machines(ray: Any) -> tuple[Machine, ...]:
    """Returns the machines of the cluster that are alive, by name."""
    alive = [(node["NodeManagerHostname"], node["Resources"]) for node in ray.nodes() if node["Alive"]]
    return tuple(
        sorted(
            (Machine(name, int(has.get("CPU", 0)), int(has.get("GPU", 0))) for name, has in alive),
            key=lambda machine: machine.name,
        )
    )


def place_workers(machines: Sequence[Machine], cpu_workers: int | None) -> tuple[Slot, ...]:
    """Returns the workers that a cluster carries; a worker's threads are the CPUs that it takes.

    Raises:
        UsageError: `cpu_workers` is below 1 or more than the CPUs.
        EngineError: there is no machine, or none with a CPU or a GPU to give.
    """
    with_gpus = [machine for machine in machines if machine.gpus > 0]
    if cpu_workers is None and with_gpus:
        share = min(machine.cpus // machine.gpus for machine in with_gpus)
        count = sum(machine.gpus for machine in with_gpus)
        return tuple(Slot(Device("cuda", 0, share), {}, f"cluster gpu {number}") for number in range(count))
    sizes = [machine.cpus for machine in machines if machine.cpus > 0]
    if not sizes:
        raise EngineError("the cluster has no CPU and no GPU to give; was it started with --num-cpus 0?")
    if cpu_workers is None:
        share, count = min(sizes), sum(size // min(sizes) for size in sizes)
    else:
        share, count = _largest_share(sizes, cpu_workers), cpu_workers
    return tuple(
        Slot(Device("cpu", threads=share), {"CUDA_VISIBLE_DEVICES": ""}, f"cluster cpu {number}")
        for number in range(count)
    )


def needed_resources(slot: Slot) -> dict[str, int]:
    """Returns what Ray is to give a worker, in Ray's words."""
    return {"num_cpus": slot.device.threads, "num_gpus": int(slot.device.kind == "cuda")}


def _largest_share(sizes: Sequence[int], workers: int) -> int:
    """Returns the most CPUs that each of N equal workers can have."""
    if not 1 <= workers <= sum(sizes):
        raise UsageError(
            f"--cpu-workers: expected at least 1 and at most {sum(sizes)} (the cluster's CPUs), got {workers}"
        )
    return next(share for share in range(max(sizes), 0, -1) if sum(size // share for size in sizes) >= workers)


def _check_address(ray: Any, address: str) -> None:
    if address in (RUNNING_CLUSTER, OWN_CLUSTER) or "://" in address:
        return
    connected = ray.get_runtime_context().gcs_address
    if connected != address:
        raise UsageError(f"--cluster {address}: this process is connected with the cluster at {connected} already")


@contextlib.contextmanager
def _signals_kept() -> Iterator[None]:
    """Keeps the handlers of SIGINT and SIGTERM: Ray sets its own, and a run has its way to stop."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
