"""An engine of somebody else's, named as module:function: opened for single pictures and by the processes of a run."""

from __future__ import annotations

import json

import pytest

import roiline
from roiline.core.errors import UsageError
from roiline.engines.registry import open_engine, resolve_engine

MODULE = """
from roiline.engines.fake import open_backend as open_fake

def open_backend(path, stage, device):
    backend = open_fake(path, stage, device)
    backend.description = {**backend.description, "backend": "mine"}
    return backend

NUMBER = 3
"""


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    """Writes a module where this process finds it; those that it starts look in the same places."""
    (tmp_path / "own_engine_of_a_test.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "own_engine_of_a_test"


def test_it_answers_single_pictures(own_module, digits_model, digits_picture):
    with open_engine(digits_model, engine=f"{own_module}:open_backend") as engine:
        assert engine.description["backend"] == "mine"
    with (
        roiline.open(digits_model, engine=f"{own_module}:open_backend") as mine,
        roiline.open(digits_model, engine="fake") as fake,
    ):
        assert mine.detect(digits_picture).boxes.tolist() == fake.detect(digits_picture).boxes.tolist()


def test_the_processes_of_a_run_find_it(own_module, digits_model, digits, tmp_path):
    out = tmp_path / "out"
    name = f"{own_module}:open_backend"
    summary = roiline.run(digits_model, digits / "pictures", out, engine=name, limit=2, cpu_workers=1)
    assert (summary.exit_code, summary.images) == (0, 2)
    assert name in (out / "run.json").read_text()
    assert json.loads((out / "failed.json").read_text())["failed"] == []


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nowhere_at_all:open_backend", "No module named 'nowhere_at_all'"),
        ("own_engine_of_a_test:close_backend", "has no attribute 'close_backend'"),
        ("own_engine_of_a_test:NUMBER", "expected a function, got int"),
        (":open_backend", "expected module:function"),
        ("../engine:open_backend", "by its whole name"),
    ],
)
def test_one_that_is_not_there(own_module, digits_model, name, said):
    with pytest.raises(UsageError, match=said):
        open_engine(digits_model, engine=name)


def test_an_unknown_name_says_how_to_give_an_own_one():
    with pytest.raises(UsageError, match="and module:function for one of your own"):
        resolve_engine("mine")
