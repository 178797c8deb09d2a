from __future__ import annotations

import cv2
import numpy as np
import pytest

from roiline.core.errors import DataError
from roiline.infer.datasets import load_dataset, with_sizes


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "shots"
    (root / "more").mkdir(parents=True)
    for name, size in (("b.png", (4, 5)), ("a.JPG", (6, 7)), ("größe 鳥.webp", (8, 9)), ("more/c.png", (2, 3))):
        suffix = "." + name.rsplit(".", 1)[1].lower()
        (root / name).write_bytes(cv2.imencode(suffix, np.zeros((*size, 3), np.uint8))[1].tobytes())
    (root / "no_suffix").write_bytes((root / "b.png").read_bytes())
    (root / "notes.txt").write_text("b.png\n")
    (root / ".hidden.png").write_bytes(b"")
    return root


def ids(dataset):
    return [entry.image_id for entry in dataset.entries]


def test_a_folder(folder):
    dataset = load_dataset(folder)
    assert (dataset.kind, dataset.name, dataset.categories) == ("folder", "shots", ())
    assert ids(dataset) == ["a.JPG", "b.png", "größe 鳥.webp", "no_suffix"]
    assert dataset.problems == ("file that is no picture (left out): 1 (notes.txt)",)
    assert [(entry.height, entry.width) for entry in with_sizes(dataset.entries)] == [(6, 7), (4, 5), (8, 9), (4, 5)]


def test_a_broken_picture_stays_in_the_list_with_unknown_size(folder):
    (folder / "z.jpg").touch()
    dataset = load_dataset(folder)
    sized = with_sizes(dataset.entries)
    assert ids(dataset)[-1] == "z.jpg"
    assert (sized[-1].height, sized[-1].width) == (0, 0)
    assert (sized[0].height, sized[0].width) == (6, 7)


def test_a_glob(folder):
    flat = load_dataset(str(folder / "*.png"))
    assert (flat.kind, flat.name, ids(flat)) == ("glob", "shots", ["b.png"])
    deep = load_dataset(str(folder.parent / "*" / "**" / "*.png"))
    assert ids(deep) == ["shots/b.png", "shots/more/c.png"]
    assert deep.root == folder.parent
    with pytest.raises(DataError, match="matches no pictures"):
        load_dataset(str(folder / "*.gif"))


def test_a_glob_relative_to_the_working_folder(folder, monkeypatch):
    monkeypatch.chdir(folder)
    dataset = load_dataset("*.png")
    assert (dataset.name, ids(dataset)) == ("shots", ["b.png"])


def test_a_folder_whose_name_has_wildcards(tmp_path):
    root = tmp_path / "run[1]"
    root.mkdir()
    cv2.imwrite(str(root / "a.png"), np.zeros((2, 2, 3), np.uint8))
    assert load_dataset(root).kind == "folder"


def test_a_list(folder):
    path = folder / "list.txt"
    path.write_bytes("\ufeffmore/c.png\r\n\r\n  größe 鳥.webp \n".encode() + str(folder / "b.png").encode())
    dataset = load_dataset(path)
    assert (dataset.kind, dataset.name) == ("list", "list")
    assert ids(dataset) == sorted(["more/c.png", "größe 鳥.webp", str(folder / "b.png")])
    assert all(entry.path.is_file() for entry in dataset.entries)


def test_a_list_with_faults(folder):
    path = folder / "list.txt"
    path.write_text("b.png\na.JPG\nb.png\n")
    with pytest.raises(DataError, match=r"1 pictures are listed twice: b\.png"):
        load_dataset(path)
    path.write_text("b.png\ngone.png\n")
    assert load_dataset(path).problems == ("picture that is not there (will be recorded as failed): 1 (gone.png)",)
    path.write_text("some prose " * 100)
    with pytest.raises(DataError, match="none of the 1 pictures"):
        load_dataset(path)
    path.write_text(" \n")
    with pytest.raises(DataError, match="one picture path a line, it has none"):
        load_dataset(path)
    path.write_bytes(b"\x80\x02}q\x00\xff")
    with pytest.raises(DataError, match="expected a dataset, the file is a pickle"):
        load_dataset(path)


def test_one_picture(folder):
    dataset = load_dataset(folder / "b.png")
    assert (dataset.kind, dataset.name, ids(dataset)) == ("picture", "b", ["b.png"])
    assert ids(load_dataset(folder / "no_suffix")) == ["no_suffix"]


def test_a_folder_without_pictures_says_what_it_has(folder, tmp_path):
    with pytest.raises(DataError, match="its sub-folders shots have some"):
        load_dataset(tmp_path)
    (tmp_path / "instances.json").write_text("{}")
    with pytest.raises(DataError, match=r"it has instances\.json: give that file"):
        load_dataset(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no pictures directly in this folder"):
        load_dataset(tmp_path / "empty")


def test_names_that_are_no_text_are_named(folder):
    (folder / b"bad\xff.png".decode("utf-8", "surrogateescape")).write_bytes((folder / "b.png").read_bytes())
    with pytest.raises(DataError, match=r"1 names are not valid UTF-8, rename them: 'bad\\udcff\.png'"):
        load_dataset(folder)
