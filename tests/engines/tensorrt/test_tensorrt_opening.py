"""Opening a built engine: in which order things are asked, and how every engine that does not fit is refused."""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cuda_fakes import FakeGpu, install_bindings, remove_bindings
from run_support import make_spec
from tensorrt_fakes import FakeEngine, expected, make_tensorrt

from roiline.core.errors import EngineError, ModelError, RoilineError, UsageError
from roiline.engines.protocol import Device, Stage, TensorInfo
from roiline.engines.registry import open_engine
from roiline.engines.tensorrt.passport import Machine, Passport, passport_path, write_passport
from roiline.engines.tensorrt.profiles import Profile
from roiline.engines.tensorrt.trimming import OutputTrim

GPU = Device("cuda")
MACHINE = Machine("11.4.0.106", "13.0", "NVIDIA H200", "9.0")
PROFILE = Profile(
    {
        "data": ((1, 3, 32, 32), (2, 3, 32, 64), (2, 3, 64, 96)),
        "im_info": ((1, 3), (2, 3), (2, 3)),
    }
)


def make_passport(plan: bytes) -> Passport:
    return Passport(
        spec=make_spec(),
        engine_sha256=hashlib.sha256(plan).hexdigest(),
        engine_bytes=len(plan),
        machine=MACHINE,
        version_compatible=False,
        hardware_compatible=False,
        identity={},
        inputs=(TensorInfo("data", "float32", (None, 3, None, None)), TensorInfo("im_info", "float32", (None, 3))),
        outputs=(TensorInfo("boxes", "float32", (None, None, 4)), TensorInfo("masks", "float32", (None, 2, 2))),
        trims=(OutputTrim("boxes", "padded", "count"), OutputTrim("masks", "rows", "count")),
        profiles=(PROFILE,),
        plugins={},
        precision=(),
        gates={},
    )


@pytest.fixture
def plan(tmp_path) -> Path:
    path = tmp_path / "m.plan"
    path.write_bytes(b"a built engine")
    write_passport(path, make_passport(path.read_bytes()))
    return path


@pytest.fixture
def engine(monkeypatch):
    """A machine with a GPU and a TensorRT that takes any plan."""
    gpu = FakeGpu()
    install_bindings(monkeypatch, gpu)
    ranges = {name: (least, most) for name, (least, _, most) in PROFILE.shapes.items()}
    engine = FakeEngine(gpu, [ranges])
    monkeypatch.setitem(sys.modules, "tensorrt", make_tensorrt(engine))
    return engine


def test_an_engine_runs_from_its_two_files(plan, engine):
    feeds = {
        "data": np.random.default_rng(0).normal(size=(2, 3, 48, 64)).astype(np.float32),
        "im_info": np.float32([[48, 64, 3], [48, 64, 1]]),
    }
    with open_engine(plan, device=GPU) as opened:
        answer = opened.run(feeds)
        assert [*answer] == ["boxes", "masks"]
        assert opened.depth == 2
        assert opened.usual_hw == (32, 64)
        assert opened.description["engine"] == "tensorrt"
        assert opened.description["device"] == "NVIDIA H200"
        wanted = expected(**feeds)
        for name, array in answer.items():
            np.testing.assert_array_equal(array, wanted[name])
    assert not engine.gpu.alive


def test_some_of_the_outputs_are_a_stage(plan, engine):
    with open_engine(plan, device=GPU, stage=Stage(("masks",))) as opened:
        assert [info.name for info in opened.outputs] == ["masks"]
    with pytest.raises(
        UsageError, match=r"a built engine is whole and gives boxes, masks.*cut \(at features\).*\.onnx"
    ):
        open_engine(plan, device=GPU, stage=Stage(("boxes", "features")))
    with pytest.raises(UsageError, match="a built engine is whole"):
        open_engine(plan, device=GPU, stage=Stage(("boxes",), inputs=("features",)))
    assert not engine.gpu.alive


def test_the_driver_is_asked_before_tensorrt(plan, monkeypatch):
    install_bindings(monkeypatch, None)
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    with pytest.raises(EngineError, match="no NVIDIA driver") as caught:
        open_engine(plan, device=GPU)
    assert caught.value.exit_code == 5


def test_without_a_binding(plan, monkeypatch):
    remove_bindings(monkeypatch)
    monkeypatch.setattr("roiline.engines.cuda.driver.has_driver_library", lambda: True)
    with pytest.raises(EngineError, match="no CUDA binding is installed"):
        open_engine(plan, device=GPU)


def test_the_cpu_is_no_place_for_it(plan):
    with pytest.raises(EngineError, match=r"m\.plan: a TensorRT engine runs on an NVIDIA GPU, not on the CPU"):
        open_engine(plan)


def _no_tensorrt(plan: Path, engine: FakeEngine) -> None:
    sys.modules["tensorrt"] = None  # type: ignore[assignment]


def _other_tensorrt(plan: Path, engine: FakeEngine) -> None:
    sys.modules["tensorrt"] = make_tensorrt(engine, version="10.14.1")


def _later_tensorrt(plan: Path, engine: FakeEngine) -> None:
    sys.modules["tensorrt"] = make_tensorrt(engine, version="11.5.0")


def _refusing_tensorrt(plan: Path, engine: FakeEngine) -> None:
    sys.modules["tensorrt"] = make_tensorrt(None)


def _no_passport(plan: Path, engine: FakeEngine) -> None:
    passport_path(plan).unlink()


def _damaged_passport(plan: Path, engine: FakeEngine) -> None:
    passport_path(plan).write_text("{")


def _cut_off(plan: Path, engine: FakeEngine) -> None:
    plan.write_bytes(plan.read_bytes()[:5])


def _altered(plan: Path, engine: FakeEngine) -> None:
    plan.write_bytes(plan.read_bytes()[::-1])


def _other_gpu(plan: Path, engine: FakeEngine) -> None:
    write_passport(plan, replace(make_passport(plan.read_bytes()), machine=replace(MACHINE, gpu="NVIDIA L4")))


def _other_types(plan: Path, engine: FakeEngine) -> None:
    outputs = (TensorInfo("boxes", "float16", (None, None, 4)),)
    write_passport(plan, replace(make_passport(plan.read_bytes()), outputs=outputs))


def _other_outputs(plan: Path, engine: FakeEngine) -> None:
    outputs = (TensorInfo("scores", "float32", (None, None)),)
    write_passport(plan, replace(make_passport(plan.read_bytes()), outputs=outputs))


def _more_inputs(plan: Path, engine: FakeEngine) -> None:
    passport = make_passport(plan.read_bytes())
    write_passport(plan, replace(passport, inputs=passport.inputs[:1]))


def _not_ours(plan: Path, engine: FakeEngine) -> None:
    path = passport_path(plan)
    path.write_text(json.dumps({**json.loads(path.read_text()), "format_version": 99}))


REFUSALS = {
    _no_tensorrt: (EngineError, r"roiline\[tensorrt\]"),
    _other_tensorrt: (EngineError, r"TensorRT 10\.14\.1 is installed"),
    _later_tensorrt: (ModelError, r"does not fit this machine.*TensorRT: built for 11\.4\.0\.106, here 11\.5\.0"),
    _refusing_tensorrt: (ModelError, "refuses this engine: the version tag does not match"),
    _no_passport: (ModelError, r"needs its passport m\.plan\.json"),
    _damaged_passport: (ModelError, "not JSON"),
    _not_ours: (ModelError, "format version 99"),
    _cut_off: (ModelError, "has 5 bytes, its passport says 14"),
    _altered: (ModelError, "was altered"),
    _other_gpu: (ModelError, r"GPU: built for NVIDIA L4, here NVIDIA H200"),
    _other_types: (ModelError, r"output `boxes` of float16; in the engine it is float32"),
    _other_outputs: (ModelError, r"output `scores` of float32; in the engine it is not there"),
    _more_inputs: (ModelError, "inputs that its passport does not name: im_info"),
}


@pytest.mark.parametrize("spoil", REFUSALS, ids=lambda spoil: spoil.__name__)
def test_what_does_not_fit_is_refused(plan, engine, spoil, monkeypatch):
    monkeypatch.setitem(
        sys.modules, "tensorrt", sys.modules["tensorrt"]
    )  # restored after the test, whatever is put there
    spoil(plan, engine)
    kind, message = REFUSALS[spoil]
    with pytest.raises(RoilineError, match=f"(?s){message}") as caught:
        open_engine(plan, device=GPU)
    assert type(caught.value) is kind
    assert not engine.gpu.alive
