"""The lowered graph as an engine of its own: by name only, through the same checks as all engines, and what it refuses."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from roiline.core.errors import EngineError, ModelError
from roiline.engines import host_kernels
from roiline.engines.model_file import read_spec
from roiline.engines.protocol import Device, Stage
from roiline.engines.registry import open_engine
from roiline.infer.feeds import batch_from_picture, make_feeds


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++ for the kernels")
def test_the_demo_model_answers_as_in_onnx_runtime(digits_model, digits_picture):
    spec = read_spec(digits_model)
    feeds = make_feeds(batch_from_picture(digits_picture, spec.image_rules, 1), spec, spec.image_rules)
    answers = []
    for name in ("onnxruntime", "host-kernels"):
        with open_engine(digits_model, engine=name, device=Device(threads=1)) as engine:
            answers.append(engine.run({info.name: feeds[info.name] for info in engine.inputs}))
            if name == "host-kernels":
                assert int(engine.description["kernels"]) > 5
    expected, got = answers
    assert got["count"].tolist() == expected["count"].tolist()
    assert got["count"].min() > 0
    np.testing.assert_array_equal(got["classes"], expected["classes"])
    np.testing.assert_allclose(got["boxes"], expected["boxes"], atol=0.01)
    np.testing.assert_allclose(got["scores"], expected["scores"], atol=1e-4)


def test_it_runs_on_the_cpu_and_needs_a_compiler(digits_model, monkeypatch):
    with pytest.raises(EngineError, match="runs on the CPU, not on cuda"):
        host_kernels.open_backend(digits_model, None, Device("cuda"))
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(EngineError, match=r"with g\+\+, which is not on the PATH"):
        host_kernels.open_backend(digits_model, None, Device())


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++ for the kernels")
def test_what_is_no_model_is_refused(tmp_path, digits_model):
    path = tmp_path / "m.onnx"
    path.write_bytes(b"\x0a")
    with pytest.raises(ModelError, match="not a whole ONNX file"):
        host_kernels.open_backend(path, None, Device())
    with pytest.raises(ModelError, match="no tensor named nothing"):
        host_kernels.open_backend(digits_model, Stage(("nothing",)), Device())
