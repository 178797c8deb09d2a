"""Tapped blobs in dataset runs: their files, their names, and that neither workers, batches nor a kill change a byte of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest
from run_support import make_request, make_spec, write_model, write_pictures

from roiline.core.errors import DataError, UsageError
from roiline.core.structures import Taps
from roiline.infer.combination import check_models_taps
from roiline.infer.dry_run import plan_run
from roiline.infer.outputs import merge_outputs
from roiline.infer.request import DataSource
from roiline.infer.run import run_dataset
from roiline.infer.taps import LONGEST_NAME, check_tap_names, link_taps, name_tap_file, write_taps

IMAGES = 23
IDS = [3 * number + 7 for number in range(IMAGES)]
TAPS = ("fc6", "rpn_cls_probs_fpn2")
BLOBS: Taps = {
    "res2/sum": np.arange(6, dtype=np.float32).reshape(1, 2, 3).T,
    "count": np.array(3),
    "none": np.zeros((0, 5)),
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("root")
    write_model(folder / "model.onnx", make_spec(taps=TAPS))
    write_pictures(folder / "pictures", IMAGES)
    return folder


@pytest.fixture(scope="module")
def reference(root: Path) -> dict[str, bytes]:
    """The files of a plain run with one worker."""
    assert run_dataset(make_request(root, root / "reference"), progress=False).exit_code == 0
    return tap_bytes(root / "reference")


def tap_bytes(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (out / "taps").iterdir()}


# -- files -----------------------------------------------------------------------------------------------------------------------


def test_a_file_holds_the_blobs_as_they_are_and_the_same_blobs_give_the_same_bytes(tmp_path: Path) -> None:
    one, other = tmp_path / "a.taps" / "0.npz", tmp_path / "b.taps" / "1.npz"
    assert write_taps(one, BLOBS) == write_taps(other, {name: blob.copy() for name, blob in BLOBS.items()})
    assert one.read_bytes() == other.read_bytes()
    with np.load(one, allow_pickle=False) as stored:
        assert stored.files == list(BLOBS)
        for name, blob in BLOBS.items():
            assert (stored[name].dtype, stored[name].shape) == (blob.dtype, blob.shape)
            np.testing.assert_array_equal(stored[name], blob)
    assert write_taps(one, {**BLOBS, "count": np.array(4)}) != write_taps(one, BLOBS)


@pytest.mark.parametrize(
    "image_id", [7, "a/b.jpg", "ä 1%2F.png", ".hidden", "..", 'w\\:*?"<>|', "line\nend", "x" * 200]
)
def test_names_are_file_names_from_which_the_id_can_be_read(image_id: int | str, tmp_path: Path) -> None:
    name = name_tap_file(image_id)
    assert Path(name).name == name
    assert not name.startswith(".")
    assert unquote(name.removesuffix(".npz")) == str(image_id)
    write_taps(tmp_path / name, BLOBS)


def test_ids_that_cannot_name_a_file_are_said() -> None:
    with pytest.raises(DataError, match=f"the most is {LONGEST_NAME}"):
        name_tap_file("/" * 90)
    with pytest.raises(DataError, match=r"images 1 and '1': their taps would both be saved as 1\.npz"):
        check_tap_names([1, 2, "1"])
    check_tap_names([1, "a/b", "a%2Fb"])


def test_links_follow_their_sources_and_stale_files_go(tmp_path: Path) -> None:
    sources = {image_id: tmp_path / f"{image_id}.npz" for image_id in ("a/b", "c")}
    for path in sources.values():
        write_taps(path, BLOBS)
    link_taps(tmp_path, sources.items())
    first = tmp_path / "taps" / "a%2Fb.npz"
    assert first.samefile(sources["a/b"])
    write_taps(sources["a/b"], {"other": np.ones(2)})
    (tmp_path / "taps" / "notes.txt").touch()
    (tmp_path / "taps" / ".c.npz.1.part").touch()
    link_taps(tmp_path, [("a/b", sources["a/b"])])
    assert first.read_bytes() == sources["a/b"].read_bytes()
    assert sorted(path.name for path in (tmp_path / "taps").iterdir()) == ["a%2Fb.npz", "notes.txt"]


def test_files_are_copied_where_there_are_no_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    write_taps(tmp_path / "source.npz", BLOBS)
    for _ in range(2):
        link_taps(tmp_path, [(1, tmp_path / "source.npz")])
        assert (tmp_path / "taps" / "1.npz").read_bytes() == (tmp_path / "source.npz").read_bytes()


# -- runs ------------------------------------------------------------------------------------------------------------------------


def test_every_image_has_a_file_with_every_blob(reference: dict[str, bytes], root: Path) -> None:
    assert sorted(reference) == sorted(f"{image_id}.npz" for image_id in IDS)
    seen = set()
    for name in reference:
        with np.load(root / "reference" / "taps" / name) as stored:
            assert stored.files == list(TAPS)
            assert [stored[tap].shape for tap in TAPS] == [(1, 8), (1, 8)]
            np.testing.assert_array_equal(stored[TAPS[1]], stored[TAPS[0]] + 1)
            seen.add(stored[TAPS[0]].tobytes())
    assert len(seen) > IMAGES - 3  # pictures without boxes have zeros


def test_a_model_without_taps_leaves_no_folder(root: Path, tmp_path: Path) -> None:
    model = write_model(tmp_path / "plain.onnx")
    run_dataset(make_request(root, tmp_path / "out", model=model, limit=4), progress=False)
    assert not (tmp_path / "out" / "taps").exists()
    assert not list((tmp_path / "out" / "shards").glob("*.taps"))


@pytest.mark.parametrize(("workers", "batch_size", "mode"), [(2, 4, "exact"), (1, 1, "padded")], ids=str)
def test_workers_and_batches_change_no_byte(
    root: Path, tmp_path: Path, reference: dict[str, bytes], workers: int, batch_size: int, mode: str
) -> None:
    request = make_request(root, tmp_path, workers=workers, batch_size=batch_size, batch_mode=mode)
    run_dataset(request, progress=False)
    assert tap_bytes(tmp_path) == reference


def test_proposals_have_taps_too(root: Path, tmp_path: Path) -> None:
    run_dataset(make_request(root, tmp_path, task="proposals", formats=(), limit=4), progress=False)
    assert sorted(tap_bytes(tmp_path)) == ["10.npz", "13.npz", "16.npz", "7.npz"]


def test_a_dry_run_sets_no_limit_to_the_disk(root: Path, tmp_path: Path) -> None:
    (planned,) = plan_run(make_request(root, tmp_path / "tapped"))
    assert planned.disk_bytes is None
    model = write_model(tmp_path / "plain.onnx")
    (planned,) = plan_run(make_request(root, tmp_path / "plain", model=model))
    assert planned.disk_bytes is not None


def test_an_image_that_failed_has_no_file(root: Path, tmp_path: Path, reference: dict[str, bytes]) -> None:
    request = make_request(root, tmp_path, workers=2, batch_size=4, predictor="run_support:open_killed_by_image")
    assert run_dataset(request, progress=False).exit_code == 4
    assert tap_bytes(tmp_path) == {name: content for name, content in reference.items() if name != "22.npz"}


def test_a_finished_run_started_again_touches_nothing_and_replaces_what_is_gone(
    root: Path, tmp_path: Path, reference: dict[str, bytes]
) -> None:
    run_dataset(make_request(root, tmp_path), progress=False)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.npz")}
    (tmp_path / "taps" / "7.npz").unlink()
    # a predictor that refuses would be an error, if an engine were opened
    request = replace(make_request(root, tmp_path), predictor="run_support:open_refuses")
    assert run_dataset(request, progress=False).exit_code == 0
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.npz")} == before
    assert tap_bytes(tmp_path) == reference


def test_altered_and_missing_taps_are_done_again(
    root: Path, tmp_path: Path, reference: dict[str, bytes], caplog: pytest.LogCaptureFixture
) -> None:
    run_dataset(make_request(root, tmp_path), progress=False)
    first, second = (sorted(folder.iterdir())[0] for folder in sorted((tmp_path / "shards").glob("*.taps"))[:2])
    first.unlink()
    with second.open("r+b") as stream:  # the file in OUT/taps is the same one
        stream.write(b"XX")
    assert tap_bytes(tmp_path) != reference
    assert run_dataset(make_request(root, tmp_path, workers=2), progress=False).exit_code == 0
    assert tap_bytes(tmp_path) == reference
    assert "does not fit its checksum" in caplog.text


def test_ranges_join_to_the_files_of_one_run(root: Path, tmp_path: Path, reference: dict[str, bytes]) -> None:
    parts = []
    for start, end in ((0, 9), (9, IMAGES)):
        parts.append(tmp_path / str(start))
        run_dataset(make_request(root, parts[-1], id_range=(start, end)), progress=False)
    assert len(tap_bytes(parts[0])) == 9
    merge_outputs(parts, tmp_path / "joined")
    assert tap_bytes(tmp_path / "joined") == reference
    merge_outputs(parts, tmp_path / "joined")
    assert tap_bytes(tmp_path / "joined") == reference
    next((parts[1] / "shards").glob("*.taps/*.npz")).unlink()
    with pytest.raises(DataError, match="cannot be read"):
        merge_outputs(parts, tmp_path / "again")


def test_fresh_removes_what_was_there(root: Path, tmp_path: Path) -> None:
    run_dataset(make_request(root, tmp_path), progress=False)
    run_dataset(make_request(root, tmp_path, limit=4, fresh=True), progress=False)
    assert len(tap_bytes(tmp_path)) == 4
    assert len(list((tmp_path / "shards").glob("*.taps/*.npz"))) == 4


def test_ids_without_file_names_are_refused_before_anything_runs(root: Path, tmp_path: Path) -> None:
    write_pictures(tmp_path / "many" / ("d" * 200) / ("e" * 60), 1)
    request = make_request(root, tmp_path / "out", class_names=("cat", "dog", "fox"))
    request = replace(request, data=(DataSource(str(tmp_path / "many" / "*" / "*" / "*.png")),))
    with pytest.raises(DataError, match="give the image a shorter id"):
        run_dataset(request, progress=False)


def test_models_that_tap_one_name_do_not_work_together() -> None:
    check_models_taps([make_spec(taps=("a", "b")), make_spec(taps=("c",))])
    with pytest.raises(UsageError, match="more than one taps b, and"):
        check_models_taps([make_spec(taps=("a", "b")), make_spec(taps=("b",))])


JOB = """
import sys
from pathlib import Path
from run_support import make_request
from roiline.infer.run import run_dataset
request = make_request(Path(sys.argv[1]), Path(sys.argv[2]), workers=2, predictor="run_support:open_gated")
run_dataset(request, progress=False)
"""


def test_a_killed_run_goes_on_to_the_same_files(root: Path, tmp_path: Path, reference: dict[str, bytes]) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "ROILINE_TEST_GATE": str(tmp_path)}
    command = [sys.executable, "-c", JOB, str(root), str(tmp_path)]
    job = subprocess.Popen(command, env=environment, start_new_session=True)
    limit = time.monotonic() + 60
    try:
        while not list(tmp_path.glob("shards/*.shard")):
            assert job.poll() is None
            assert time.monotonic() < limit
            time.sleep(0.01)
    finally:
        os.killpg(job.pid, signal.SIGKILL)
        job.wait()
    done = sorted((tmp_path / "shards").glob("*.shard"))
    assert 0 < len(done) < 6
    assert not (tmp_path / "taps").exists()
    kept = {path: path.stat().st_mtime_ns for shard in done for path in shard.with_suffix(".taps").iterdir()}
    assert run_dataset(make_request(root, tmp_path, batch_size=4), progress=False).exit_code == 0
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    assert tap_bytes(tmp_path) == reference
    assert not list(tmp_path.rglob("*.part"))
