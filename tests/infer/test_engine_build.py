"""Building an engine, with a GPU, a TensorRT and a compiler that are none: what is asked first, refused, built, tried and kept."""

from __future__ import annotations

import json
import sys
from functools import lru_cache

import numpy as np
import onnx
import pytest
from builder_fakes import FakeBuild, install_builder
from click.testing import CliRunner
from cuda_fakes import FakeGpu, install_bindings
from onnx import numpy_helper

from roiline.cli import main
from roiline.core.errors import EngineError, ModelError, UsageError
from roiline.engines.gates import GateError
from roiline.engines.model_file import read_spec
from roiline.engines.registry import open_engine
from roiline.engines.tensorrt.passport import passport_path, read_passport
from roiline.engines.tensorrt.settings import BuildSettings
from roiline.infer import engine_build, engine_trial
from roiline.infer.engine_build import BuildRequest, build_plan

SLOW_GATES = ("equal-rows", "batch-one", "scores", "parity")


@pytest.fixture
def gpu(monkeypatch):
    machine = FakeGpu()
    install_bindings(monkeypatch, machine)
    return machine


class KeptEngine:
    """Is an engine that stays open, for the next test."""

    def __init__(self, engine) -> None:
        self.run, self.inputs = engine.run, engine.inputs

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


@lru_cache(maxsize=4)
def open_kept(model, stage):
    return KeptEngine(open_engine(model, engine="onnxruntime", stage=stage))


@pytest.fixture
def fake(monkeypatch, gpu, digits_model):
    """Returns a TensorRT that is none; an engine that it builds runs as the model does in ONNX Runtime."""
    build = FakeBuild()
    install_builder(monkeypatch, build)
    monkeypatch.setattr(engine_build, "find_device_compiler", lambda: "nvrtc")
    asked = engine_build.name_plugins
    names: list[str] = []

    def remember(lowered):
        model, plugins = asked(lowered)
        names[:] = [node.name for node in model.graph.node]
        return model, plugins

    def describe(plan, device):
        layers = [{"Metadata": f"[ONNX Layer: {name}]", "Inputs": [{"Format/Datatype": "FP32"}]} for name in names]
        return json.dumps({"Layers": layers})

    def open_(path, *, engine="auto", device=None, stage=None):
        if path.suffix == ".plan":
            read_passport(path)
        return open_kept(digits_model, stage)

    monkeypatch.setattr(engine_build, "name_plugins", remember)
    monkeypatch.setattr(engine_trial, "describe_engine", describe)
    monkeypatch.setattr(engine_trial, "open_engine", open_)
    monkeypatch.setattr(engine_trial, "SAMPLE_PICTURES", 1)
    return build


@pytest.fixture
def request_for(digits, digits_model, tmp_path):
    """Returns a request over the demo."""

    def make(**options):
        given = {
            "model": digits_model,
            "out": tmp_path / "m.plan",
            "data": str(digits / "pictures"),
            "batch_sizes": (1, 2),
        }
        return BuildRequest(**{**given, "skip_gates": SLOW_GATES, **options})

    return make


def test_an_engine_is_built_tried_and_kept_with_its_passport(fake, gpu, request_for):
    report = build_plan(request_for(skip_gates=()))
    assert not report.up_to_date
    passport = read_passport(report.path)
    assert passport == report.passport
    assert passport.machine.tensorrt == "11.4.0.106"
    assert passport.engine_bytes == report.path.stat().st_size
    assert read_spec(report.path).tasks == ("detections",)
    assert [info.name for info in passport.inputs] == ["data", "im_info", "im_size"]
    assert {"boxes", "scores", "classes", "count"} <= {trim.output for trim in passport.trims}
    assert list(passport.gates) == ["equal-rows", "batch-one", "scores", "parity", "precision"]
    assert all(found.startswith("passed: ") for found in passport.gates.values())
    assert {group.asked for group in passport.precision} == {group.built for group in passport.precision} == {"fp32"}
    assert {name.split("_")[0] for name in passport.plugins} >= {"PadRows", "DecodeProposals"}
    assert all(kinds == {"register", "autotune", "aot_impl"} for kinds in fake.registered.values())
    assert [name.removeprefix("roiline::") for name in sorted(fake.registered)] == sorted(passport.plugins)
    assert fake.profiles == [dict(profile.shapes) for profile in passport.profiles]
    assert {profile["data"][2][0] for profile in fake.profiles} == {1, 2}
    assert sorted(path.name for path in report.path.parent.iterdir()) == ["m.plan", "m.plan.json"]
    assert not [owned for owned in gpu.alive if owned.startswith("context")]


def test_an_engine_that_is_there_is_up_to_date_until_something_changes(fake, request_for, digits_model, tmp_path):
    build_plan(request_for())
    assert build_plan(request_for()).up_to_date
    assert fake.calls == ["parse", "build"]
    with pytest.raises(ModelError, match=r"another engine already; .*--rebuild.*\n  settings: "):
        build_plan(request_for(settings=BuildSettings(tf32=True)))
    with pytest.raises(ModelError, match="profiles: the engine's is"):
        build_plan(request_for(batch_sizes=(4,)))
    assert not build_plan(request_for(rebuild=True)).up_to_date
    fake.version = "11.5.0.0"
    sys.modules["tensorrt"].__version__ = "11.5.0.0"
    with pytest.raises(ModelError, match=r"tensorrt: the engine's is 11\.4\.0\.106, wanted is 11\.5\.0\.0"):
        build_plan(request_for())


def test_an_engine_of_other_weights_is_not_taken_for_this_one(fake, request_for, digits_model, tmp_path):
    build_plan(request_for())
    model = onnx.load(digits_model)
    tensor = next(tensor for tensor in model.graph.initializer if tensor.name == "conv1_w")
    weights = numpy_helper.to_array(tensor).copy()
    weights.flat[0] = np.nextafter(weights.flat[0], np.float32(9))
    tensor.raw_data = weights.tobytes()
    other = tmp_path / "other.onnx"
    onnx.save(model, other)
    with pytest.raises(
        ModelError, match=r"another engine already; .*\n  weights: the engine's is [0-9a-f]+, wanted is [0-9a-f]+$"
    ):
        build_plan(request_for(model=other))


def test_a_damaged_engine_is_not_up_to_date(fake, request_for):
    path = build_plan(request_for()).path
    content = path.read_bytes()
    path.write_bytes(content[:-3])
    with pytest.raises(ModelError, match="cut off"):
        build_plan(request_for())
    path.write_bytes(content[:-3] + b"abc")
    with pytest.raises(ModelError, match="was altered"):
        build_plan(request_for())
    passport_path(path).unlink()
    with pytest.raises(ModelError, match="needs its passport"):
        build_plan(request_for())


def test_settings_reach_the_builder(fake, request_for, tmp_path):
    settings = BuildSettings(workspace_mb=64, tf32=True, version_compatible=True, hardware_compatible=True)
    cache = tmp_path / "cache"
    report = build_plan(request_for(settings=settings, timing_cache=cache, shapes="96x128", data=None, skip_gates=()))
    assert fake.config.flags == {"tf32", "version compatible"}
    assert fake.config.hardware_compatibility_level == "ampere plus"
    assert fake.config.pools == {"workspace": 64 << 20}
    assert fake.config.profiling_verbosity == "detailed"
    assert cache.read_bytes() == b"+"
    assert report.passport.version_compatible
    assert "made-up pictures" in report.passport.gates["parity"]
    build_plan(request_for(timing_cache=cache, shapes="96x128", rebuild=True))
    assert fake.config.flags == set()
    assert cache.read_bytes() == b"++"


def test_a_gate_that_is_not_passed_leaves_nothing(fake, request_for, monkeypatch):
    monkeypatch.setattr(engine_trial, "check_parity", _refuse)
    with pytest.raises(GateError, match="gate `parity`: other answers; --skip-gate parity"):
        build_plan(request_for(skip_gates=SLOW_GATES[:3]))
    assert list(request_for().out.parent.iterdir()) == []
    assert build_plan(request_for()).passport.gates["parity"] == "skipped"


def test_a_reference_that_cannot_run_is_said(fake, request_for, monkeypatch):
    plain = engine_trial.open_engine

    def open_(path, *, engine="auto", device=None, stage=None):
        if engine == "onnxruntime":
            raise EngineError("no bf16 here")
        return plain(path, engine=engine, device=device, stage=stage)

    monkeypatch.setattr(engine_trial, "open_engine", open_)
    with pytest.raises(
        GateError, match="gate `parity`: there is nothing to compare with: no bf16 here; --skip-gate parity"
    ):
        build_plan(request_for(skip_gates=SLOW_GATES[:3]))
    assert build_plan(request_for()).passport.gates["parity"] == "skipped"


def _refuse(*_):
    raise GateError("other answers")


def test_batches_of_one_have_no_neighbours(fake, request_for):
    gates = build_plan(request_for(batch_sizes=(1,))).passport.gates
    assert gates["equal-rows"] == gates["batch-one"] == "not applicable: the engine takes one picture at a time"


@pytest.mark.parametrize(
    ("fault", "error", "text"),
    [
        ({"lost_plugins": 1}, EngineError, r"plugin layers of \d+ kernel nodes; .*version 1, namespace roiline"),
        ({"parse_error": "no such node"}, EngineError, "cannot read this model:\n  no such node"),
        ({"build_error": "out of memory"}, EngineError, "could not build the engine:\n  out of memory"),
        ({"refuses_profiles": True}, EngineError, "refuses the shapes data"),
        ({"forgets_creators": True}, EngineError, "has no plugin"),
        ({"no_builder": True}, EngineError, "builder could not be made"),
    ],
)
def test_what_tensorrt_refuses_is_said(fake, request_for, fault, error, text):
    for name, value in fault.items():
        setattr(fake, name, value)
    with pytest.raises(error, match=text):
        build_plan(request_for())


def test_a_timing_cache_of_another_machine_is_refused(fake, request_for, tmp_path):
    fake.refuses_cache = True
    with pytest.raises(EngineError, match="cannot use this timing cache"):
        build_plan(request_for(timing_cache=tmp_path / "cache"))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"skip_gates": ("speed",)}, "--skip-gate speed: there is no such gate; there are equal-rows"),
        ({"task": "classification"}, "this model makes proposals and detections, not classification"),
        ({"shapes": "what"}, "expected HEIGHTxWIDTH"),
        ({"shapes": "96x128,333x320"}, "333x320-333x320: no picture has such a shape; .* multiples of 32"),
        ({"batch_sizes": (0,)}, "--batch-sizes"),
        ({"settings": BuildSettings(workspace_mb=0)}, "--workspace: expected megabytes"),
        ({"data": None, "split": "train"}, "belong to a dataset"),
    ],
)
def test_wrong_requests_are_refused(fake, request_for, options, text):
    with pytest.raises(UsageError, match=text):
        build_plan(request_for(**options))
    assert fake.calls == []


def test_a_model_that_needs_the_host_is_refused(fake, digits, request_for, tmp_path):
    from roiline.export.detectron.exporter import export_detectron

    soft = tmp_path / "soft.onnx"
    export_detectron(digits / "digits.yaml", digits / "digits.pkl", soft, overrides=[("TEST.SOFT_NMS.ENABLED", "True")])
    with pytest.raises(UsageError, match="test options need the host"):
        build_plan(request_for(model=soft))


def test_proposals_alone_can_be_built(fake, request_for, digits_model, monkeypatch):
    stage = engine_build.choose_stage(read_spec(digits_model), "proposals")
    monkeypatch.setattr(engine_trial, "open_engine", lambda *_, **__: open_kept(digits_model, stage))
    passport = build_plan(request_for(task="proposals", skip_gates=())).passport
    assert passport.spec.tasks == ("proposals",)
    assert [trim.kind for trim in passport.trims] == ["padded", "padded", "batch"]


def test_an_old_gpu_and_an_absent_one_are_refused(fake, request_for, monkeypatch):
    with pytest.raises(EngineError, match="there is no GPU 7; this process sees 2"):
        build_plan(request_for(device=7))
    monkeypatch.setattr(engine_build, "LEAST_CAPABILITY", (99, 0))
    with pytest.raises(EngineError, match=r"has compute capability .*; engines are built from 99\.0 on"):
        build_plan(request_for())


def test_without_a_driver_nothing_else_is_asked(monkeypatch, digits_model, tmp_path):
    install_bindings(monkeypatch, None)
    monkeypatch.setattr(engine_build, "load_tensorrt", lambda: pytest.fail("TensorRT was asked before the driver"))
    monkeypatch.setattr(
        engine_build, "read_spec", lambda _: pytest.fail("the model was read before the driver was asked")
    )
    result = CliRunner().invoke(main, ["build", str(digits_model), "-o", str(tmp_path / "m.plan")])
    assert result.exit_code == 5
    assert "no NVIDIA driver" in result.output


def test_without_tensorrt_the_message_names_it(monkeypatch, gpu, digits_model, tmp_path):
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    result = CliRunner().invoke(main, ["build", str(digits_model), "-o", str(tmp_path / "m.plan")])
    assert result.exit_code == 5
    assert "TensorRT cannot be imported" in result.output
    assert "roiline[tensorrt]" in result.output


def test_another_major_version_is_refused(monkeypatch, gpu, request_for):
    install_builder(monkeypatch, FakeBuild("10.9.0"))
    with pytest.raises(
        EngineError, match=r"TensorRT 10\.9\.0 is installed; roiline builds and runs engines of TensorRT 11"
    ):
        build_plan(request_for())


def test_the_command_says_what_it_made(fake, digits, digits_model, tmp_path):
    out = tmp_path / "m.plan"
    options = ["build", str(digits_model), "-o", str(out), "--for", str(digits / "pictures"), "--batch-sizes", "2"]
    result = CliRunner().invoke(main, options)
    assert result.exit_code == 0, result.output
    assert "tuned for" in result.output
    assert "% of the network's input" in result.output
    assert "gate parity: passed" in result.output
    again = CliRunner().invoke(main, options)
    assert "is up to date" in again.output
    refused = CliRunner().invoke(main, [*options[:-1], "1"])
    assert refused.exit_code == 3
    assert CliRunner().invoke(main, [*options[:-1], "many"]).exit_code == 2
    assert CliRunner().invoke(main, [*options[:3], str(tmp_path / "m.engine")]).exit_code == 2
