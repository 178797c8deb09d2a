"""The engine's own profile: calls kept apart, times that add up, and None where there is no profiler."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from roiline.core.errors import ModelError, UsageError
from roiline.engines.model_file import read_spec
from roiline.engines.onnxruntime_profile import split_calls
from roiline.engines.profiling import NodeTime, profile_model
from roiline.engines.protocol import Device, Stage
from roiline.infer.benchmark_operations import NodeParts

EVENTS = [
    {"cat": "Session", "name": "model_run", "ts": 100, "dur": 50},
    {"cat": "Session", "name": "model_run", "ts": 200, "dur": 50},
    {"cat": "Node", "name": "b_kernel_time", "ts": 120, "dur": 7, "args": {"op_name": "Relu"}},
    {"cat": "Node", "name": "a_kernel_time", "ts": 101, "dur": 5, "args": {"op_name": "Conv"}},
    {"cat": "Node", "name": "a_fence_before", "ts": 100, "dur": 1, "args": {"op_name": "Conv"}},
    {"cat": "Node", "name": "a_kernel_time", "ts": 203, "dur": 6, "args": {"op_name": "Conv"}},
]


def make_feeds(side: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {
        "data": random.normal(0, 50, (1, 3, side, side)).astype(np.float32),
        "im_info": np.array([[side, side, 1]], np.float32),
        "im_size": np.array([[side, side]], np.float32),
    }


def test_events_become_calls_in_the_order_of_their_nodes() -> None:
    assert split_calls(EVENTS) == [
        (NodeTime("a", "Conv", 5e-6), NodeTime("b", "Relu", 7e-6)),
        (NodeTime("a", "Conv", 6e-6),),
    ]


def test_every_node_of_a_call_has_a_part(digits_model: Path) -> None:
    feeds = make_feeds(96)
    device = Device("cpu", threads=1)
    calls = profile_model(digits_model, engine="auto", device=device, stage=None, feeds=[feeds, feeds])
    assert calls is not None
    assert len(calls) == 2
    parts = NodeParts(onnx.load(str(digits_model)), read_spec(digits_model))
    for call in calls:
        times = parts.sum_times(call)
        assert sum(times.values()) == pytest.approx(sum(node.seconds for node in call))
        assert min(times.values()) > 0


def test_a_stage_is_profiled_alone(digits_model: Path) -> None:
    seam = read_spec(digits_model).seams["proposals"]
    device = Device("cpu", threads=1)
    calls = profile_model(
        digits_model, engine="onnxruntime", device=device, stage=Stage(tuple(seam)), feeds=[make_feeds(96)]
    )
    assert calls is not None
    assert not any("DetectionOutput" in node.name for node in calls[0])


def test_engines_and_devices_without_a_profiler_answer_none(digits_model: Path) -> None:
    feeds = [make_feeds(32)]
    assert profile_model(digits_model, engine="fake", device=Device(), stage=None, feeds=feeds) is None
    gpu = Device("cuda")
    assert profile_model(digits_model, engine="onnxruntime", device=gpu, stage=None, feeds=feeds) is None


def test_what_cannot_be_opened_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"no model")
    with pytest.raises(ModelError, match=r"model\.onnx"):
        profile_model(path, engine="onnxruntime", device=Device(), stage=None, feeds=[{}])
    with pytest.raises(UsageError, match="no engine named"):
        profile_model(path, engine="none", device=Device(), stage=None, feeds=[{}])
