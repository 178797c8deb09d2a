"""ONNX Runtime on a GPU, over a fake of its package that falls back in silence as the real one does."""

from __future__ import annotations

import os
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_support import write_model

from roiline.core.errors import EngineError, ModelError
from roiline.engines.protocol import Device
from roiline.engines.registry import open_engine

CPU, CUDA, TENSORRT = "CPUExecutionProvider", "CUDAExecutionProvider", "TensorrtExecutionProvider"
GPU = Device("cuda", 1, threads=3)


class FakeOnnxRuntime(types.ModuleType):
    """Takes of the providers that it is asked for those in `working`, and says nothing of the others."""

    __version__ = "1.31.1"
    cuda_version = "13.0"

    def __init__(self, available: tuple[str, ...], working: tuple[str, ...]) -> None:
        super().__init__("onnxruntime")
        self.available, self.working = available, working
        self.error: Exception | None = None
        self.asked: dict[str, Any] = {}
        self.SessionOptions = types.SimpleNamespace
        self.InferenceSession = self._open

    def get_available_providers(self) -> list[str]:
        return [*self.available]

    def preload_dlls(self) -> None:
        print("Failed to load libcublasLt.so.13")

    def _open(self, source: Any, options: Any, providers: Any, enable_fallback: int) -> Any:
        self.asked = {"source": source, "options": options, "providers": dict(providers), "fallback": enable_fallback}
        if self.error is not None:
            raise self.error
        taken = [name for name, _ in providers if name in self.working]
        tensor = types.SimpleNamespace(name="x", type="tensor(float)", shape=[1])
        return types.SimpleNamespace(
            get_inputs=lambda: [tensor],
            get_outputs=lambda: [tensor],
            get_providers=lambda: [*taken, *([CPU] if CPU not in taken else [])],
            run=lambda names, feeds: [feeds["x"]],
        )


@pytest.fixture
def install(monkeypatch):
    def install(working=(TENSORRT, CUDA, CPU), available=(TENSORRT, CUDA, CPU)) -> FakeOnnxRuntime:
        module = FakeOnnxRuntime(available, working)
        monkeypatch.setitem(sys.modules, "onnxruntime", module)
        return module

    return install


@pytest.fixture
def model(tmp_path) -> Path:
    return write_model(tmp_path / "m.onnx")


def test_cuda_is_asked_for_repeatable_answers(install, model):
    fake = install()
    with open_engine(model, engine="onnxruntime", device=GPU) as engine:
        assert engine.description["provider"] == CUDA
        assert engine.run({"x": np.float32([3])})["x"] == 3
    assert fake.asked["providers"][CUDA] == {
        "device_id": "1",
        "use_tf32": "0",
        "cudnn_conv_algo_search": "HEURISTIC",
        "do_copy_in_default_stream": "1",
    }
    assert fake.asked["fallback"] == 0
    assert fake.asked["options"].use_deterministic_compute
    assert fake.asked["options"].intra_op_num_threads == 3


def test_a_silent_fall_back_is_an_error_that_says_what_is_needed(install, model, capsys):
    install(working=(CPU,))
    message = r"asked for CUDAExecutionProvider and took CPUExecutionProvider.*onnxruntime-gpu 1\.31\.1 .*CUDA 13\.0.*cuDNN 9.*cublasLt"
    with pytest.raises(EngineError, match=message) as caught:
        open_engine(model, engine="onnxruntime", device=GPU)
    assert caught.value.exit_code == 5
    assert capsys.readouterr().out == ""


def test_the_cpu_package_on_a_gpu(install, model):
    install(available=(CPU,))
    with pytest.raises(EngineError, match=r"cuda:1 .*built without CUDAExecutionProvider.*roiline\[gpu\]"):
        open_engine(model, engine="onnxruntime", device=GPU)


def test_the_tensorrt_provider_is_named_for_what_it_is(install, model, monkeypatch):
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "")
    monkeypatch.delenv("NVIDIA_TF32_OVERRIDE")
    fake = install()
    with open_engine(model, engine="onnxruntime-tensorrt", device=GPU) as engine:
        assert engine.description["engine"] == "onnxruntime-tensorrt"
        assert engine.description["provider"] == TENSORRT
    assert list(fake.asked["providers"]) == [TENSORRT, CUDA]
    assert os.environ["NVIDIA_TF32_OVERRIDE"] == "0"


@pytest.mark.parametrize("working", [(CUDA, CPU), (CPU,), (TENSORRT, CPU)])
def test_a_tensorrt_provider_that_is_not_taken(install, model, working, monkeypatch):
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "1")
    install(working=working)
    needs = r"TensorRT 10 \(libnvinfer\.so\.10\)" if TENSORRT not in working else "cuDNN 9"
    with pytest.raises(EngineError, match=rf"asked for {TENSORRT}, {CUDA} and took .*{needs}"):
        open_engine(model, engine="onnxruntime-tensorrt", device=GPU)
    assert os.environ["NVIDIA_TF32_OVERRIDE"] == "1"


def test_the_tensorrt_provider_wants_a_gpu(install, model):
    install()
    with pytest.raises(EngineError, match="runs on a GPU"):
        open_engine(model, engine="onnxruntime-tensorrt")


def test_whose_fault_a_failed_opening_is(install, model):
    fake = install()
    fake.error = RuntimeError("please install TensorRT libraries")
    with pytest.raises(EngineError, match=r"cannot open this model on CUDA.*please install.*cuDNN 9"):
        open_engine(model, engine="onnxruntime", device=GPU)
    fake.error = type("InvalidGraph", (Exception,), {})("no such operator")
    with pytest.raises(ModelError, match=r"cannot load this model: no such operator"):
        open_engine(model, engine="onnxruntime", device=GPU)
