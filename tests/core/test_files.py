from __future__ import annotations

import errno
import fcntl
import os
import platform
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from roiline.core.errors import EXIT_ENGINE, DataError, ModelError, OutputError, UsageError
from roiline.core.files import (
    FolderLock,
    check_output,
    durable_file,
    lock_holder,
    make_folder,
    open_input,
    read_input,
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
        assert (tmp_path / ".lock").read_text() == f"{os.getpid()} {platform.node()}\n"
        assert lock_holder(tmp_path) == f"process {os.getpid()}"
    assert lock_holder(tmp_path) is None
    with FolderLock(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_holder_on_another_machine_is_named_with_it(tmp_path: Path) -> None:
    with FolderLock(tmp_path):
        (tmp_path / ".lock").write_text("4711 far-away\n")
        assert lock_holder(tmp_path) == "process 4711 on far-away"
        with pytest.raises(UsageError, match=r"another run \(process 4711 on far-away\)"), FolderLock(tmp_path):
            pass


def test_a_lock_takes_away_what_it_made_and_nothing_else(tmp_path: Path) -> None:
    with FolderLock(tmp_path / "a" / "b"):
        assert (tmp_path / "a" / "b" / ".lock").exists()
    assert list(tmp_path.iterdir()) == []
    with FolderLock(tmp_path / "a" / "b"):
        (tmp_path / "a" / "mine").touch()
    assert list((tmp_path / "a").iterdir()) == [tmp_path / "a" / "mine"]
    (tmp_path / "empty").mkdir()
    with FolderLock(tmp_path / "empty"):
        pass
    assert (tmp_path / "empty").is_dir()


def test_a_lock_that_its_holder_removes_meanwhile_is_taken_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = FolderLock(tmp_path)
    held.__enter__()
    flock = fcntl.flock

    def leave_first(*args: int) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)
        held.__exit__(None, None, None)  # after the file was opened, before it is held
        flock(*args)

    monkeypatch.setattr(fcntl, "flock", leave_first)
    with FolderLock(tmp_path), pytest.raises(UsageError), FolderLock(tmp_path):
        pass


def test_a_look_at_a_lock_does_not_refuse_a_run(tmp_path: Path) -> None:
    with (tmp_path / ".lock").open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_SH)
        threading.Timer(0.05, lambda: fcntl.flock(stream, fcntl.LOCK_UN)).start()
        with FolderLock(tmp_path):
            pass


def test_folders_without_a_lock_have_no_holder(tmp_path: Path) -> None:
    (tmp_path / ".lock").write_text("4711 here\n")
    assert lock_holder(tmp_path) is None
    assert lock_holder(tmp_path / "absent") is None


def test_the_lock_of_a_killed_process_does_not_block(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path; from roiline.core.files import FolderLock\n"
        "with FolderLock(Path(sys.argv[1])): os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert (tmp_path / ".lock").exists()
    with FolderLock(tmp_path):
        pass


def _kill_a_writer(path: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path; from roiline.core.files import durable_file\n"
        "with durable_file(Path(sys.argv[1])): os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], check=False)


def test_the_next_writer_removes_what_a_killed_one_left_and_nothing_else(tmp_path: Path) -> None:
    _kill_a_writer(tmp_path / "a")
    (tmp_path / ".film.mp4.part").touch()
    assert len(list(tmp_path.iterdir())) == 2
    write_durable(tmp_path / "b", b"new")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".film.mp4.part", "b"]


def test_a_writer_leaves_the_temporary_files_of_living_ones(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from roiline.core.files import write_durable\n"
        "write_durable(Path(sys.argv[1]), b'theirs')\n"
    )
    with durable_file(tmp_path / "a") as stream:
        subprocess.run([sys.executable, "-c", code, str(tmp_path / "b")], check=True)
        stream.write(b"ours")
    assert (tmp_path / "a").read_bytes() == b"ours"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_the_longest_name_that_a_folder_can_have_is_written(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 251 + ".png")
    write_durable(path, b"picture")
    assert path.read_bytes() == b"picture"


def test_what_a_link_points_to_is_replaced_and_not_the_link(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there" / "a")
    write_durable(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "there" / "a").read_bytes() == b"new"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("folder", "cannot be written, this is a folder"),
        ("pipe", "cannot be written, this is a pipe"),
        ("device", "cannot be written, this is a device"),
        ("file/below", "Not a directory"),
        ("gone/below", "No such file or directory"),
        ("n" * 300, "File name too long"),
    ],
)
def test_a_place_where_nothing_can_be_written_is_named(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "device").symlink_to(os.devnull)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OutputError, match=message) as raised:
        write_durable(tmp_path / name, b"x")
    assert str(raised.value).startswith(f"{tmp_path / name}: cannot be written")
    assert raised.value.exit_code == EXIT_ENGINE
    assert isinstance(raised.value, OSError)
    assert not list(tmp_path.glob(".*"))


def test_a_full_disk_is_named_with_what_to_do(tmp_path: Path) -> None:
    named = pytest.raises(OutputError, match=r"a: cannot be written \(No space left on device\); make room")
    with named as raised, durable_file(tmp_path / "a"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert raised.value.errno == errno.ENOSPC
    assert not list(tmp_path.iterdir())


def test_an_error_of_another_file_stays_what_it_is(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="other"), durable_file(tmp_path / "a"):
        (tmp_path / "other").read_bytes()


def test_a_lock_and_leftovers_that_are_folders_are_named(tmp_path: Path) -> None:
    (tmp_path / ".lock").mkdir()
    (tmp_path / ".a.part").mkdir()
    with pytest.raises(OutputError, match=r"\.lock: cannot be written \(Is a directory\)"), FolderLock(tmp_path):
        pass
    with pytest.raises(OutputError, match=r"\.a\.part: cannot be removed"):
        remove_temporaries(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="file: cannot be made a folder"):
        make_folder(tmp_path / "file")
    with pytest.raises(UsageError, match=r"below: cannot be made a folder"):
        make_folder(tmp_path / "file" / "below")
    with pytest.raises(OutputError, match=r"cannot be made a folder \(File name too long"):
        make_folder(tmp_path / ("n" * 300))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gone", "gone: no such file"),
        ("folder", "expected a file, this is a folder"),
        ("pipe", "expected a file, this is a pipe"),
        ("device", "expected a file, this is a device"),
        ("n" * 300, "cannot be read .File name too long"),
        ("a\0b", "cannot be read .embedded null byte"),
    ],
)
def test_inputs_are_regular_files(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "device").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ModelError, match=message):
        open_input(tmp_path / name, error=ModelError)


def test_an_input_is_read_up_to_its_limit(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12345")
    assert read_input(tmp_path / "a") == b"12345"
    assert read_input(tmp_path / "a", limit=5) == b"12345"
    with pytest.raises(DataError, match="too much"):
        read_input(tmp_path / "a", limit=4)


def test_an_output_is_none_of_the_inputs(tmp_path: Path) -> None:
    (tmp_path / "in").touch()
    (tmp_path / "link").symlink_to("in")
    os.link(tmp_path / "in", tmp_path / "twin")
    for name in ("in", "link", "twin"):
        with pytest.raises(UsageError, match="destroy it"):
            check_output(tmp_path / name, [tmp_path / "gone", tmp_path / "in"])
    with pytest.raises(UsageError, match="this is a folder"):
        check_output(tmp_path, [])
    with pytest.raises(UsageError, match="this is a device"):
        check_output(Path(os.devnull), [])
    check_output(tmp_path / "new", [tmp_path / "in"])


def test_json_of_ours_holds_finite_numbers(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "a.json", {"x": float("nan")})
    assert not list(tmp_path.iterdir())


WRITER = """
import sys
from pathlib import Path
from roiline.core import files
for number in range(60):
    files._remove_leftovers.cache_clear()
    files.write_durable(Path(sys.argv[1]) / f"{sys.argv[2]}-{number}", b"x" * 100)
"""


def test_writers_that_clean_up_do_not_take_each_others_files(tmp_path: Path) -> None:
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), str(number)]) for number in range(3)]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    assert len(list(tmp_path.iterdir())) == 180


def test_a_large_limit_takes_no_memory_for_a_small_file(tmp_path):
    path = tmp_path / "small"
    path.write_bytes(b"abc")
    code = (
        "import resource, sys; from roiline.core.files import read_input\n"
        "resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))\n"
        "print(read_input(sys.argv[1], limit=1 << 31))"
    )
    answer = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "b'abc'"
