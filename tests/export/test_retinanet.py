from __future__ import annotations

from dataclasses import astuple
from types import SimpleNamespace

import numpy as np
import onnx
import onnxruntime
import pytest
from model_cases import assert_same_detections, build_case
from onnx import TensorProto, helper
from shared_data import shared_files

from roiline.core.spec import Conventions, DetectionRules
from roiline.engines.protocol import Device
from roiline.export.detectron.exporter import export_detectron
from roiline.export.graph import GraphWriter
from roiline.export.layers import Feature
from roiline.export.one_stage import RetinaNet
from roiline.export.retinanet import write_retinanet
from roiline.infer.model import open_predictor
from roiline.infer.pictures import read_picture
from roiline.infer.preparation import prepare_picture, stack_batch
from roiline.ops.anchors.retinanet import generate_retinanet_anchors
from roiline.ops.retinanet_candidates import RETINANET_CANDIDATES
from roiline.ops.retinanet_output import RETINANET_OUTPUT

K, D = 4, 6
CONVENTIONS = Conventions("detectron", True, True, False, float(np.log(1000.0 / 16.0)))
RULES = DetectionRules(0.05, 0.5, 15, True, (1.0, 1.0, 1.0, 1.0))
MAPS = {3: (6, 8), 4: (3, 4)}
VARIANTS = {
    "sigmoid": (False, False),
    "shared_tower": (True, False),
    "softmax": (False, True),
    "shared_tower_softmax": (True, True),
}


def _head(*, shared_tower: bool, softmax: bool, num_convs: int = 2) -> RetinaNet:
    return RetinaNet(
        min_level=3,
        anchors=tuple(generate_retinanet_anchors(level, (1.0, 2.0), 2, 4) for level in MAPS),
        num_classes=K,
        num_convs=num_convs,
        shared_tower=shared_tower,
        softmax=softmax,
        pre_nms_top_n=40,
    )


def _lay_out(head: RetinaNet):
    g = GraphWriter({})
    features = {level: Feature(f"feature_{level}", D) for level in MAPS}
    return g, write_retinanet(g, head, features, RULES, CONVENTIONS)


def _make_blobs(g: GraphWriter) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    blobs = {need.name: rng.normal(0, 0.25, need.shape).astype(np.float32) for need in g.requirements}
    assert all(need.purpose == "RetinaNet head" for need in g.requirements)
    return blobs


def _run(g: GraphWriter, blobs: dict, feeds: dict, wanted: list[str]) -> dict[str, np.ndarray]:
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [None] * a.ndim) for n, a in feeds.items()]
    model = g.finish(SimpleNamespace(architecture="head", to_json=lambda: "{}", taps=()), blobs, inputs, [])
    model.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in wanted)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3  # outputs without a declared type are inferred
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return dict(zip(wanted, session.run(None, feeds), strict=True))


def _convolve(x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """Returns a 3x3 convolution with padding 1, in double precision."""
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    return np.einsum("nchwij,ocij->nohw", windows, weight.astype(np.float64)) + bias[:, None, None]


def _compute_level(head: RetinaNet, blobs: dict, level: int, feature: np.ndarray) -> dict[str, np.ndarray]:
    """Returns every blob of one level by name, from the weights of level 3."""

    def conv(x, name):
        return _convolve(x, blobs[f"{name}_fpn3_w"], blobs[f"{name}_fpn3_b"])

    made = {}
    towers = {}
    for kind in ("cls",) if head.shared_tower else ("cls", "bbox"):
        x = feature
        for index in range(head.num_convs):
            x = np.maximum(conv(x, f"retnet_{kind}_conv_n{index}"), 0)
            made[f"retnet_{kind}_conv_n{index}_fpn{level}"] = x
        towers[kind] = x
    logits = made[f"retnet_cls_pred_fpn{level}"] = conv(towers["cls"], "retnet_cls_pred")
    made[f"retnet_bbox_pred_fpn{level}"] = conv(towers.get("bbox", towers["cls"]), "retnet_bbox_pred")
    if head.softmax:
        blocks = logits.reshape(len(logits), 4, K, *logits.shape[2:])
        powers = np.exp(blocks - blocks.max(axis=2, keepdims=True))
        probabilities = (powers / powers.sum(axis=2, keepdims=True)).reshape(logits.shape)
    else:
        probabilities = 1 / (1 + np.exp(-logits))
    made[f"retnet_cls_prob_fpn{level}"] = probabilities
    return made


def _feeds(images: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(2)
    maps = {
        f"feature_{level}": rng.normal(0, 1, (images, D, *cells)).astype(np.float32) for level, cells in MAPS.items()
    }
    info = np.tile(np.array([[48, 64, 0.5]], np.float32), (images, 1))
    return {**maps, "im_info": info, "im_size": np.tile(np.array([[96, 128]], np.float32), (images, 1))}


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_blob_is_what_its_layer_should_give(variant):
    shared_tower, softmax = VARIANTS[variant]
    head = _head(shared_tower=shared_tower, softmax=softmax)
    g, tensors = _lay_out(head)
    blobs, feeds = _make_blobs(g), _feeds(images=2)
    expected = {}
    for level in MAPS:
        expected |= _compute_level(head, blobs, level, feeds[f"feature_{level}"])
    got = _run(g, blobs, feeds, [*expected, *tensors.candidates, *astuple(tensors.detections)])
    for name, array in expected.items():
        np.testing.assert_allclose(got[name], array, atol=1e-5, rtol=0, err_msg=name)
    foreground = [got[f"retnet_cls_prob_fpn{level}"] for level in MAPS]
    if softmax:
        foreground = [
            p.reshape(2, 4, K, *p.shape[2:])[:, :, 1:].reshape(2, 4 * (K - 1), *p.shape[2:]) for p in foreground
        ]
    candidates = RETINANET_CANDIDATES.run(
        *foreground,
        *(got[f"retnet_bbox_pred_fpn{level}"] for level in MAPS),
        np.stack(head.anchors).astype(np.float32),
        feeds["im_info"],
        feeds["im_size"],
        strides=(8.0, 16.0),
        pre_nms_top_n=40,
        delta_clip=CONVENTIONS.delta_clip,
    )
    for name, array in zip(tensors.candidates, candidates, strict=True):
        np.testing.assert_allclose(got[name], array, atol=1e-4, rtol=0, err_msg=name)
    detections = RETINANET_OUTPUT.run(
        *(got[name] for name in tensors.candidates), num_classes=K, score_thresh=0.05, nms_thresh=0.5, max_dets=15
    )
    assert got["count"].tolist() == [15, 15]
    for name, array in zip(astuple(tensors.detections), detections, strict=True):
        np.testing.assert_array_equal(got[name], array, err_msg=name)


@pytest.mark.parametrize("variant", VARIANTS)
def test_blobs_are_named_after_the_finest_level_and_shared(variant):
    shared_tower, softmax = VARIANTS[variant]
    g, _ = _lay_out(_head(shared_tower=shared_tower, softmax=softmax))
    expected = {"retnet_cls_pred_fpn3": 4 * (K if softmax else K - 1), "retnet_bbox_pred_fpn3": 16}
    for kind in ("cls",) if shared_tower else ("cls", "bbox"):
        expected |= {f"retnet_{kind}_conv_n{index}_fpn3": D for index in range(2)}
    shapes = {need.name: need.shape for need in g.requirements}
    assert shapes == {f"{name}_w": (out, D, 3, 3) for name, out in expected.items()} | {
        f"{name}_b": (out,) for name, out in expected.items()
    }


def test_a_head_without_towers_predicts_from_the_pyramid():
    g, _ = _lay_out(_head(shared_tower=False, softmax=False, num_convs=0))
    assert {need.name for need in g.requirements} == {
        f"retnet_{k}_pred_fpn3_{p}" for k in ("cls", "bbox") for p in "wb"
    }


def test_the_graph_passes_the_checker():
    g, tensors = _lay_out(_head(shared_tower=False, softmax=True))
    feeds = _feeds(images=1)
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [None] * a.ndim) for n, a in feeds.items()]
    kinds = {"boxes": TensorProto.FLOAT, "scores": TensorProto.FLOAT}
    outputs = [
        helper.make_tensor_value_info(name, kinds.get(name, TensorProto.INT64), [None] * rank)
        for name, rank in zip(astuple(tensors.detections), (3, 2, 2, 1), strict=True)
    ]
    spec = SimpleNamespace(architecture="head", to_json=lambda: "{}", taps=())
    onnx.checker.check_model(g.finish(spec, _make_blobs(g), inputs, outputs), full_check=True)


GOLDEN = ("golden/e2e/retinanet_R50_FPN_small.json", "golden/e2e_more/retinanet_*_FPN_*.json")


@pytest.mark.golden
@pytest.mark.parametrize("description", [case for pattern in GOLDEN for case in shared_files(pattern)])
def test_detections_match_detectron(description, tmp_path):
    case = build_case(description, tmp_path)
    report = export_detectron(case.cfg, case.weights, tmp_path / "model.onnx", overrides=case.overrides)
    assert report.leftovers == ()
    predictor = open_predictor(report.path, "detections", Device(threads=1))
    picture = prepare_picture(read_picture(case.picture), report.spec.images)
    (found,) = predictor.run(stack_batch([picture], [1]))
    predictor.close()
    assert_same_detections(case.expected["dets_x1y1x2y2_score_class"], found.boxes, found.scores, found.classes)
