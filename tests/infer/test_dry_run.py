from __future__ import annotations

from pathlib import Path

import pytest
from run_support import make_request, write_model, write_pictures

from roiline.core.errors import UsageError
from roiline.infer.dry_run import describe_run, plan_run
from roiline.infer.request import RunOverrides
from roiline.infer.run import run_dataset


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_model(tmp_path / "model.onnx")
    write_pictures(tmp_path / "pictures", 9)
    return tmp_path


def test_a_dry_run_says_what_would_be_done_and_writes_nothing(root: Path) -> None:
    (root / "pictures" / "000010.png").unlink()
    before = sorted(root.rglob("*"))
    (planned,) = plan_run(make_request(root, root / "out", predictor="run_support:open_refuses"))
    assert sorted(root.rglob("*")) == before
    assert (planned.dataset, planned.images, planned.missing, planned.images_left) == ("data", 9, 1, 9)
    assert planned.shapes == {"32x48": 3, "48x32": 3, "32x32": 3}
    assert (planned.shards, planned.shards_left) == (3, 3)
    assert planned.disk_bytes == 9 * 100 * 28
    assert planned.seconds is None
    assert planned.files == (root / "out" / "detections.pkl", root / "out" / "bbox_results.json")


def test_a_dry_run_after_a_run_knows_what_is_left(root: Path) -> None:
    request = make_request(root, root / "out")
    run_dataset(request, progress=False)
    (root / "out" / "shards" / "000000.shard").write_bytes(b"damaged")
    (planned,) = plan_run(request)
    assert (planned.shards_left, planned.images_left) == (1, 4)
    assert planned.seconds is not None
    assert (root / "out" / "shards" / "000000.shard").exists()
    text = describe_run(request)
    assert "images: 9 (0 files missing), left to do: 4" in text
    assert "32x48: 3" in text


def test_a_dry_run_refuses_what_the_run_would_refuse(root: Path) -> None:
    run_dataset(make_request(root, root / "out"), progress=False)
    with pytest.raises(UsageError, match=r"overrides\.nms_thresh"):
        plan_run(make_request(root, root / "out", overrides=RunOverrides(nms_thresh=0.3)))
    with pytest.raises(UsageError, match="--batch-size"):
        plan_run(make_request(root, root / "out", batch_size=0))


def test_proposals_have_their_own_bound(root: Path) -> None:
    (planned,) = plan_run(make_request(root, root / "out", task="proposals", formats=()))
    assert planned.disk_bytes == 9 * 2000 * 20
    (limitless,) = plan_run(make_request(root, root / "out", overrides=RunOverrides(max_dets=0)))
    assert limitless.disk_bytes is None
