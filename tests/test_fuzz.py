"""A short run of the fuzzer over every reader; `python tests/fuzz_readers.py` is the long one."""

from __future__ import annotations

import fuzz_readers
import fuzz_targets
import pytest


@pytest.fixture(scope="module")
def names(tmp_path_factory):
    return list(fuzz_targets.build_targets(tmp_path_factory.mktemp("names")))


@pytest.mark.parametrize("part", range(3))
def test_readers_answer_or_refuse(names, part, tmp_path):
    for name in names[part::3]:
        folder = tmp_path / name
        folder.mkdir()
        counts, findings = fuzz_readers.fuzz(name, 60, 7, folder)
        assert not findings, findings[0]
        assert counts["read"] + counts["refused"] == 60


def test_a_reader_that_breaks_is_found(monkeypatch, tmp_path):
    target = fuzz_targets.Target(lambda chance: b"x", lambda folder: (folder / "x", lambda path: 1 / 0))
    monkeypatch.setattr(fuzz_targets, "build_targets", lambda folder: {"broken": target})
    counts, findings = fuzz_readers.fuzz("broken", 3, 1, tmp_path)
    assert counts["findings"] == 3
    assert "ZeroDivisionError" in findings[0]


def test_a_reader_that_hangs_is_found(monkeypatch, tmp_path):
    def hang(_path):
        while True:
            pass

    target = fuzz_targets.Target(lambda chance: b"x", lambda folder: (folder / "x", hang))
    monkeypatch.setattr(fuzz_targets, "build_targets", lambda folder: {"hanging": target})
    monkeypatch.setattr(fuzz_readers, "TIME_LIMIT_S", 0.05)
    counts, findings = fuzz_readers.fuzz("hanging", 1, 1, tmp_path)
    assert counts["findings"] == 1
    assert "HangError" in findings[0]
