from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from roiline.core.errors import DataError, UsageError
from roiline.infer.manifest import (
    DatasetRecord,
    Manifest,
    ResultClass,
    RunSettings,
    check_same_run,
    describe_environment,
    read_manifest,
    write_manifest,
)
from roiline.infer.request import RunOverrides

SETTINGS = RunSettings("m" * 64, "fake", "fp32", "detections", "d" * 64, (0, 9), "apply", "exact", None, RunOverrides())
MANIFEST = Manifest(
    format_version=1,
    identity=SETTINGS.identity,
    settings=SETTINGS,
    dataset=DatasetRecord("data", "coco", "data.json", 12, ("one thing",)),
    classes=(ResultClass(7, "cät"),),
    class_order=(0, 1),
    plus_one=True,
    config_yaml="A: 1\n",
    shard_sizes=(4, 4, 1),
    named_range=(0, 9),
    started_at=1.5,
    finished=False,
    request={"limit": None, "fresh": True, "batch_size": 4, "model": "m"},
    environment=describe_environment(),
    workers=({"device": "cpu 0"},),
)


def test_a_manifest_reads_back(tmp_path: Path) -> None:
    assert read_manifest(tmp_path) is None
    write_manifest(tmp_path, MANIFEST)
    assert read_manifest(tmp_path) == MANIFEST
    assert MANIFEST.images == 9


@pytest.mark.parametrize(
    "change",
    [
        {"model_sha256": "x"},
        {"engine": "onnxruntime"},
        {"precision": "fp16"},
        {"task": "proposals"},
        {"dataset": "x"},
        {"id_range": (0, 8)},
        {"exif": "ignore"},
        {"batch_mode": "padded", "batch_size": 2},
        {"overrides": RunOverrides(max_dets=0)},
    ],
    ids=str,
)
def test_everything_that_changes_answers_changes_the_identity(change: dict[str, Any], tmp_path: Path) -> None:
    other = replace(SETTINGS, **change)
    assert other.identity != SETTINGS.identity
    with pytest.raises(UsageError, match="holds another run; what differs:") as caught:
        check_same_run(tmp_path, SETTINGS, other)
    assert str(caught.value).count("\n") == 1 + len(change)


def test_a_changed_manifest_is_refused(tmp_path: Path) -> None:
    write_manifest(tmp_path, MANIFEST)
    plain = json.loads((tmp_path / "run.json").read_text())
    plain["settings"]["engine"] = "other"
    (tmp_path / "run.json").write_text(json.dumps(plain))
    with pytest.raises(DataError, match="its identity does not fit its settings"):
        read_manifest(tmp_path)
    del plain["settings"]["engine"]
    (tmp_path / "run.json").write_text(json.dumps(plain))
    with pytest.raises(DataError, match="engine"):
        read_manifest(tmp_path)


def test_the_environment_names_versions() -> None:
    environment = describe_environment()
    assert {"python", "platform", "roiline", "numpy", "onnx"} <= set(environment)
