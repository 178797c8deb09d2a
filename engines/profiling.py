"""Where an engine's time goes inside the network, by the engine's own profiler.

A profiler slows the engine down a little, so it is a pass of its own and never part of a run. An engine without one answers None.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from roiline.engines.protocol import Device, Stage, Tensor
from roiline.engines.registry import resolve_engine

PROFILERS: Mapping[str, str] = {"onnxruntime": "roiline.engines.onnxruntime_profile:profile_nodes"}


@dataclass(frozen=True, slots=True)
class NodeTime:
    """Is one run of one node as the engine names it: what it computes, and how long that took in seconds."""

    name: str
    op_type: str
    seconds: float


NodeTimes: TypeAlias = tuple[NodeTime, ...]
"""The nodes of one engine call, in the order in which they ran."""


def profile_model(
    path: Path,
    *,
    engine: str,
    device: Device,
    stage: Stage | None,
    feeds: Sequence[Mapping[str, Tensor]],
    warm_up: int = 1,
) -> list[NodeTimes] | None:
    """Returns the node times of one call for each of `feeds`, after `warm_up` calls with the first; None without a profiler.

    Raises:
        ModelError: the file cannot be opened.
        EngineError: the engine cannot run it.
    """
    name = resolve_engine(engine)
    if name not in PROFILERS:
        return None
    module, function = PROFILERS[name].split(":")
    profile: Callable[..., list[NodeTimes] | None] = getattr(importlib.import_module(module), function)
    return profile(path, stage, device, feeds, warm_up)
