"""Looking at built engines."""

from __future__ import annotations

import hashlib

import pytest
from run_support import make_spec

from roiline.checks.inspection import inspect_path
from roiline.engines.protocol import TensorInfo
from roiline.engines.tensorrt.passport import LayerGroup, Machine, Passport, write_passport
from roiline.engines.tensorrt.profiles import Profile


@pytest.fixture
def plan(tmp_path):
    path = tmp_path / "m.plan"
    path.write_bytes(b"an engine")
    passport = Passport(
        spec=make_spec(),
        engine_sha256=hashlib.sha256(b"an engine").hexdigest(),
        engine_bytes=9,
        machine=Machine("11.4.0.106", "13.0", "NVIDIA H200", "9.0"),
        version_compatible=False,
        hardware_compatible=False,
        identity={},
        inputs=(TensorInfo("data", "float32", (None, 3, None, None)),),
        outputs=(),
        trims=(),
        profiles=(Profile({"data": ((1, 3, 32, 32), (2, 3, 32, 64), (2, 3, 64, 96))}),),
        plugins={"PadRows_12345678": "b" * 64},
        precision=(LayerGroup("Conv", "fp16", "fp16", 53),),
        gates={"scores": "passed: 7 rows", "parity": "skipped"},
    )
    write_passport(path, passport)
    return path


def test_an_engine_says_what_its_passport_says(plan):
    found = inspect_path(str(plan)).inspection
    assert not found.problems
    assert found.kind == "TensorRT engine"
    assert found.facts["GPU"] == "NVIDIA H200 (compute capability 9.0)"
    assert found.facts["layers"] == ["53 Conv: asked fp16, built fp16"]
    assert found.facts["profiles"] == ["(1, 3, 32, 32) to (2, 3, 64, 96), tuned for (2, 3, 32, 64)"]
    assert found.notes == ("gates that were skipped when it was built: parity",)


def test_a_damaged_engine_is_a_problem(plan):
    plan.write_bytes(b"an  engine")
    (problem,) = inspect_path(str(plan)).inspection.problems
    assert "10 bytes, its passport says 9" in problem


def test_a_damaged_passport_is_named_in_full(plan):
    passport = plan.with_name("m.plan.json")
    passport.write_text("{}")
    (problem,) = inspect_path(str(plan)).inspection.problems
    assert problem.startswith(f"{passport}: this passport has format version None")
