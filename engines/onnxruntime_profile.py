"""ONNX Runtime's own profile of a model: its JSON of node events, call by call."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from roiline.core.errors import EngineError, ModelError
from roiline.engines.model_file import load_model
from roiline.engines.profiling import NodeTime, NodeTimes
from roiline.engines.protocol import Device, Stage, Tensor

_CALL = "model_run"
_KERNEL = "_kernel_time"


def profile_nodes(
    path: Path, stage: Stage | None, device: Device, feeds: Sequence[Mapping[str, Tensor]], warm_up: int
) -> list[NodeTimes] | None:
    """Returns the node times of one call for each of `feeds`; None where the device is not the CPU.

    On other devices the runtime's profile says when a kernel was started, not how long it ran.

    Raises:
        ModelError: the runtime cannot load the model.
        EngineError: it cannot run it.
    """
    if device.kind != "cpu":
        return None
    with tempfile.TemporaryDirectory(prefix="roiline-") as folder:
        session = _open_session(path, stage, device, Path(folder))
        wanted = {tensor.name for tensor in session.get_inputs()}
        try:
            for feed in [*[feeds[0]] * warm_up, *feeds]:
                session.run(None, {name: value for name, value in feed.items() if name in wanted})
        except Exception as error:  # the runtime raises classes of its own that share no base of ours
            raise EngineError(f"ONNX Runtime could not run the model while profiling: {error}") from error
        events = json.loads(Path(session.end_profiling()).read_text())
    return split_calls(events)[warm_up:]


def _open_session(path: Path, stage: Stage | None, device: Device, folder: Path) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = device.threads or len(os.sched_getaffinity(0))
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    options.enable_profiling = True
    options.profile_file_prefix = str(folder / "profile")
    source = str(path) if stage is None else load_model(path, stage=stage).SerializeToString()
    try:
        return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # as above
        raise ModelError(f"{path}: ONNX Runtime cannot load this model for profiling: {error}") from error


def split_calls(events: Sequence[Mapping[str, Any]]) -> list[NodeTimes]:
    """Returns the node events of a profile, call by call; microseconds become seconds."""
    calls = sorted((event["ts"], event["ts"] + event["dur"]) for event in events if event["name"] == _CALL)
    nodes = sorted((event for event in events if event["cat"] == "Node"), key=lambda event: event["ts"])
    return [
        tuple(
            NodeTime(event["name"].removesuffix(_KERNEL), event["args"]["op_name"], event["dur"] / 1e6)
            for event in nodes
            if start <= event["ts"] < end and event["name"].endswith(_KERNEL)
        )
        for start, end in calls
    ]
