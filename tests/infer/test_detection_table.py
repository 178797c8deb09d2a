from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from roiline.core.errors import EXIT_ENGINE, OutputError
from roiline.infer.class_spill import ClassSpill
from roiline.infer.detection_table import _BOX, PayloadSorted


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Holds the files of this process to `size` bytes meanwhile, as a full disk would."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def box_rows(image: int, count: int) -> np.ndarray:
    rows = np.zeros(count, _BOX)
    rows["image"] = image
    rows["row"] = np.arange(5 * count).reshape(count, 5) + 100 * image
    return rows


@pytest.mark.parametrize("waiting_bytes", [1, 200, 1 << 20])
def test_rows_come_back_by_class_and_image_however_often_they_are_written(tmp_path: Path, waiting_bytes: int) -> None:
    random = np.random.default_rng(4)
    spill = ClassSpill(_BOX, 4, tmp_path, waiting_bytes=waiting_bytes)
    expected: dict[tuple[int, int], list[list[float]]] = {}
    for image in (0, 2, 3, 7, 8):
        count = int(random.integers(0, 9))
        rows, classes = box_rows(image, count), random.integers(1, 4, count)
        spill.add(rows, classes)
        for label in (1, 2, 3):
            expected[label, image] = rows["row"][classes == label].tolist()
    for label in (3, 1, 2, 0):
        cells = [cell.tolist() for cell in spill.cells(label, 10, "row")]
        assert cells == [expected.get((label, image), []) for image in range(10)]
    assert list(tmp_path.iterdir()) == [], (
        "a scratch file has no name: nothing is left of it when the process is killed"
    )
    spill.close()


def test_rows_that_do_not_fit_are_said(tmp_path: Path) -> None:
    table = ClassSpill(_BOX, 2, tmp_path, waiting_bytes=1)
    with (
        largest_file(4096),
        pytest.raises(OutputError, match=r"cannot be put together there .*0\.1 MB more are needed") as got,
    ):
        table.add(box_rows(0, 3000), np.ones(3000, np.int64))
    assert got.value.exit_code == EXIT_ENGINE
    table.close()


def test_payloads_that_do_not_fit_are_said(tmp_path: Path) -> None:
    table = PayloadSorted(2, tmp_path)
    one = np.ones(1, np.float32)
    table.add(0, one, [b"abc"], np.ones(1, np.int64))
    with largest_file(4096), pytest.raises(OutputError, match="make room"):
        table.add(1, one, [bytes(8192)], np.ones(1, np.int64))
    table.close()


def test_payloads_come_back_as_they_went_in(tmp_path: Path) -> None:
    table = PayloadSorted(3, tmp_path)
    table.add(0, np.array([0.5, 0.25], np.float32), [b"second", b"first"], np.array([2, 1], np.int64))
    table.add(2, np.array([0.75], np.float32), [b"third"], np.array([1], np.int64))
    first = [None if cell is None else (cell[0].tolist(), cell[1]) for cell in table.cells(1, 3)]
    second = [None if cell is None else (cell[0].tolist(), cell[1]) for cell in table.cells(2, 3)]
    assert first == [([0.25], [b"first"]), None, ([0.75], [b"third"])]
    assert second == [([0.5], [b"second"]), None, None]
    table.close()


def test_a_folder_that_takes_no_files_is_said(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="No such file"):
        ClassSpill(_BOX, 1, tmp_path / "absent")
