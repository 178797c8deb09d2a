"""Which engine a name means for which file."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from roiline.core.errors import UsageError
from roiline.engines.registry import ENGINES, PLAN_ENGINES, resolve_engine

MODEL, PLAN = Path("m.onnx"), Path("m.plan")


def test_auto_follows_the_file():
    assert resolve_engine("auto", MODEL) == resolve_engine("auto") == "onnxruntime"
    assert resolve_engine("auto", PLAN) == resolve_engine("tensorrt", PLAN) == "tensorrt"


@pytest.mark.parametrize("name", PLAN_ENGINES)
def test_tensorrt_wants_a_built_engine(name):
    message = rf"m\.onnx: --engine {name} runs built engines.*roiline build m\.onnx -o m\.plan"
    with pytest.raises(UsageError, match=message):
        resolve_engine(name, MODEL)


@pytest.mark.parametrize("name", sorted({*ENGINES} - {*PLAN_ENGINES}))
def test_a_built_engine_wants_tensorrt(name):
    with pytest.raises(
        UsageError, match=rf"m\.plan: a built engine runs in tensorrt or tensorrt-pictures only, --engine {name}"
    ):
        resolve_engine(name, PLAN)


@pytest.mark.parametrize("place", ENGINES.values(), ids=ENGINES)
def test_every_engine_is_there(place):
    module, function = place.split(":")
    assert callable(getattr(importlib.import_module(module), function))
