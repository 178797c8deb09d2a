from __future__ import annotations

import json
import pickle
import re
from pathlib import Path

import numpy as np
import pytest
from parts_support import PARTS
from run_support import make_request, make_spec, write_model, write_pictures
from shared_data import shared_path

from roiline.core.errors import DataError, UsageError
from roiline.core.rle import encode_mask
from roiline.infer.datasets import load_dataset
from roiline.infer.roidb import Dataset
from roiline.infer.run import run_dataset
from roiline.report.evaluation import FORMAT_VERSION, EvaluationOptions, evaluate

RECORDS = [{"image_id": 4, "category_id": 30, "bbox": [10, 10, 20, 20], "score": 0.5}]
PROPOSALS = {
    "boxes": [np.array([[10, 10, 29, 29]], np.float32)] * 3,
    "scores": [np.ones(1, np.float32)] * 3,
    "ids": [4, 9, 12],
}


@pytest.fixture
def out(tmp_path: Path) -> Path:
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "bbox_results.json").write_text(json.dumps(RECORDS))
    (folder / "rpn_proposals.pkl").write_bytes(pickle.dumps(PROPOSALS, protocol=2))
    return folder


def test_a_folder_is_scored_whole_and_gets_the_metrics(out: Path, dataset: Dataset) -> None:
    evaluation = evaluate(out, [dataset])
    written = json.loads((out / "metrics.json").read_text())
    assert written == evaluation.metrics
    assert evaluation.file == out / "metrics.json"
    assert written["format_version"] == FORMAT_VERSION
    assert set(written["pets"]) == {"box", "per_class", "recall", "box_proposal"}
    assert written["pets"]["per_class"]["cat"] == pytest.approx(51 / 101)
    assert written["pets"]["box_proposal"]["AR@100"] == pytest.approx(1 / 3)
    assert "pets (3 pictures)" in evaluation.table
    assert "copypaste: AP,AP50,AP75,APs,APm,APl" in evaluation.table


def test_metrics_go_where_they_are_wanted(out: Path, tmp_path: Path, dataset: Dataset) -> None:
    assert evaluate(out, [dataset], out=tmp_path / "new").file == tmp_path / "new" / "metrics.json"
    assert evaluate(out / "bbox_results.json", [dataset], out=tmp_path / "m.json").file == tmp_path / "m.json"
    assert (tmp_path / "new" / "metrics.json").is_file()
    assert (tmp_path / "m.json").is_file()


def test_a_bare_file_alone_writes_nothing(out: Path, dataset: Dataset) -> None:
    evaluation = evaluate(out / "rpn_proposals.pkl", [dataset])
    assert evaluation.file is None
    assert set(evaluation.metrics["pets"]) == {"box_proposal"}
    assert sorted(path.name for path in out.iterdir()) == ["bbox_results.json", "rpn_proposals.pkl"]


def test_several_datasets_have_a_sub_folder_each(tmp_path: Path, dataset: Dataset) -> None:
    assert dataset.annotation_file is not None
    copy = tmp_path / "pets_test.json"
    copy.write_bytes(dataset.annotation_file.read_bytes())
    other = load_dataset(copy, images=dataset.root)
    for name, records in (("pets", RECORDS), ("pets_test", [])):
        (tmp_path / "out" / name).mkdir(parents=True)
        (tmp_path / "out" / name / "bbox_results.json").write_text(json.dumps(records))
    metrics = evaluate(tmp_path / "out", [dataset, other]).metrics
    assert metrics["pets"]["box"]["AP"] > 0
    assert metrics["pets_test"]["box"]["AP"] == 0
    with pytest.raises(UsageError, match="is one result file, but 2 datasets"):
        evaluate(tmp_path / "out" / "pets" / "bbox_results.json", [dataset, other])
    with pytest.raises(UsageError, match="no dataset was given"):
        evaluate(tmp_path / "out", [])


def test_a_part_of_the_pictures_is_said_so(tmp_path: Path, dataset: Dataset) -> None:
    file = tmp_path / "detection_range_0_2.pkl"
    file.write_bytes(pickle.dumps({"all_boxes": [[], [[], []], [[], []]]}, protocol=2))
    assert "pets (2 of 3 pictures)" in evaluate(file, [dataset]).table


def test_results_of_another_dataset_write_nothing(out: Path, dataset: Dataset) -> None:
    (out / "bbox_results.json").write_text(json.dumps([{**RECORDS[0], "image_id": 77}]))
    with pytest.raises(DataError, match="77"):
        evaluate(out, [dataset])
    assert not (out / "metrics.json").exists()


@pytest.mark.golden
def test_an_original_output_folder(tmp_path: Path) -> None:
    dataset = load_dataset(shared_path("golden/dataset/coco_cc12.json"), images=shared_path("golden/dataset/images"))
    root = shared_path("golden/dataset/synth/box")
    evaluation = evaluate(root, [dataset], out=tmp_path)
    golden = json.loads((root / "metrics.json").read_text())
    found = json.loads((tmp_path / "metrics.json").read_text())["coco_cc12"]
    assert found["box"] == pytest.approx(golden["detections"]["coco_cc12"]["box"], abs=1e-12)
    assert found["box_proposal"] == pytest.approx(golden["proposals"]["coco_cc12"]["box_proposal"], abs=1e-12)
    assert "copypaste: 0.4837,0.6509,0.5954,0.5480,0.3265,0.5955" in evaluation.table


@pytest.mark.golden
@pytest.mark.parametrize("folder", ["fast", "fast_3way", "mask_thresh"])
def test_runs_with_nothing_right_score_as_the_original(folder: str, tmp_path: Path) -> None:
    dataset = load_dataset(shared_path("golden/dataset/coco_cc12.json"), images=shared_path("golden/dataset/images"))
    box = evaluate(shared_path(f"golden/dataset/{folder}"), [dataset], out=tmp_path).metrics["coco_cc12"]["box"]
    assert set(box.values()) == {0.0}


POLYGON = [[10, 10, 30, 10, 30, 30, 10, 30]]


def test_masks_and_keypoints_have_entries_of_their_own(tmp_path: Path, dataset: Dataset) -> None:
    assert dataset.annotation_file is not None
    content = json.loads(dataset.annotation_file.read_text())
    for annotation in content["annotations"]:
        annotation["segmentation"] = POLYGON
    (tmp_path / "pets.json").write_text(json.dumps(content))
    masked = load_dataset(tmp_path / "pets.json", images=dataset.root)
    out = tmp_path / "out"
    out.mkdir()
    common = {"image_id": 4, "category_id": 30, "score": 0.5}
    pixels = np.zeros((60, 80), np.bool_)
    pixels[10:30, 10:30] = True
    mask = {"size": [60, 80], "counts": encode_mask(pixels).decode()}
    (out / "bbox_results.json").write_text(json.dumps(RECORDS))
    (out / "segmentations_results.json").write_text(json.dumps([{**common, "segmentation": mask}]))
    (out / "keypoints_results.json").write_text(json.dumps([{**common, "keypoints": [1, 2, 1] * 17}]))
    evaluation = evaluate(out, [masked])
    metrics = evaluation.metrics["pets"]
    assert list(metrics) == [
        "box",
        "per_class",
        "recall",
        "mask",
        "per_class_mask",
        "recall_mask",
        "keypoint",
        "per_class_keypoint",
        "recall_keypoint",
    ]
    assert metrics["mask"]["AP"] == pytest.approx(metrics["box"]["AP"]) == pytest.approx(51 / 202)
    assert metrics["per_class_mask"]["cat"] == pytest.approx(51 / 101)
    assert set(metrics["keypoint"].values()) == {-1.0}
    assert "pets (3 pictures): mask AP, IoU .50:.95" in evaluation.table
    assert "copypaste: Task: mask" in evaluation.table
    assert "pets (3 pictures): keypoint AP cannot be measured: the dataset has no keypoints" in evaluation.table
    assert "copypaste: AP,AP50,AP75,APm,APl" in evaluation.table


def test_a_run_over_a_part_is_scored_against_that_part(tmp_path: Path) -> None:
    write_model(tmp_path / "model.onnx", make_spec(**PARTS))
    file = write_pictures(tmp_path / "pictures", 5)
    content = json.loads(file.read_text())
    content["annotations"] = [
        {"id": image["id"], "image_id": image["id"], "category_id": 10, "bbox": [1, 1, 9, 9], "area": 81, "iscrowd": 0}
        for image in content["images"]
    ]
    file.write_text(json.dumps(content))
    for changes in ({"id_range": (1, 3)}, {"limit": 2}):
        out = tmp_path / str(*changes)
        run_dataset(
            make_request(tmp_path, out, predictor="parts_support:open_with_parts", **changes),  # type: ignore[arg-type]
            progress=False,
        )
    for picture in (tmp_path / "pictures").glob("*.png"):
        picture.unlink()
    whole = load_dataset(file, need_pictures=False)
    assert len(whole.entries) == 5
    for out in ("id_range", "limit"):
        evaluation = evaluate(tmp_path / out, [whole])
        assert "data (2 of 5 pictures): box AP" in evaluation.table
        assert set(evaluation.metrics["data"]["mask"].values()) == {-1.0}
        assert evaluation.metrics["data"]["box"]["AP"] >= 0


@pytest.mark.golden
def test_an_original_output_with_masks(tmp_path: Path) -> None:
    dataset = load_dataset(shared_path("golden/dataset/coco_cc12.json"), images=shared_path("golden/dataset/images"))
    root = shared_path("golden/dataset/synth/box")
    evaluation = evaluate(root / "detections.pkl", [dataset], out=tmp_path)
    expected = json.loads((root / "metrics.json").read_text())["detections"]["coco_cc12"]
    for part in ("box", "mask"):
        assert evaluation.metrics["coco_cc12"][part] == pytest.approx(expected[part], abs=1e-12)
    assert "copypaste: 0.2897,0.5412,0.2867,0.3773,0.1517,0.3503" in evaluation.table


@pytest.mark.golden
@pytest.mark.parametrize("folder", ["mask", "mask_catshuffled", "mask_thresh"])
def test_copy_paste_lines_of_masks_are_the_originals(folder: str) -> None:
    root = shared_path("golden/dataset")
    name = "coco_cc12_catshuffled" if folder == "mask_catshuffled" else "coco_cc12"
    dataset = load_dataset(root / f"{name}.json", images=root / "images")
    lines = evaluate(root / folder / "detections.pkl", [dataset]).table.splitlines()
    pasted = [line for line in lines if line.startswith("copypaste: ")]
    golden = json.loads((root / folder / "metrics.json").read_text())["copypaste"]
    assert [line for line in pasted if "Dataset" not in line] == [f"copypaste: {line}" for line in golden[1:]]
    assert pasted[0] == f"copypaste: {golden[0]}"


@pytest.mark.parametrize("victim", ["annotations", "bbox_results.json"])
def test_metrics_replace_nothing_that_is_read(out: Path, dataset: Dataset, victim: str) -> None:
    assert dataset.annotation_file is not None
    path = dataset.annotation_file if victim == "annotations" else out / victim
    before = path.read_bytes()
    with pytest.raises(UsageError, match="destroy it"):
        evaluate(out, [dataset], out=path)
    assert path.read_bytes() == before


def test_every_class_has_a_row_with_its_objects(out: Path, dataset: Dataset) -> None:
    evaluation = evaluate(out, [dataset], options=EvaluationOptions(per_class=True))
    rows = [line.split() for line in evaluation.table.splitlines()]
    assert ["class", "objects", "AP", "AP50", "AP75", "APs", "APm", "APl", "AR"] in rows
    assert ["cat", "2", "50.5", "50.5", "50.5", "100.0", "0.0", "-", "50.0"] in rows
    assert ["dog", "1", "0.0", "0.0", "0.0", "0.0", "-", "-", "0.0"] in rows
    metrics = evaluation.metrics["pets"]
    assert metrics["classes"]["cat"]["AP"] == metrics["per_class"]["cat"]
    assert metrics["box_proposal_per_class"]["cat"]["AR@100"] == pytest.approx(1 / 2)
    assert metrics["box_proposal_per_class"]["dog"]["AR@100"] == 0
    assert metrics["box_proposal_class_mean"]["AR@100"] == pytest.approx(1 / 4)
    assert ["mean", "of", "classes", "0.250", "0.500", "0.000", "-", "0.250", "0.500", "0.000", "-"] in rows


def test_recall_has_the_limits_that_are_asked_for(out: Path, dataset: Dataset) -> None:
    found = evaluate(out, [dataset], options=EvaluationOptions(recall_limits=(1, 300))).metrics["pets"]["box_proposal"]
    assert list(found) == [f"AR{area}@{limit}" for limit in (1, 300) for area in ("", "s", "m", "l")]
    with pytest.raises(UsageError, match="--recall-limits"):
        evaluate(out, [dataset], options=EvaluationOptions(recall_limits=(0,)))


@pytest.mark.golden
@pytest.mark.parametrize("folder", ["mask", "mask_catshuffled"])
def test_the_log_form_is_the_originals(folder: str) -> None:
    root = shared_path("golden/dataset")
    name = "coco_cc12_catshuffled" if folder == "mask_catshuffled" else "coco_cc12"
    dataset = load_dataset(root / f"{name}.json", images=root / "images")
    evaluation = evaluate(root / folder / "detections.pkl", [dataset], options=EvaluationOptions(log_form=True))
    logged = re.findall(r"^\w+ \S+\.py: *\d+: (.*)$", (root / folder / "log_excerpt.txt").read_text(), re.MULTILINE)
    wanted = [line for line in logged if line in ("0.0", "nan") or line.startswith("~~~~")]
    ours = [line for line in evaluation.table.splitlines() if line and not line.startswith((" Average", "copypaste"))]
    assert ours == wanted
    assert len(ours) == 44


@pytest.mark.golden
def test_the_log_form_of_recalls_is_the_originals() -> None:
    root = shared_path("golden/dataset")
    dataset = load_dataset(root / "coco_cc12.json", images=root / "images")
    table = evaluate(root / "rpn" / "rpn_proposals.pkl", [dataset], options=EvaluationOptions(log_form=True)).table
    log = (root / "rpn" / "log_excerpt.txt").read_text()
    assert len(table.splitlines()) == 13
    assert all(f": {line}\n" in log for line in table.splitlines())


def test_two_runs_are_compared_in_numbers_and_pictures(out: Path, tmp_path: Path, dataset: Dataset) -> None:
    better = [*RECORDS, {"image_id": 9, "category_id": 30, "bbox": [20, 20, 60, 60], "score": 0.9}]
    worse = [*better, {"image_id": 4, "category_id": 20, "bbox": [0, 0, 9, 9], "score": 0.9}]
    other = tmp_path / "other.json"
    other.write_text(json.dumps(worse))
    evaluation = evaluate(out, [dataset], options=EvaluationOptions(against=other))
    compared = evaluation.metrics["pets"]["against"]
    assert compared["results"] == str(other)
    assert compared["difference"]["box"]["AP"] == compared["box"]["AP"] - evaluation.metrics["pets"]["box"]["AP"]
    assert compared["difference"]["box"]["AP"] > 0.2
    assert "APl" not in compared["difference"]["box"]
    assert compared["images"] == [
        {"image_id": 4, "objects": 2, "found": [1, 1], "false": [0, 1]},
        {"image_id": 9, "objects": 1, "found": [0, 1], "false": [0, 0]},
    ]
    rows = [line.split() for line in evaluation.table.splitlines()]
    assert ["9", "1", "0", "1", "0", "0"] in rows
    assert ["", "A", "B", "B", "-", "A"][1:] in rows
    assert any(row[:1] == ["AP"] and row[-1] == "+24.8" for row in rows), evaluation.table
    same = evaluate(out, [dataset], options=EvaluationOptions(against=out))
    assert "scores from .5 on): 0 of 3" in same.table
    assert set(same.metrics["pets"]["against"]["difference"]["box_proposal"].values()) == {0.0}


def test_runs_that_cannot_be_compared_are_refused(out: Path, tmp_path: Path, dataset: Dataset) -> None:
    with pytest.raises(DataError, match="nothing in common"):
        evaluate(
            out / "bbox_results.json",
            [dataset],
            options=EvaluationOptions(against=out / "rpn_proposals.pkl"),
        )
    part = tmp_path / "detection_range_0_2.pkl"
    part.write_bytes(pickle.dumps({"all_boxes": [[], [[], []], [[], []]]}, protocol=2))
    with pytest.raises(DataError, match="over different pictures"):
        evaluate(out / "bbox_results.json", [dataset], options=EvaluationOptions(against=part))


def test_voc_metrics_are_there_on_demand(out: Path, dataset: Dataset) -> None:
    assert "voc" not in evaluate(out, [dataset]).metrics["pets"]
    evaluation = evaluate(out, [dataset], options=EvaluationOptions(voc=True))
    assert evaluation.metrics["pets"]["voc"] == pytest.approx({"AP50_area": 0.25, "AP50_11point": 3 / 11})
    assert evaluation.metrics["pets"]["per_class_voc"]["dog"] == {"AP50_area": 0.0, "AP50_11point": 0.0}
    assert "copypaste: Task: voc" in evaluation.table
