"""Passports: written and read back, damaged ones, and which machines an engine fits."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from run_support import make_spec

from roiline.core.errors import ModelError
from roiline.engines.model_file import read_spec
from roiline.engines.protocol import TensorInfo
from roiline.engines.tensorrt.identity import engine_identity, weights_digest
from roiline.engines.tensorrt.passport import (
    LayerGroup,
    Machine,
    Passport,
    check_engine_file,
    check_machine,
    describe_machine,
    identity_differences,
    passport_path,
    read_passport,
    write_passport,
)
from roiline.engines.tensorrt.profiles import Profile
from roiline.engines.tensorrt.settings import BuildSettings
from roiline.engines.tensorrt.trimming import OutputTrim

BUILT = Machine("11.4.0.106", "13.0", "NVIDIA H200", "9.0")


@pytest.fixture
def passport():
    return Passport(
        spec=make_spec(),
        engine_sha256="0" * 64,
        engine_bytes=3,
        machine=BUILT,
        version_compatible=False,
        hardware_compatible=False,
        identity={"weights": "a" * 64, "tensorrt": "11.4.0.106"},
        inputs=(TensorInfo("data", "float32", (None, 3, None, None)),),
        outputs=(TensorInfo("boxes", "float32", (None, None, 4)),),
        trims=(OutputTrim("boxes", "padded", "count"),),
        profiles=(Profile({"data": ((1, 3, 32, 32), (2, 3, 32, 64), (2, 3, 64, 96))}),),
        plugins={"PadRows_12345678": "b" * 64},
        precision=(LayerGroup("Conv", "fp16", "fp16", 53),),
        gates={"scores": "passed: 7 rows"},
    )


def test_a_passport_is_read_back_and_serves_as_specification(passport, tmp_path):
    plan = tmp_path / "m.plan"
    write_passport(plan, passport)
    assert passport_path(plan).name == "m.plan.json"
    assert read_passport(plan) == passport
    assert read_spec(plan) == passport.spec


def test_an_engine_without_passport_is_refused(tmp_path):
    with pytest.raises(ModelError, match=r"needs its passport m\.plan\.json beside it"):
        read_passport(tmp_path / "m.plan")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda plain: "{", "is not JSON"),
        (lambda plain: json.dumps([plain]), "format version None"),
        (lambda plain: json.dumps({**plain, "format_version": 9}), "format version 9, expected 1"),
        (lambda plain: json.dumps({**plain, "trims": 3}), "trims: expected a list"),
        (
            lambda plain: json.dumps({key: plain[key] for key in plain if key != "machine"}),
            r"missing fields \['machine'\]",
        ),
        (lambda plain: json.dumps({**plain, "spec": {}}), "format version"),
    ],
)
def test_a_damaged_passport_is_refused(passport, tmp_path, change, text):
    plan = tmp_path / "m.plan"
    write_passport(plan, passport)
    path = passport_path(plan)
    path.write_text(change(json.loads(path.read_text())))
    with pytest.raises(ModelError, match=text):
        read_passport(plan)


def test_an_engine_that_is_not_there_is_refused(passport, tmp_path):
    with pytest.raises(ModelError, match="no such engine file"):
        check_engine_file(tmp_path / "m.plan", passport)


@pytest.mark.parametrize(
    ("here", "text"),
    [
        (replace(BUILT, tensorrt="11.5.0"), r"TensorRT: built for 11\.4\.0\.106, here 11\.5\.0"),
        (replace(BUILT, gpu="NVIDIA L4"), "GPU: built for NVIDIA H200, here NVIDIA L4"),
        (replace(BUILT, compute_capability="8.9"), r"compute capability: built for 9\.0, here 8\.9"),
        (replace(BUILT, cuda="12.8"), r"CUDA of the driver .at least.: built for 13\.0, here 12\.8"),
    ],
)
def test_what_does_not_fit_is_named(passport, here, text):
    with pytest.raises(ModelError, match=text):
        check_machine(passport, here, where="m.plan")


def test_the_same_machine_and_a_later_driver_fit(passport):
    check_machine(passport, BUILT, where="m.plan")
    check_machine(passport, replace(BUILT, cuda="13.2"), where="m.plan")


def test_compatible_engines_fit_more(passport):
    later = replace(passport, version_compatible=True)
    check_machine(later, replace(BUILT, tensorrt="11.5.0"), where="m.plan")
    for version in ("11.3.9", "12.0.0"):
        with pytest.raises(ModelError, match="TensorRT"):
            check_machine(later, replace(BUILT, tensorrt=version), where="m.plan")
    wider = replace(passport, hardware_compatible=True)
    check_machine(wider, replace(BUILT, gpu="NVIDIA L4", compute_capability="8.9"), where="m.plan")
    with pytest.raises(ModelError, match="compute capability"):
        check_machine(wider, replace(BUILT, gpu="Tesla T4", compute_capability="7.5"), where="m.plan")


def test_a_machine_is_described_by_its_driver():
    properties = SimpleNamespace(name="NVIDIA H200", compute_capability=(9, 0))
    driver = SimpleNamespace(describe=lambda index: properties, version=lambda: 13010)
    assert describe_machine(driver, 0, "11.4.0.106") == replace(BUILT, cuda="13.1")


def test_differences_of_identities_are_named(passport):
    assert identity_differences(passport, dict(passport.identity)) == []
    (line,) = identity_differences(passport, {**passport.identity, "weights": "c" * 64})
    assert line == f"weights: the engine's is {'a' * 40}, wanted is {'c' * 40}"


def make_model(value: float, *, name: str = "w") -> onnx.ModelProto:
    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", name], ["y"], name="mul")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])],
        [numpy_helper.from_array(np.array([value], np.float32), name)],
    )
    return helper.make_model(graph)


def identify(model: onnx.ModelProto, **changes):
    given = {
        "plugins": {},
        "profiles": (Profile({"x": ((1,), (1,), (1,))}),),
        "settings": BuildSettings(),
        "machine": BUILT,
        "package_version": "1",
    }
    return engine_identity(model, changes.pop("source", None), **{**given, **changes})


@pytest.mark.parametrize(
    ("part", "other"),
    [
        ("weights", {"model": make_model(np.nextafter(np.float32(1), np.float32(2)))}),
        ("settings", {"settings": BuildSettings(tf32=True)}),
        ("profiles", {"profiles": ()}),
        ("gpu", {"machine": replace(BUILT, gpu="NVIDIA L4")}),
        ("tensorrt", {"machine": replace(BUILT, tensorrt="11.5.0")}),
        ("cuda", {"machine": replace(BUILT, cuda="13.1")}),
        ("roiline", {"package_version": "2"}),
    ],
)
def test_whatever_changes_an_engine_changes_its_identity(part, other):
    one = identify(make_model(1.0))
    changed = identify(**{"model": make_model(1.0), **other})
    assert [name for name in one if one[name] != changed[name]] == [part]
    assert identify(make_model(1.0)) == one


def test_the_graph_is_part_of_the_identity_and_the_metadata_is_not():
    one, other = make_model(1.0), make_model(1.0)
    helper.set_model_props(other, {"note": "another"})
    assert identify(one) == identify(other)
    other.graph.node[0].op_type = "Add"
    assert identify(one)["graph"] != identify(other)["graph"]


def test_weights_beside_the_file_count_to_the_last_byte(tmp_path):
    path = tmp_path / "m.onnx"
    model = make_model(1.0)
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    outside = onnx.load(path, load_external_data=False)
    before = weights_digest(outside, path)
    content = bytearray((tmp_path / "weights.bin").read_bytes())
    content[-1] ^= 1
    (tmp_path / "weights.bin").write_bytes(bytes(content))
    assert weights_digest(outside, path) != before
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(ModelError, match=r"its weights lie in weights\.bin, which is not beside it"):
        weights_digest(outside, path)
