"""A trained torchvision detector through its export: stage by stage as torchvision's own records, and its average precision."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
import onnx
import onnxruntime
import pytest
from shared_data import shared_path

from roiline.engines.model_file import read_spec
from roiline.export.torchvision.exporter import export_torchvision
from roiline.infer.preparation import prepare_picture, stack_batch

pytestmark = pytest.mark.torch
pytest.importorskip("torch", reason="the checkpoint is a .pth: opening it needs torch")

OPTIONS = """
min_size: 288
max_size: 384
rpn_anchor_generator: {sizes: [[16], [32], [64], [128], [256]], aspect_ratios: [0.5, 1.0, 2.0]}
rpn_pre_nms_top_n_test: 500
rpn_post_nms_top_n_test: 300
"""
HEAD_MAPS = {f"rpn_{kind}_fpn{level}" for kind in ("cls_logits", "bbox_pred") for level in range(2, 7)}


@pytest.fixture(scope="module")
def folder():
    return shared_path("models/bccd-torchvision")


@pytest.fixture(scope="module")
def model(folder, tmp_path_factory):
    """Exports the model, with the RPN's maps as further outputs."""
    place = tmp_path_factory.mktemp("bccd")
    cfg = place / "options.yaml"
    cfg.write_text(OPTIONS)
    out = place / "model.onnx"
    names = (folder / "classes.txt").read_text().split()[1:]
    export_torchvision(
        "fasterrcnn_resnet50_fpn",
        folder / "model-fp16.pth",
        out,
        cfg=cfg,
        num_classes=4,
        class_names=names,
        taps=sorted(HEAD_MAPS),
    )
    return out


def _open(model: Path, *seams: str) -> onnxruntime.InferenceSession:
    """Opens a model with the tensors of seams as outputs too."""
    proto, spec = onnx.load(model), read_spec(model)
    there = {info.name for info in proto.graph.output}
    wanted = {name for seam in seams for name in spec.seams[seam]} | {"roi_feat"}
    infos = {info.name: info for info in proto.graph.value_info}
    for name in sorted(wanted - there):
        proto.graph.output.append(infos.get(name, onnx.helper.make_empty_tensor_value_info(name)))
    return onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])


def _run(session: onnxruntime.InferenceSession, model: Path, picture: np.ndarray) -> dict[str, np.ndarray]:
    batch = stack_batch([prepare_picture(picture, read_spec(model).images)], [0])
    feeds = {"data": batch.pixels, "im_info": batch.im_info, "im_size": batch.sizes}
    names = [info.name for info in session.get_outputs()]
    return {"data": batch.pixels, **dict(zip(names, session.run(None, feeds), strict=True))}


def _pictures(name: str) -> np.ndarray:
    return cv2.imread(str(shared_path("data/bccd") / "JPEGImages" / name))


def test_every_stage_is_as_torchvision_recorded_it(folder, model):
    session = _open(model, "features", "proposals", "raw", "detections")
    with np.load(folder / "reference.npz", allow_pickle=False) as stored:
        reference = {name: stored[name] for name in stored.files}
    spec = read_spec(model)
    for index, name in enumerate(reference["names"]):
        got = _run(session, model, _pictures(str(name)))
        want = {key.split("/", 1)[1]: value for key, value in reference.items() if key.startswith(f"{index}/")}
        if index == 0:
            _compare_maps(got, want, spec.seams["features"])
        rois = got["rois"][:, 1:]
        assert rois.shape == want["proposals"].shape
        rows = _pair_rows(rois, want["proposals"])
        np.testing.assert_allclose(rois[rows], want["proposals"], atol=0.01, rtol=0)
        np.testing.assert_allclose(got["bbox_pred"][rows], want["box_regression"], atol=2e-3, rtol=0)
        powers = np.exp(want["class_logits"])
        np.testing.assert_allclose(got["cls_prob"][rows], powers / powers.sum(1, keepdims=True), atol=2e-4, rtol=0)
        np.testing.assert_array_equal(got["classes"][0], want["labels"])
        np.testing.assert_allclose(got["scores"][0], want["scores"], atol=1e-4, rtol=0)
        np.testing.assert_allclose(got["boxes"][0], want["boxes"], atol=0.05, rtol=0)


def _compare_maps(got: dict[str, np.ndarray], want: dict[str, np.ndarray], features: tuple[str, ...]) -> None:
    np.testing.assert_allclose(got["data"], want["input"].reshape(got["data"].shape), atol=1e-5, rtol=0)
    for name, key in zip(features, ("fpn_0", "fpn_1", "fpn_2", "fpn_3", "fpn_pool"), strict=True):
        np.testing.assert_allclose(got[name], want[key].reshape(got[name].shape), atol=1e-4, rtol=0, err_msg=name)
    for level in range(5):
        for kind, key in (("cls_logits", "rpn_logits"), ("bbox_pred", "rpn_deltas")):
            name = f"rpn_{kind}_fpn{level + 2}"
            expected = want[f"{key}_{level}"].reshape(got[name].shape)
            np.testing.assert_allclose(got[name], expected, atol=2e-4, rtol=0, err_msg=name)
    pooled = want["roi_features"]
    rows = _pair_rows(got["rois"][:, 1:], want["proposals"][: len(pooled)])
    np.testing.assert_allclose(got["roi_feat"][rows], pooled, atol=1e-3, rtol=0)


def _pair_rows(boxes: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Returns for each wanted box the row of the nearest one: scores that differ in the last digit may change places."""
    rows = np.abs(boxes[None] - wanted[:, None]).max(axis=2).argmin(axis=1)
    assert len(set(rows.tolist())) == len(wanted)
    return rows


def test_the_top_levels_cells_are_measured_and_not_square(folder, model):
    """288 rows of 5 cells, 384 columns of 6: torchvision takes 57 down and 64 across."""
    session = _open(model)
    graph = onnx.load(model).graph
    (node,) = [node for node in graph.node if node.output[0] == "rpn_boxes_fpn6"]
    strides = node.input[4]
    assert strides not in {tensor.name for tensor in graph.initializer}
    proto = onnx.load(model)
    proto.graph.output.append(onnx.helper.make_empty_tensor_value_info(strides))
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    assert _run(session, model, np.zeros((480, 640, 3), np.uint8))[strides].tolist() == [57.0, 64.0]


def test_average_precision(folder, model, tmp_path):
    coco = pytest.importorskip("pycocotools.coco", reason="pycocotools measures it")
    from pycocotools.cocoeval import COCOeval

    session = _open(model)
    truth = coco.COCO(str(folder / "test_gt_coco.json"))
    results = []
    for image_id, image in truth.imgs.items():
        got = _run(session, model, _pictures(image["file_name"]))
        for box, score, label in zip(got["boxes"][0], got["scores"][0], got["classes"][0], strict=True):
            x, y, right, bottom = box.tolist()
            results.append(
                {
                    "image_id": image_id,
                    "category_id": int(label),
                    "bbox": [x, y, right - x, bottom - y],
                    "score": float(score),
                }
            )
    recorded = json.loads((folder / "test_detections_torchvision.json").read_text())
    assert abs(len(results) - len(recorded)) <= 2
    evaluation = COCOeval(truth, truth.loadRes(results), "bbox")
    evaluation.evaluate()
    evaluation.accumulate()
    evaluation.summarize()
    expected = json.loads((folder / "eval.json").read_text())["test"]
    for value, name in zip(evaluation.stats[:3], ("AP", "AP50", "AP75"), strict=True):
        assert value == pytest.approx(expected[name], abs=1e-3), name
