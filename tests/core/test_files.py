from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from roiline.core.errors import DataError, UsageError
from roiline.core.files import (
    FolderLock,
    read_json_object,
    remove_temporaries,
    sha256_of_file,
    write_durable,
    write_json,
)


def test_a_file_is_written_whole(tmp_path: Path) -> None:
    write_durable(tmp_path / "a", b"one ", b"two")
    assert (tmp_path / "a").read_bytes() == b"one two"
    assert sha256_of_file(tmp_path / "a") == "8ab63e29a4ba14e4e1688f9c15e5af90895421358c945b0431f85d66977bd3d2"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    write_durable(tmp_path / "a", b"old")
    with pytest.raises(TypeError):
        write_durable(tmp_path / "a", b"half of the new", "text")  # type: ignore[arg-type]
    assert (tmp_path / "a").read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_killed_writer_leaves_the_old_file(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path; from roiline.core.files import durable_file\n"
        "with durable_file(Path(sys.argv[1])) as stream:\n"
        "    stream.write(b'half'); stream.flush(); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    write_durable(tmp_path / "a", b"old")
    ended = subprocess.run([sys.executable, "-c", code, str(tmp_path / "a")], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert (tmp_path / "a").read_bytes() == b"old"
    assert len(list(tmp_path.iterdir())) == 2
    remove_temporaries(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_json_reads_back(tmp_path: Path) -> None:
    value = {"format_version": 3, "name": "ä", "rows": [1, 2.5, None]}
    write_json(tmp_path / "a.json", value)
    assert read_json_object(tmp_path / "a.json", format_version=3) == value


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "cannot be read as JSON"),
        (b"[1]", "expected a JSON object, got list"),
        (b"{}", "format version None, this roiline reads 3"),
        (b'{"format_version": 4}', "format version 4"),
        (b"\xff", "cannot be read as JSON"),
    ],
)
def test_json_that_is_not_ours_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_json_object(tmp_path / "a.json", format_version=3)


def test_json_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a\.json: no such file"):
        read_json_object(tmp_path / "a.json", format_version=3)


def test_a_lock_is_held_by_one_at_a_time(tmp_path: Path) -> None:
    with FolderLock(tmp_path):
        with pytest.raises(UsageError, match=f"another run .process {os.getpid()}."), FolderLock(tmp_path):
            pass
        assert (tmp_path / ".lock").read_text() == f"{os.getpid()}\n"
    with FolderLock(tmp_path):
        pass


def test_the_lock_of_a_killed_process_does_not_block(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path; from roiline.core.files import FolderLock\n"
        "with FolderLock(Path(sys.argv[1])): os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert (tmp_path / ".lock").exists()
    with FolderLock(tmp_path):
        pass
