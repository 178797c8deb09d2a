"""Everything that people hand over to `roiline inspect`: what it is, what is wrong with it, and the exit code."""

from __future__ import annotations

import json
import pickle
import struct
from pathlib import Path

import cv2
import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from run_support import make_request, make_spec, write_model, write_pictures
from shared_data import shared_path
from thin_models import export_thin

from roiline.checks.inspection import inspect_path, inspect_paths
from roiline.cli import main
from roiline.core.errors import EXIT_DONE, EXIT_INPUT
from roiline.infer.run import run_dataset

FASTER = """
MODEL: {TYPE: generalized_rcnn, CONV_BODY: FPN.add_fpn_ResNet50_conv5_body, NUM_CLASSES: 4, FASTER_RCNN: True}
FPN: {FPN_ON: True, MULTILEVEL_ROIS: True, MULTILEVEL_RPN: True}
FAST_RCNN: {ROI_BOX_HEAD: fast_rcnn_heads.add_roi_2mlp_head, ROI_XFORM_METHOD: RoIAlign, ROI_XFORM_RESOLUTION: 7}
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Returns a thin detector; `model.yaml` and `model.pkl` lie beside its file, the configuration without the widths."""
    return export_thin(FASTER, tmp_path_factory.mktemp("faster"))


@pytest.fixture(scope="module")
def fitting(model):
    """Returns a configuration that fits the thin weights."""
    path = model.path.with_name("fitting.yaml")
    path.write_text(
        FASTER.replace("FPN: {", "FPN: {DIM: 32, ").replace("FAST_RCNN: {", "FAST_RCNN: {MLP_HEAD_DIM: 32, ")
    )
    return path


def _run(*arguments: object, code: int) -> str:
    result = CliRunner().invoke(main, ["inspect", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result.output


def _inspect(path: Path):
    return inspect_path(str(path)).inspection


def _write_pickle(path: Path, content: object) -> Path:
    path.write_bytes(pickle.dumps(content, protocol=2))
    return path


# --- weights and configurations --------------------------------------------------------------------------------------


def test_weights_with_their_configuration(model, fitting):
    plain = json.loads(_run(model.path.with_name("model.pkl"), fitting, "--json", code=EXIT_DONE))
    assert (plain["format_version"], plain["ok"]) == (1, True)
    weights, configuration = plain["files"]
    (pair,) = plain["pairs"]
    assert (weights["kind"], configuration["kind"]) == ("weights", "configuration")
    assert weights["facts"]["body"] == "ResNet-50 (res2 x 3, res3 x 4, res4 x 6, res5 x 3)"
    assert weights["facts"]["norm"] == "affine channels"
    assert weights["facts"]["classes with background"] == 4
    assert weights["facts"]["settings that they show"]["MODEL.CONV_BODY"] == "FPN.add_fpn_ResNet50_conv5_body"
    assert configuration["facts"]["model"] == pair["facts"]["model"] == "faster_rcnn_R-50-FPN"
    assert configuration["facts"]["tasks"] == ["proposals", "detections"]


def test_weights_with_a_configuration_of_other_widths(model):
    text = _run(model.path.with_name("model.yaml"), model.path.with_name("model.pkl"), code=EXIT_INPUT)
    assert "model.pkl with " in text
    assert "these weights do not fit the configuration" in text
    assert "FPN.DIM" in text


def test_weights_with_a_configuration_inside(model, fitting, tmp_path):
    blobs = {**model.blobs, "fpn_res2_2_sum_w_momentum": np.zeros(1, np.float32), "of_nobody": np.zeros(3, np.float32)}
    own = _inspect(_write_pickle(tmp_path / "own.pkl", {"blobs": blobs, "cfg": fitting.read_text()}))
    assert own.problems == ()
    assert "fits the configuration inside: faster_rcnn_R-50-FPN" in own.notes
    assert "1 momentum arrays are for training and were passed over" in own.notes
    assert "1 blobs of no known part: of_nobody" in own.notes
    other = _inspect(_write_pickle(tmp_path / "other.pkl", {"blobs": model.blobs, "cfg": FASTER}))
    assert other.problems[0].startswith("with the configuration inside: these weights do not fit the configuration")
    changed = fitting.with_name("changed.yaml")
    changed.write_text(fitting.read_text().replace("ROI_XFORM_METHOD: RoIAlign", "ROI_XFORM_METHOD: RoIPoolF"))
    (pair,) = inspect_paths([str(tmp_path / "own.pkl"), str(changed)]).pairs
    assert any(
        "FAST_RCNN.ROI_XFORM_METHOD: 'RoIPoolF' here, 'RoIAlign' in the weights file" in note for note in pair.notes
    )


def test_weights_that_are_not_finite(model, tmp_path):
    blobs = {**model.blobs, "cls_score_b": np.array([0, np.nan, np.inf, 1], np.float32)}
    found = _inspect(_write_pickle(tmp_path / "w.pkl", {"blobs": blobs}))
    assert found.problems == ("cls_score_b: 2 values are NaN or infinite",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("MODEL: {TYPE: generalized_rcnn, COLOUR: red}", "MODEL.COLOUR"),
        (FASTER.replace("add_fpn_ResNet50_conv5_body", "add_fpn_ResNet9_conv5_body"), "MODEL.CONV_BODY"),
        (FASTER.replace("FASTER_RCNN: True", "FASTER_RCNN: True, GAM: True"), "MODEL.GAM: True"),
        ("MODEL: [", "YAML"),
        ("# nothing\n", "expected a mapping of keys"),
        ("MODEL: {META_ARCHITECTURE: PanopticFPN}", "MODEL.META_ARCHITECTURE: PanopticFPN"),
        ("min_size: 300\ncolour: 3", "colour: no argument of this model"),
    ],
)
def test_configurations_that_cannot_be_used(text, message, tmp_path):
    (tmp_path / "cfg.yaml").write_text(text)
    found = _inspect(tmp_path / "cfg.yaml")
    assert found.kind == "configuration"
    assert message in found.problems[0]
    assert str(tmp_path) not in found.problems[0].splitlines()[0]


def test_configurations_of_other_programs(tmp_path):
    (tmp_path / "d2.yaml").write_text(
        "MODEL: {META_ARCHITECTURE: RetinaNet, BACKBONE: {NAME: build_retinanet_resnet_fpn_backbone}}\nVERSION: 2\n"
    )
    (tmp_path / "tv.yaml").write_text("min_size: 320\nrpn_nms_thresh: 0.6\n")
    newer = _inspect(tmp_path / "d2.yaml")
    assert newer.facts["source"] == "detectron2"
    arguments = _inspect(tmp_path / "tv.yaml")
    assert arguments.problems == ()
    assert "maskrcnn_resnet50_fpn" in arguments.facts["models that take these arguments"]
    assert "retinanet_resnet50_fpn" not in arguments.facts["models that take these arguments"]


def _write_safetensors(path: Path, tensors: dict[str, np.ndarray]) -> Path:
    table, data = {}, b""
    for name, values in tensors.items():
        array = values.astype("<f4")
        table[name] = {
            "dtype": "F32",
            "shape": list(array.shape),
            "data_offsets": [len(data), len(data) + array.nbytes],
        }
        data += array.tobytes()
    text = json.dumps(table).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def test_a_state_dict_of_torchvision(tmp_path, model):
    tensors = {
        "backbone.body.conv1.weight": np.zeros((4, 3, 7, 7)),
        "rpn.head.conv.weight": np.zeros((4, 4, 3, 3)),
        "roi_heads.box_predictor.cls_score.weight": np.zeros((3, 8)),
    }
    path = _write_safetensors(tmp_path / "w.safetensors", tensors)
    (tmp_path / "tv.yaml").write_text("min_size: 320\n")
    report = inspect_paths([str(path), str(tmp_path / "tv.yaml"), str(model.path.with_name("model.yaml"))])
    facts = report.files[0].facts
    assert (facts["source"], facts["model (--arch)"]) == ("torchvision", "fasterrcnn_resnet50_fpn")
    assert facts["classes with background"] == 3
    lacking, foreign = report.pairs
    assert lacking.problems[0].startswith("not the weights of fasterrcnn_resnet50_fpn")
    assert foreign.problems == ("the weights and the configuration are of different programs",)


def test_tensors_of_nobody(tmp_path):
    found = _inspect(_write_safetensors(tmp_path / "w.safetensors", {"fc.weight": np.full((2, 2), np.nan)}))
    assert found.problems == (
        "fc.weight: 4 values are NaN or infinite",
        "no names of detectron2 or torchvision detectors: fc.weight",
    )


def test_a_checkpoint_of_detectron2():
    folder = shared_path("golden/detectron2/e2e")
    report = inspect_paths([str(folder / "tiny_mask_R50_FPN.pkl"), str(folder / "tiny_mask_R50_FPN.yaml")])
    assert report.ok
    assert report.files[0].facts["classes without background"] == 5
    assert report.pairs[0].facts["model"] == report.files[1].facts["model"] == "mask_rcnn_R-50-FPN"


def test_a_trained_model_of_detectron():
    folder = shared_path("models/bccd-detectron")
    report = inspect_paths([str(folder / name) for name in ("bccd.pkl", "bccd.yaml", "original_detections.pkl")])
    assert report.ok
    assert len(report.pairs) == 1
    assert report.files[2].facts["rows"] == 1223


def test_a_net_of_caffe2():
    found = _inspect(shared_path("golden/pb/fpn_tiny/model.pb"))
    assert (found.kind, found.problems) == ("Caffe2 net", ())
    assert found.facts["operators"] > 100


# --- models ----------------------------------------------------------------------------------------------------------


def test_a_model_of_ours(model):
    found = _inspect(model.path)
    assert (found.kind, found.problems) == ("model", ())
    assert found.facts["tasks"] == ["proposals", "detections"]
    assert found.facts["outputs"] == ["boxes", "scores", "classes", "count"]
    assert found.facts["host options"] == []
    assert found.notes == ("the checkpoint did not name its classes: they are numbered",)


def test_a_model_whose_graph_does_not_keep_to_its_specification(tmp_path):
    found = _inspect(write_model(tmp_path / "m.onnx", make_spec()))
    assert "the seam `detections` names the tensor boxes, which the graph has not" in found.problems


def test_a_model_that_was_damaged(model, tmp_path):
    stored = onnx.load(model.path)
    broken = next(tensor for tensor in stored.graph.initializer if tensor.name == "cls_score_b")
    broken.raw_data = np.array([np.nan, 0, 0, 0], "<f4").tobytes()
    onnx.save(stored, tmp_path / "nan.onnx")
    assert _inspect(tmp_path / "nan.onnx").problems == ("cls_score_b: 1 weights are NaN or infinite",)
    del stored.graph.node[3:5]
    onnx.save(stored, tmp_path / "holes.onnx")
    assert _inspect(tmp_path / "holes.onnx").problems[0].startswith("its graph is not valid ONNX")
    (tmp_path / "cut.onnx").write_bytes(model.path.read_bytes()[:5000])
    assert "this is not a whole ONNX file" in _inspect(tmp_path / "cut.onnx").problems[0]


# --- datasets --------------------------------------------------------------------------------------------------------


def test_a_sound_dataset(tmp_path):
    found = _inspect(write_pictures(tmp_path, 4))
    assert (found.kind, found.problems) == ("dataset", ())
    assert found.facts["pictures"] == 4
    assert found.facts["categories"] == {"cat": 10, "dog": 20, "fox": 30}


def test_what_is_wrong_with_the_pictures_of_a_dataset(tmp_path):
    data = write_pictures(tmp_path, 4)
    (tmp_path / "000007.png").unlink()
    (tmp_path / "000010.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    cv2.imwrite(str(tmp_path / "000013.png"), np.zeros((5, 6, 3), np.uint8))
    problems = _inspect(data).problems
    text = "\n".join(problems)
    assert len(problems) == 3
    assert "picture that is not there: 1 (7)" in text
    assert "picture that cannot be read: 1 (10: " in text
    assert "picture of another size than stated: 1 (13: 6 x 5, stated 48 x 48)" in text


def test_where_the_pictures_of_a_json_are(tmp_path):
    data = write_pictures(tmp_path / "pictures", 2)
    moved = data.rename(tmp_path / "data.json")
    assert "say where they are with --images" in _run(moved, code=EXIT_INPUT)
    _run(moved, "--images", tmp_path / "pictures", code=EXIT_DONE)


def test_a_folder_and_a_pattern(tmp_path):
    write_pictures(tmp_path, 3)
    assert _inspect(tmp_path).facts["kind"] == "folder"
    assert _inspect(tmp_path / "*.png").facts["pictures"] == 3
    assert _inspect(tmp_path / "000007.png").facts["kind"] == "picture"


def test_a_voc_root():
    found = _inspect(shared_path("data/bccd"))
    assert list(found.facts["categories"]) == ["Platelets", "RBC", "WBC"]
    assert found.problems[0].startswith("object without extent inside its picture (left out): 2")


# --- results ---------------------------------------------------------------------------------------------------------


def _proposals(**changes: object) -> dict[str, object]:
    boxes = np.array([[0, 0, 9, 9], [2, 2, 5, 5]], np.float32)
    scores = np.array([0.9, 0.5], np.float32)
    return {"boxes": [boxes, boxes], "scores": [scores, scores], "ids": [1, 2], "cfg": "", **changes}


def test_a_proposal_file(tmp_path):
    found = _inspect(_write_pickle(tmp_path / "p.pkl", _proposals()))
    assert (found.kind, found.problems, found.notes) == ("proposals", (), ())
    assert (found.facts["pictures"], found.facts["rows"]) == (2, 4)


def test_what_is_wrong_with_a_proposal_file(tmp_path):
    turned = [np.array([[5, 5, 2, 9]], np.float32)] * 2
    one = [np.ones(1, np.float32)] * 2
    found = _inspect(_write_pickle(tmp_path / "p.pkl", _proposals(boxes=turned, scores=one, ids=[3, 3])))
    assert found.problems == (
        "1 pictures are there more than once: 3",
        "2 pictures have boxes whose corners are the wrong way round: 3, 3",
    )
    rising = _inspect(_write_pickle(tmp_path / "r.pkl", _proposals(scores=[np.array([0.1, 0.2], np.float32)] * 2)))
    assert rising.notes == ("2 pictures are not in descending score order: 1, 2",)
    short = _inspect(_write_pickle(tmp_path / "s.pkl", _proposals(ids=[1])))
    assert "expected lists of equal length" in short.problems[0]


def test_detections_in_nested_lists(tmp_path):
    rows = np.zeros((2, 5), np.float32)
    sound = {"all_boxes": [[[], []], [rows, []], [[], rows]], "all_segms": [[], [[], []], [[], []]], "cfg": "x"}
    found = _inspect(_write_pickle(tmp_path / "d.pkl", sound))
    assert found.problems == ()
    assert (found.facts["classes"], found.facts["pictures"], found.facts["rows"]) == (2, 2, 4)
    wrong = {"all_boxes": [[rows, []], [rows[:, :4], np.full((1, 5), np.nan)], [rows]]}
    problems = _inspect(_write_pickle(tmp_path / "w.pkl", wrong)).problems
    assert "classes cover different numbers of pictures: [1, 2]" in problems
    assert "class 0 is the background and must be empty; the classes seem to be shifted" in problems
    assert "all_boxes[1][0]: expected rows of five numbers, got float32 (2, 4)" in problems
    assert "all_boxes[1][1]: holds NaN or infinite values" in problems


@pytest.mark.parametrize("cells", [[1, 2], [[], [3, [1, [2]]]], [[5], ["ab"]], [[], [[[1, 2], [3]]]]])
def test_nested_lists_of_something_else(cells, tmp_path):
    found = _inspect(_write_pickle(tmp_path / "d.pkl", {"all_boxes": cells, "all_segms": [1, 2]}))
    assert found.kind == "detections"
    assert found.problems


def test_detections_in_a_list(tmp_path):
    sound = {"image_id": 1, "category_id": 2, "bbox": [0, 0, 4, 5], "score": 0.5}
    path = tmp_path / "bbox_results.json"
    path.write_text(json.dumps([sound, {**sound, "image_id": 2}]))
    assert _inspect(path).facts == {"format": "coco", "of": "bbox", "rows": 2, "pictures": 2, "categories": 1}
    wrong = [
        {**sound, "score": float("nan")},
        {**sound, "bbox": [0, 0, -1, 2]},
        {**sound, "bbox": [1]},
        {"image_id": 3},
    ]
    path.write_text(json.dumps([sound, *wrong]))
    assert [problem.split(":")[0] for problem in _inspect(path).problems] == [f"item {place}" for place in (1, 2, 3, 4)]
    path.write_text("[]")
    assert _inspect(path).notes == ("it is an empty list: nothing was detected",)
    path.write_text('[{"image_id": 1')
    assert "not complete, valid JSON" in _inspect(path).problems[0]


def test_a_run(tmp_path):
    write_model(tmp_path / "model.onnx")
    write_pictures(tmp_path / "pictures", 6)
    out = tmp_path / "out"
    run_dataset(make_request(tmp_path, out))
    found = _inspect(out)
    assert (found.kind, found.problems) == ("run", ())
    assert found.facts["data"] | {"model": ""} == {
        "task": "detections",
        "model": "",
        "pictures": 6,
        "done": 6,
        "failed": 0,
        "finished": True,
    }
    assert _inspect(out / "failed.json").kind == "failed pictures"
    shard = next((out / "shards").glob("*.shard"))
    shard.write_bytes(shard.read_bytes()[:-1] + b"\0")
    assert "does not fit its checksum" in _inspect(out).problems[0]


# --- anything else ---------------------------------------------------------------------------------------------------

OTHERS = {
    "page.pkl": (b"<!DOCTYPE html><html>not found</html>", "an HTML page"),
    "pointer.pkl": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "a Git LFS pointer"),
    "empty.bin": (b"", "an empty file"),
    "list.pkl": (pickle.dumps([1, 2], protocol=2), "this pickle is no weights file"),
    "cut.pkl": (pickle.dumps({"blobs": {"a": np.zeros(9)}}, protocol=2)[:-30], ""),
    "code.pkl": (b"cos\nsystem\n(S'true'\ntR.", ""),
    "words.txt": (b"these are\nno pictures\n", "none of the 2 pictures"),
    "other.json": (b'{"a": 1}', ""),
}


@pytest.mark.parametrize("name", OTHERS)
def test_files_of_no_use(name, tmp_path):
    content, message = OTHERS[name]
    (tmp_path / name).write_bytes(content)
    text = _run(tmp_path / name, code=EXIT_INPUT)
    assert "wrong: " in text
    assert message in text


def test_nothing_there(tmp_path):
    assert "there is no such file or folder" in _run(tmp_path / "no", code=EXIT_INPUT)
