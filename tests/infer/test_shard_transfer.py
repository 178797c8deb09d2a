from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from roiline.core.errors import DataError, OutputError
from roiline.core.structures import Proposals
from roiline.infer.shard_transfer import keep_shard, take_shard
from roiline.infer.shards import open_shard, shard_path, tap_path, write_shard


def write_one(folder: Path, *, taps: bytes | None = None) -> Path:
    path = shard_path(folder, 3)
    digests = {}
    if taps is not None:
        tap_path(path, 5).parent.mkdir()
        tap_path(path, 5).write_bytes(taps)
        digests = {5: hashlib.sha256(taps).hexdigest()}
    result = Proposals(17, np.zeros((2, 4), np.float32), np.ones(2, np.float32))
    write_shard(path, identity="a" * 64, index=3, task="proposals", results=[(5, result)], taps=digests)
    return path


@pytest.mark.parametrize("taps", [None, b"some blobs"])
def test_a_shard_arrives_as_it_was_and_leaves_nothing_behind(tmp_path: Path, taps: bytes | None) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    there.mkdir()
    here.mkdir()
    path = write_one(there, taps=taps)
    content = path.read_bytes()
    files = take_shard(path)
    assert not list(there.iterdir())
    keep_shard(files, shard_path(here, 3))
    assert shard_path(here, 3).read_bytes() == content
    arrived = open_shard(here, 3, identity="a" * 64, positions=[5])  # checks the content and the taps
    tap = arrived.taps(0)
    assert (None if tap is None else tap.read_bytes()) == taps


@pytest.mark.parametrize("change", [lambda b: b[:-1], lambda b: b"X" + b[1:], lambda b: b"", lambda b: b[:60] + b[61:]])
def test_a_shard_that_was_changed_on_its_way_is_not_kept(tmp_path: Path, change) -> None:
    path = write_one(tmp_path)
    files = take_shard(path)
    with pytest.raises(DataError, match="does not fit its checksum"):
        keep_shard(replace(files, content=change(files.content)), path)
    assert not path.exists()


def test_a_folder_that_is_gone_is_named(tmp_path: Path) -> None:
    files = take_shard(write_one(tmp_path))
    with pytest.raises(OutputError, match=r"gone/000003\.shard: cannot be written"):
        keep_shard(files, shard_path(tmp_path / "gone", 3))
