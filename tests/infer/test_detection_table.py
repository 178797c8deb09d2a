from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from roiline.core.errors import EXIT_ENGINE, OutputError
from roiline.infer.detection_table import _BOX, ClassSorted, PayloadSorted


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Holds the files of this process to `size` bytes meanwhile, as a full disk would."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_room_for_rows_is_taken_before_they_are_placed(tmp_path: Path) -> None:
    counts = np.array([0, 1000, 2000], np.int64)
    with (
        largest_file(4096),
        pytest.raises(OutputError, match=r"cannot be put together there .*0\.1 MB are needed") as got,
    ):
        ClassSorted(_BOX, counts, tmp_path)
    assert got.value.exit_code == EXIT_ENGINE
    table = ClassSorted(_BOX, counts, tmp_path)
    assert os.fstat(table._scratch.fileno()).st_blocks * 512 >= 3000 * _BOX.itemsize
    table.close()


def test_payloads_that_do_not_fit_are_said(tmp_path: Path) -> None:
    table = PayloadSorted(np.array([0, 2], np.int64), tmp_path)
    one = np.ones(1, np.float32)
    table.add(0, one, [b"abc"], np.ones(1, np.int64))
    with largest_file(4096), pytest.raises(OutputError, match="make room"):
        table.add(1, one, [bytes(8192)], np.ones(1, np.int64))
    table.close()


def test_payloads_come_back_as_they_went_in(tmp_path: Path) -> None:
    table = PayloadSorted(np.array([0, 2, 1], np.int64), tmp_path)
    table.add(0, np.array([0.5, 0.25], np.float32), [b"second", b"first"], np.array([2, 1], np.int64))
    table.add(2, np.array([0.75], np.float32), [b"third"], np.array([1], np.int64))
    first = [None if cell is None else (cell[0].tolist(), cell[1]) for cell in table.cells(1, 3)]
    second = [None if cell is None else (cell[0].tolist(), cell[1]) for cell in table.cells(2, 3)]
    assert first == [([0.25], [b"first"]), None, ([0.75], [b"third"])]
    assert second == [([0.5], [b"second"]), None, None]
    table.close()


def test_a_folder_that_takes_no_files_is_said(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="No such file"):
        ClassSorted(_BOX, np.array([1], np.int64), tmp_path / "absent")
