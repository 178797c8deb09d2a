"""Which cores a worker runs on: those near its GPU, as the kernel tells them, fixed in the worker before anything is loaded.

A machine with several sockets has a NUMA node each, and a GPU hangs on one of them; pictures that are decoded on the other's cores cross
the link between sockets twice.
"""

from __future__ import annotations

import os
from pathlib import Path

from roiline.core.errors import UsageError

CORES_VARIABLE = "ROILINE_CORES"
"""Of a worker's environment: the cores that it may run on, as the kernel writes lists of them (`0-15,32-47`)."""

_SYSFS = Path("/sys")


def near_cores(pci_bus_id: str, *, sysfs: Path = _SYSFS) -> frozenset[int]:
    """Returns those cores that this process may run on and that are on the NUMA node of a PCI device.

    All that it may run on are returned where the kernel names no node, or none of the node's cores may be used.
    """
    usable = frozenset(os.sched_getaffinity(0))
    node = _read(sysfs / "bus/pci/devices" / pci_bus_id / "numa_node") if pci_bus_id else None
    if node is None or not node.isdecimal():  # -1: the machine has no nodes, or its firmware does not say
        return usable
    listed = _read(sysfs / "devices/system/node" / f"node{node}" / "cpulist")
    return (usable & cores_from_text(listed)) or usable if listed else usable


def cores_from_text(text: str) -> frozenset[int]:
    """Returns the cores of a list as the kernel writes it.

    Raises:
        UsageError: it is no such list.
    """
    cores: set[int] = set()
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if not first.isdecimal() or not (last or first).isdecimal():
            raise UsageError(f"expected a list of cores like 0-15,32-47, got {text!r}")
        cores.update(range(int(first), int(last or first) + 1))
    return frozenset(cores)


def text_from_cores(cores: frozenset[int]) -> str:
    """Returns a list of cores, each by its number."""
    return ",".join(map(str, sorted(cores)))


def take_cores() -> None:
    """Holds this process to the cores that its environment names, where it names any.

    Raises:
        UsageError: it names something else than cores.
    """
    text = os.environ.get(CORES_VARIABLE)
    if text:
        os.sched_setaffinity(0, cores_from_text(text))


def _read(path: Path) -> str | None:
    """Returns the text of a file of the kernel's, None where there is no such file."""
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return None
