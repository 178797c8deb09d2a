"""Pictures named one by one are one dataset, and `-` is a list that comes in at standard input."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from types import SimpleNamespace

import cv2
import numpy as np
import pytest

from roiline.core.errors import DataError
from roiline.infer import folders
from roiline.infer.datasets import describe_source, load_dataset
from roiline.infer.python_api import pair_sources


def write_picture(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(path), np.zeros((8, 9, 3), np.uint8))
    return path


def test_pictures_are_one_dataset_at_the_place_of_the_first(tmp_path: Path) -> None:
    first, second = (str(write_picture(tmp_path / "in" / name)) for name in ("b.png", "a.png"))
    absent = str(tmp_path / "in" / "absent.jpg")
    paired = pair_sources([first, "data.json", second, str(tmp_path), absent], [tmp_path], [])
    assert [one.source for one in paired] == [(first, second, absent), "data.json", str(tmp_path)]
    assert [one.images for one in paired] == [None, tmp_path, None]
    assert [one.source for one in pair_sources([first, str(tmp_path)], [], [])] == [first, str(tmp_path)]
    assert describe_source(paired[0].source) == f"{first}, and 2 more"


def test_ids_are_the_paths_from_the_folder_that_all_share(tmp_path: Path) -> None:
    same = [write_picture(tmp_path / "in" / name) for name in ("b.png", "a.png")]
    dataset = load_dataset(same)
    assert (dataset.name, dataset.kind) == ("in", "pictures")
    assert [entry.image_id for entry in dataset.entries] == ["a.png", "b.png"]
    assert [entry.image_id for entry in load_dataset(tmp_path / "in").entries] == ["a.png", "b.png"]
    apart = load_dataset([*same, write_picture(tmp_path / "other" / "a.png")])
    assert [entry.image_id for entry in apart.entries] == ["in/a.png", "in/b.png", "other/a.png"]


def test_absent_pictures_fail_one_by_one_and_repeated_ones_are_refused(tmp_path: Path) -> None:
    there = write_picture(tmp_path / "a.png")
    dataset = load_dataset([there, tmp_path / "absent.png"])
    assert dataset.total == 2
    assert "absent.png" in dataset.problems[0]
    with pytest.raises(DataError, match="listed twice"):
        load_dataset([there, there])
    with pytest.raises(DataError, match="none of the 2 pictures"):
        load_dataset([tmp_path / "x.png", tmp_path / "y.png"])


def test_standard_input_is_a_list_that_may_be_loaded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_picture(tmp_path / "in" / "a.png")
    folders._read_stdin.cache_clear()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"in/a.png\n\nin/b.png\n")))
    try:
        for _ in range(2):
            dataset = load_dataset("-")
            assert (dataset.name, dataset.kind, dataset.root) == ("stdin", "list", tmp_path)
            assert [entry.image_id for entry in dataset.entries] == ["in/a.png", "in/b.png"]
    finally:
        folders._read_stdin.cache_clear()


def test_an_empty_standard_input_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    folders._read_stdin.cache_clear()
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"")))
    try:
        with pytest.raises(DataError, match="standard input: expected a list"):
            load_dataset("-")
    finally:
        folders._read_stdin.cache_clear()
