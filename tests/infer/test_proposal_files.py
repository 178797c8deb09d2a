from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from shared_data import shared_path

from roiline.core.errors import DataError
from roiline.core.structures import RoidbEntry
from roiline.infer.datasets import load_dataset
from roiline.infer.proposal_files import load_proposal_file, read_proposal_file, select_proposals

BOXES = np.array([[10, 10, 30, 30], [5, 5, 50, 40]], np.float32)
SCORES = np.array([0.9, 0.4], np.float32)


def entry(key: int | str, height: int = 60, width: int = 80) -> RoidbEntry:
    return RoidbEntry(key, Path(f"{key}.jpg"), height, width)


def write(path: Path, content: object) -> Path:
    path.write_bytes(pickle.dumps(content, protocol=2))
    return path


def proposals(ids: list[object], **changes: object) -> dict[str, object]:
    return {"boxes": [BOXES] * len(ids), "scores": [SCORES] * len(ids), "ids": ids, **changes}


@pytest.mark.golden
@pytest.mark.parametrize(("folder", "name"), [("box", "coco_cc12"), ("catshuffled", "coco_cc12_catshuffled")])
def test_rows_equal_the_original_loaders(folder: str, name: str) -> None:
    dataset = load_dataset(shared_path(f"golden/dataset/{name}.json"), images=shared_path("golden/dataset/images"))
    file = shared_path(f"golden/dataset/synth/{folder}/rpn_proposals.pkl")
    loaded = load_proposal_file(file, dataset.entries, limit=50)
    with np.load(shared_path(f"golden/dataset/synth/{folder}/roidb_limit50.npz")) as roidb:
        for image, rows in zip(dataset.entries, loaded, strict=True):
            expected = roidb[f"{image.image_id}_boxes"][roidb[f"{image.image_id}_gt_classes"] == 0]
            assert rows.dtype == np.float32
            np.testing.assert_array_equal(rows, expected, err_msg=str(image.image_id))


def test_boxes_are_clipped_to_the_picture() -> None:
    rows = select_proposals(np.array([[-5, -7, 200, 100]], np.float32), entry(1), limit=0)
    np.testing.assert_array_equal(rows, [[0, 0, 79, 59]])


def test_duplicates_after_clipping_and_rounding_leave_the_first() -> None:
    boxes = np.array([[20, 20, 40, 40], [1.2, 2, 90, 30], [20.4, 19.6, 40, 40], [0.8, 2, 79, 30]], np.float32)
    rows = select_proposals(boxes, entry(1), limit=0)
    np.testing.assert_array_equal(rows, np.array([[20, 20, 40, 40], [1.2, 2, 79, 30]], np.float32))


def test_duplicates_are_found_as_the_original_hashes_them() -> None:
    boxes = np.array([[1000, 5, 1500, 90], [0, 6, 1500, 90]], np.float32)
    assert len(select_proposals(boxes, entry(1, 2000, 2000), limit=0)) == 1


def test_slivers_are_dropped_strictly_at_two_pixels() -> None:
    boxes = np.array([[10, 10, 11, 30], [10, 10, 30, 11], [10, 10, 11.5, 12], [10, 10, 13, 12]], np.float32)
    rows = select_proposals(boxes, entry(1), limit=0)
    np.testing.assert_array_equal(rows, np.array([[10, 10, 11.5, 12], [10, 10, 13, 12]], np.float32))


def test_the_limit_counts_after_the_filters(tmp_path: Path) -> None:
    boxes = np.concatenate([BOXES[:1], BOXES[:1], BOXES[1:]])
    file = write(tmp_path / "p.pkl", proposals([1], boxes=[boxes], scores=[np.zeros(3, np.float32)]))
    assert [len(load_proposal_file(file, [entry(1)], limit=limit)[0]) for limit in (1, 2, 0, -1)] == [1, 2, 2, 2]


def test_entries_get_their_own_rows_and_other_pictures_are_dropped(tmp_path: Path) -> None:
    content = {"boxes": [BOXES + shift for shift in (3, 1, 2)], "scores": [SCORES] * 3, "ids": np.array([30, 10, 20])}
    file = write(tmp_path / "p.pkl", content)
    first, second = load_proposal_file(file, [entry(10), entry(30)], limit=1)
    np.testing.assert_array_equal(first, BOXES[:1] + 1)
    np.testing.assert_array_equal(second, BOXES[:1] + 3)


def test_old_files_name_their_ids_indexes(tmp_path: Path) -> None:
    content = {"boxes": [BOXES.astype(np.uint16)], "scores": [np.zeros((2, 1))], "indexes": ["a"]}
    file = write(tmp_path / "p.pkl", content)
    np.testing.assert_array_equal(load_proposal_file(file, [entry("a")], limit=0)[0], BOXES)


@pytest.mark.parametrize("rows", [[], np.zeros((0, 4), np.float32), np.zeros(0, np.float32)])
def test_a_picture_may_have_no_proposals(tmp_path: Path, rows: object) -> None:
    file = write(tmp_path / "p.pkl", proposals([1], boxes=[rows], scores=[np.zeros(0, np.float32)]))
    assert load_proposal_file(file, [entry(1)], limit=5)[0].shape == (0, 4)


def test_missing_pictures_are_named(tmp_path: Path) -> None:
    file = write(tmp_path / "p.pkl", proposals([1, 2]))
    with pytest.raises(DataError, match=r"no proposals for 2 of the dataset's 3 pictures: 'x', 7; .* ids are 1, 2"):
        load_proposal_file(file, [entry(1), entry("x"), entry(7)], limit=0)


def test_repeated_pictures_are_named_only_where_they_matter(tmp_path: Path) -> None:
    file = write(tmp_path / "p.pkl", proposals([1, 2, 2]))
    assert len(load_proposal_file(file, [entry(1)], limit=0)) == 1
    with pytest.raises(DataError, match="1 pictures more than once: 2"):
        load_proposal_file(file, [entry(1), entry(2)], limit=0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"all_boxes": [[]]}, "expected a proposal file .* got a dict of all_boxes"),
        ([1, 2], "got a list"),
        (proposals([1, 2], scores=[SCORES]), "expected lists of equal length"),
        (proposals([1], boxes=[BOXES[:, :3]]), r"boxes of picture 1: expected shape \(R, 4\), got \(2, 3\)"),
        (proposals([1], boxes=[BOXES * np.nan]), "expected finite numbers"),
        (proposals([1], scores=[SCORES * np.inf]), "scores of picture 1: expected finite numbers"),
        (proposals([1], scores=[SCORES[:1]]), "1 scores for 2 boxes"),
        (proposals([1], boxes=["box"]), "expected an array of numbers, got a str"),
        (proposals([1.5]), "ids that are integers or text, got 1.5"),
        (proposals([1], boxes=7), "got a int in `boxes`"),
        (proposals([1], boxes=np.array(7)), "got a ndarray in `boxes`"),
        (proposals([1], bbox_mode=np.zeros(2)), "`bbox_mode` is a ndarray"),
        (proposals([1], bbox_mode=10**5000), "`bbox_mode` is a int"),
        (proposals([10**5000]), "ids that are integers or text, got a int"),
        (proposals([1], boxes=[BOXES * 1j]), "expected an array of numbers, got a ndarray"),
        (proposals([1], boxes=[[[1, 2, 3, 10**400]] * 2]), "expected finite numbers"),
        (proposals([1], boxes=[BOXES.astype(np.float64) * 1e300]), "expected finite numbers"),
        (proposals([1], scores=[[10**400, 1]]), "scores of picture 1: expected finite numbers"),
    ],
)
def test_faults_are_named(tmp_path: Path, content: object, message: str) -> None:
    file = write(tmp_path / "p.pkl", content)
    with pytest.raises(DataError, match=message) as caught:
        read_proposal_file(file)
    assert str(file) in str(caught.value)


class _Runner:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("true",)


def test_a_pickle_that_runs_code_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path / "p.pkl", proposals([1], cfg=_Runner()))
    with pytest.raises(DataError):
        read_proposal_file(file)


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path / "p.pkl", proposals([1, 2]))
    file.write_bytes(file.read_bytes()[:-40])
    with pytest.raises(DataError):
        read_proposal_file(file)


def test_clipping_needs_the_size() -> None:
    with pytest.raises(DataError, match="size must be known"):
        select_proposals(BOXES, entry("a", 0, 0), limit=0)
