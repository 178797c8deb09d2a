from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from roiline.core.errors import DataError
from roiline.core.structures import Detections, Proposals, Result
from roiline.infer.shards import (
    Failure,
    ShardFile,
    find_done_shards,
    open_shard,
    set_aside_shard,
    shard_path,
    write_shard,
)

RESULTS: list[tuple[int, Result | Failure]] = [
    (
        7,
        Detections(70, np.arange(12, dtype=np.float32).reshape(3, 4), np.float32([0.9, 0.5, 0.1]), np.array([1, 1, 2])),
    ),
    (2, Failure("ä/b.jpg", "the file is empty")),
    (
        3,
        Detections(
            33,
            np.ones((2, 4), np.float32),
            np.float32([0.8, 0.7]),
            np.array([1, 1]),
            masks=(b"04", b"", b"PlZ8"),
            keypoints=np.arange(12, dtype=np.float32).reshape(1, 4, 3),
            size_hw=(5, 6),
            mask_rows=Detections(
                33, np.ones((3, 4), np.float32), np.float32([0.3, 0.2, 0.1]), np.array([1, 2, 2]), size_hw=(40, 50)
            ),
            keypoint_rows=Detections(33, np.ones((1, 4), np.float32), np.float32([0.5]), np.array([2])),
        ),
    ),
    (
        4,
        Detections(
            34,
            np.zeros((1, 4), np.float32),
            np.float32([0.6]),
            np.array([2]),
            masks=(b"<",),
            keypoints=np.full((1, 4, 2), 0.5, np.float32),
            size_hw=(3, 4),
        ),
    ),
    (5, Detections(2**60, np.zeros((0, 4), np.float32), np.zeros(0, np.float32), np.zeros(0, np.int64))),
]
POSITIONS = [position for position, _ in RESULTS]
IDENTITY = "a" * 64


def write(folder: Path, index: int = 0, identity: str = IDENTITY) -> Path:
    path = shard_path(folder, index)
    write_shard(path, identity=identity, index=index, task="detections", results=RESULTS)
    return path


def test_a_shard_reads_back(tmp_path: Path) -> None:
    write(tmp_path)
    shard = open_shard(tmp_path, 0, identity=IDENTITY, positions=POSITIONS)
    assert [(i.position, i.image_id, i.rows, i.failure) for i in shard.header.images] == [
        (7, 70, 3, None),
        (2, "ä/b.jpg", 0, "the file is empty"),
        (3, 33, 2, None),
        (4, 34, 1, None),
        (5, 2**60, 0, None),
    ]
    rows = shard.rows(0)
    expected = RESULTS[0][1]
    assert isinstance(expected, Detections)
    assert np.array_equal(rows.boxes, expected.boxes)
    assert np.array_equal(rows.scores, expected.scores)
    assert np.array_equal(rows.classes, expected.classes)
    assert (rows.boxes.dtype, rows.scores.dtype, rows.classes.dtype) == (np.float32, np.float32, np.int64)
    assert (len(rows.masks), len(rows.keypoints)) == (0, 0)
    for place in (1, 4):
        assert shard.rows(place).boxes.shape == (0, 4)


def test_masks_and_keypoints_read_back(tmp_path: Path) -> None:
    write(tmp_path)
    shard = open_shard(tmp_path, 0, identity=IDENTITY, positions=POSITIONS)
    first, second = shard.rows(2), shard.rows(3)
    assert first.boxes.shape == (2, 4)
    assert first.masks.counts == (b"04", b"", b"PlZ8")
    assert first.masks.size_hw == (40, 50)
    assert first.masks.classes.tolist() == [1, 2, 2]
    assert np.array_equal(first.masks.scores, np.float32([0.3, 0.2, 0.1]))
    assert np.array_equal(first.keypoints.points, np.arange(12, dtype=np.float32).reshape(1, 4, 3))
    assert (first.keypoints.scores.tolist(), first.keypoints.classes.tolist()) == ([0.5], [2])
    assert (second.masks.counts, second.masks.size_hw) == ((b"<",), (3, 4))
    assert np.array_equal(second.masks.scores, np.float32([0.6]))
    assert np.array_equal(second.keypoints.points, np.full((1, 4, 2), 0.5, np.float32))
    assert [classes.tolist() for classes in shard.classes(2)] == [[1, 1], [1, 2, 2], [2]]
    assert [classes.tolist() for classes in shard.classes(1)] == [[], [], []]


def test_an_image_may_have_masks_and_no_boxes(tmp_path: Path) -> None:
    none = (np.zeros((0, 4), np.float32), np.zeros(0, np.float32), np.zeros(0, np.int64))
    one = Detections(1, np.zeros((1, 4), np.float32), np.float32([0.6]), np.array([2]), size_hw=(3, 4))
    write_shard(
        shard_path(tmp_path, 0),
        identity=IDENTITY,
        index=0,
        task="detections",
        results=[(0, Detections(1, *none, masks=(b"<",), mask_rows=one))],
    )
    rows = ShardFile(shard_path(tmp_path, 0)).rows(0)
    assert (len(rows.scores), rows.masks.counts) == (0, (b"<",))


def test_proposals_have_no_classes(tmp_path: Path) -> None:
    path = shard_path(tmp_path, 3)
    results: list[tuple[int, Result | Failure]] = [
        (i, Proposals(i, np.full((i, 4), i, np.float32), np.full(i, i, np.float32))) for i in range(4)
    ]
    write_shard(path, identity=IDENTITY, index=3, task="proposals", results=results)
    shard = ShardFile(path)
    shard.check()
    assert [shard.rows(i).scores.tolist() for i in range(4)] == [[], [1], [2, 2], [3, 3, 3]]
    assert np.array_equal(shard.rows(3).boxes, np.full((3, 4), 3, np.float32))
    assert shard.rows(3).classes.size == 0


def test_equal_results_give_equal_bytes(tmp_path: Path) -> None:
    (tmp_path / "again").mkdir()
    assert write(tmp_path).read_bytes() == write(tmp_path / "again").read_bytes()


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(DataError):
            open_shard(tmp_path, 0, identity=IDENTITY, positions=POSITIONS)
    path.write_bytes(whole + b"x")
    with pytest.raises(DataError):
        open_shard(tmp_path, 0, identity=IDENTITY, positions=POSITIONS)


def test_a_changed_byte_anywhere_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path)
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        with pytest.raises(DataError):
            open_shard(tmp_path, 0, identity=IDENTITY, positions=POSITIONS)


def test_shards_of_another_run_place_or_plan_are_refused(tmp_path: Path) -> None:
    write(tmp_path)
    with pytest.raises(DataError, match="another run"):
        open_shard(tmp_path, 0, identity="b" * 64, positions=POSITIONS)
    with pytest.raises(DataError, match="other images"):
        open_shard(tmp_path, 0, identity=IDENTITY, positions=POSITIONS[:2])
    shard_path(tmp_path, 0).rename(shard_path(tmp_path, 1))
    with pytest.raises(DataError, match="other images"):
        open_shard(tmp_path, 1, identity=IDENTITY, positions=POSITIONS)


def test_done_and_bad_shards_are_told_apart(tmp_path: Path) -> None:
    for index in (0, 2):
        write(tmp_path, index)
    shard_path(tmp_path, 3).write_bytes(b"\x80\x02N.")
    done, bad = find_done_shards(tmp_path, [POSITIONS] * 5, identity=IDENTITY)
    assert sorted(done) == [0, 2]
    assert list(bad) == [3]
    assert "not a shard" in bad[3]
    set_aside_shard(tmp_path, 3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000000.shard", "000002.shard", "000003.shard.bad"]
